"""Real, tiny models for the tests of this room, and a corpus to read."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from hylorada.evaluation.metrics import Case
from hylorada.evaluation.windows import CorpusLosses
from hylorada.specs.evaluation import EvaluationSpec
from hylorada.text.tokens import TokenStore

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def gpt2(context: int = 64, vocabulary: int = VOCABULARY) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=context,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


def opt() -> OPTForCausalLM:
    config = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        word_embed_proj_dim=8,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    return OPTForCausalLM(config)


ARCHITECTURES = {
    "gpt2": gpt2,
    "opt": opt,
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    # A cap this small bends every logit, so forgetting it cannot go unnoticed.
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.5)
    ),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.3)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
}


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """Return a random model of the named architecture whose logits are far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ARCHITECTURES[name]()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.3)
    return model.eval()


class TableModel(nn.Module):
    """Predicts the next token from the last one by a table of logits, whatever came before."""

    def __init__(self, table: Float[Tensor, "vocab vocab"]) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, input_ids: Int[Tensor, "batch time"]) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[input_ids])


def uniform(vocabulary: int) -> TableModel:
    return TableModel(torch.zeros(vocabulary, vocabulary))


class CopyModel(nn.Module):
    """Knows only what stood after the same last tokens within its window, else is uniform."""

    def __init__(self, vocabulary: int, window: int, matched: int = 4) -> None:
        super().__init__()
        self.vocabulary, self.window, self.matched = vocabulary, window, matched

    def forward(self, input_ids: Int[Tensor, "batch time"]) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        for row, tokens in enumerate(input_ids.tolist()):
            for place in range(self.matched, len(tokens)):
                self._copy(logits[row, place], tokens[: place + 1])
        return SimpleNamespace(logits=logits)

    def _copy(self, logits: Float[Tensor, " vocab"], tokens: list[int]) -> None:
        wanted, last = tokens[-self.matched :], len(tokens) - 1
        for end in range(last, max(self.matched, last - self.window), -1):
            if tokens[end - self.matched : end] == wanted:
                logits[tokens[end]] = 30.0
                return


def byte_tokenizer(
    mark: bool = False, merges: list[tuple[str, str]] | None = None
) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a byte, if wanted with a mark before every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(["<s>", *alphabet])}
    merges = merges or []
    vocabulary |= {left + right: len(vocabulary) for left, right in merges}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if mark:
        backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


def store(*documents: list[int], byte_counts: list[int] | None = None) -> TokenStore:
    """Return a store in memory of documents given as token ids; one byte a token if not said."""
    sizes = [len(document) for document in documents]
    return TokenStore(
        tokens=np.array([token for document in documents for token in document], dtype=np.uint16),
        offsets=np.cumsum([0, *sizes]),
        byte_counts=np.array(byte_counts or sizes, dtype=np.int64),
        fingerprint="test",
    )


def random_tokens(count: int, vocabulary: int = VOCABULARY, seed: int = 0) -> list[int]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=draws).tolist()


def case(model: nn.Module, corpus: TokenStore, **settings: object) -> Case:
    """Return a model to be measured on a corpus, one token a byte."""
    spec: dict[str, Any] = {"progress": False, **settings}
    return Case(model, byte_tokenizer(), corpus, EvaluationSpec(**spec))


def case_of(corpus: CorpusLosses, **settings: object) -> Case:
    """Return a case whose pass over the corpus has had these losses."""
    made = case(uniform(8), store([1, 2, 3]), max_length=corpus.length, **settings)
    object.__setattr__(made, "corpus", corpus)
    return made
