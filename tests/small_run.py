"""A model, a tokenizer and a text so small that a whole run takes a second."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write_model(folder: Path) -> None:
    """Save a two-layer Llama over bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)


def write_text(folder: Path) -> None:
    """Save a text for each split."""
    folder.mkdir()
    for split, first in (("train", 0), ("valid", 500), ("test", 700)):
        lines = (f"{number} is followed by {number + 1}." for number in range(first, first + 200))
        (folder / f"{split}.txt").write_text(" ".join(lines))


def small_arguments(folder: Path) -> list[str]:
    """Return the command line of a run on what was written to a folder, writing it if needed."""
    if not (folder / "model").exists():
        write_model(folder / "model")
        write_text(folder / "text")
    return [
        f"--model.source={folder / 'model'}",
        f"--data.source={folder / 'text'}",
        f"--data.cache={folder / 'cache'}",
        "--length=24",
        "--num-train=24",
        "--num_val=4",
        "--batch_size=4",
        "--epochs=2",
        "--log_every=5",
        "--progress=false",
        "--cpu=true",
    ]
