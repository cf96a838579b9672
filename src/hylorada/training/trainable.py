"""Which modules beside the adapter are trained as a whole, and saved with it."""

from torch import nn
from transformers import PreTrainedModel

from hylorada.errors import SpecError


def modules_to_train(model: PreTrainedModel, *, norms: bool, embeddings: bool) -> list[str]:
    """Return the names for PEFT's `modules_to_save`: norms, embeddings, both or neither.

    Training them is what lets LoRA follow a model to a longer context (LongLoRA). The head is
    named with the embeddings; where it reads their weights, `has_tied_head`, set PEFT's
    `ensure_weight_tying` so that it keeps doing so.
    """
    names: set[str] = set()
    if norms:
        found = {name.rpartition(".")[2] for name, part in model.named_modules() if _is_norm(part)}
        if not found:
            raise SpecError(f"{type(model).__name__} has no norm to train; set train_norms=False")
        names |= found
    if embeddings:
        ends = [model.get_input_embeddings(), model.get_output_embeddings()]
        names |= {name.rpartition(".")[2] for name, part in model.named_modules() if part in ends}
    return sorted(names)


def has_tied_head(model: PreTrainedModel) -> bool:
    """Return whether the head reads its weights from the input embeddings."""
    head = model.get_output_embeddings()
    return head is None or head.weight is model.get_input_embeddings().weight


def _is_norm(module: nn.Module) -> bool:
    has_weights = any(True for _ in module.parameters(recurse=False))
    return "norm" in type(module).__name__.lower() and has_weights
