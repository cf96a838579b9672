"""Measure what a causal language model knows, where in its context, and at what cost."""
