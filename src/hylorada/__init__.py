"""Adapt causal language models with few trainable numbers, and find out whether each one helped."""
