"""What a model costs to run: time, memory and numbers stored."""

import resource
import statistics
import time

import torch
from peft import PeftModel, get_peft_model_state_dict

from hylorada.evaluation.metrics import METRICS, Case, Metric
from hylorada.models.anatomy import decoder_inputs, device_of, evaluating, underlying_causal_lm
from hylorada.records.evaluations import Cost
from hylorada.seeds import generator


@torch.no_grad()
def cost(case: Case, *, repeats: int = 3) -> Cost:
    """Return the forward pass's seconds and tokens/s, peak memory in bytes, and parameter counts.

    The pass is a bare one, logits included, on random tokens; one warm-up pass is not counted.
    On a CPU the memory is the peak of the whole process so far, on a GPU that of these passes.
    """
    model, length = case.model, case.spec.max_length
    rows = case.likelihood.rows_of(length)
    causal_lm, device = underlying_causal_lm(model), device_of(model)
    vocabulary = int(getattr(getattr(causal_lm, "config", None), "vocab_size", 2))
    tokens = torch.randint(
        0, vocabulary, (rows, length), generator=generator(case.spec.seed, "cost")
    )
    inputs = decoder_inputs(causal_lm, tokens.to(device))
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    with evaluating(model):
        for _ in range(repeats + 1):
            start = time.perf_counter()
            causal_lm(**inputs)
            if on_gpu:
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    of_process = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
    # What PEFT would save, because a loaded adapter is frozen and so not "trainable".
    adapter = None
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, save_embedding_layers=False).values()
    return Cost(
        forward_seconds=median,
        tokens_per_second=rows * length / median,
        batch=(rows, length),
        repeats=repeats,
        device=str(device),
        peak_memory_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else of_process,
        peak_memory_of="these passes" if on_gpu else "process",
        parameters=sum(p.numel() for p in model.parameters()),
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        adapter_parameters=None if adapter is None else sum(t.numel() for t in adapter),
        adapter_bytes=None if adapter is None else sum(t.nbytes for t in adapter),
    )


METRICS.add(Metric("cost", "Time, memory and numbers stored.", cost))
