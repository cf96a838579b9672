"""What a training needs to go on in another process as if nothing had happened."""

import logging
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hylorada.errors import CheckpointError

PAYLOAD = "training.pt"

logger = logging.getLogger(__name__)


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return copies on the CPU of the trainable parameters, by name."""
    return {
        name: parameter.detach().to("cpu", copy=True)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


@torch.no_grad()
def load_parameters(model: nn.Module, stored: dict[str, Tensor], source: str) -> None:
    """Copy stored values into the trainable parameters; names and shapes must agree."""
    present = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if missing := sorted(present.keys() ^ stored.keys()):
        raise CheckpointError(
            f"the stored parameters must be those that are trained; {source} differs in "
            f"{missing[:3]}; train the adapter it was written for"
        )
    for name, parameter in present.items():
        if parameter.shape != stored[name].shape:
            raise CheckpointError(
                f"{name} must have shape {tuple(parameter.shape)}; "
                f"{source} has {tuple(stored[name].shape)}"
            )
        parameter.copy_(stored[name])


def process_state(loss: Tensor) -> dict[str, Any]:
    """Return this process's random states and the loss it has summed since the last log."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    state = {
        "python": (version, words, gauss),
        "numpy": (legacy[0], legacy[1].tolist(), *legacy[2:]),
        "torch": torch.get_rng_state(),
        "loss": loss.detach().to("cpu", copy=True),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(states: list[dict[str, Any]], process: int) -> None:
    """Set this process's random states to the stored ones."""
    if process >= len(states):
        logger.warning(
            "the checkpoint was written by %d processes, process %d starts with fresh random "
            "states; the numbers will not be those of an uninterrupted training",
            len(states),
            process,
        )
        return
    state = states[process]
    random.setstate(state["python"])
    name, words, *rest = state["numpy"]
    np.random.set_state((name, np.array(words, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
