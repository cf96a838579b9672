"""What a model costs to run: time, memory and numbers stored."""

import resource
import statistics
import time

import torch
from peft import PeftModel, get_peft_model_state_dict
from torch import nn

from hylorada.models.heads import decoder_inputs, device_of, evaluating, underlying_causal_lm
from hylorada.seeds import generator


@torch.no_grad()
def cost(
    model: nn.Module, *, length: int, rows: int = 4, repeats: int = 3, seed: int = 0
) -> dict[str, object]:
    """Return the forward pass's seconds and tokens/s, peak memory in bytes, and parameter counts.

    The pass is a bare one, logits included, on random tokens; one warm-up pass is not counted.
    On a CPU the memory is the peak of the whole process so far, on a GPU that of these passes.
    """
    causal_lm, device = underlying_causal_lm(model), device_of(model)
    vocabulary = _vocabulary(causal_lm)
    tokens = torch.randint(0, vocabulary, (rows, length), generator=generator(seed, "cost"))
    inputs = decoder_inputs(causal_lm, tokens.to(device))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    with evaluating(model):
        for _ in range(repeats + 1):
            start = time.perf_counter()
            causal_lm(**inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return {
        "forward_seconds": median,
        "tokens_per_second": rows * length / median,
        "batch": [rows, length],
        "repeats": repeats,
        "device": str(device),
        "peak_memory_bytes": _peak_memory(device),
        "peak_memory_of": "these passes" if device.type == "cuda" else "process",
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        **_adapter_size(model),
    }


def _adapter_size(model: nn.Module) -> dict[str, object]:
    """Return the numbers a saved adapter holds and their bytes; nothing for a bare model.

    Counted from what PEFT would save, because a loaded adapter is frozen and so not "trainable".
    """
    if not isinstance(model, PeftModel):
        return {}
    tensors = list(get_peft_model_state_dict(model, save_embedding_layers=False).values())
    return {
        "adapter_parameters": sum(tensor.numel() for tensor in tensors),
        "adapter_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    }


def _vocabulary(causal_lm: nn.Module) -> int:
    size = getattr(getattr(causal_lm, "config", None), "vocab_size", 2)
    return int(size)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB.
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
