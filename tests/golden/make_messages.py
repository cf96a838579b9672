"""Write the pinned messages: python tests/golden/make_messages.py. Changed bytes are a break."""

from pathlib import Path

import numpy as np

from hylorada.compression.message import Message, quantise_gates
from hylorada.compression.quantise import kmeans, symmetric, uniform

FOLDER = Path(__file__).parent / "messages"
# Multiples of 1/64 from integer arithmetic: no library's sine or random numbers can move them.
RAMP = ((np.arange(500) * 37) % 101 - 50).astype(np.float32) / 64


def pinned() -> dict[str, Message]:
    """Return every pinned message by the name of its file."""
    gates = quantise_gates(np.array([-1.0, 0.0, 0.5, 3.0], dtype=np.float32))
    configuration = {
        "adapter": {
            "peft_type": "SUBLORA",
            "base_model_name_or_path": "tiny",
            "intrinsic_dim": 500,
            "r": 4,
            "projection": "grouped",
            "projection_seed": 137,
        },
        "tensors": {"vector": "base_model.sublora_subspace.vector"},
    }
    named = {"gates": "base_model.sublora_subspace.gates"}
    gated = configuration | {"tensors": configuration["tensors"] | named}
    return {
        "one_step": Message(configuration=configuration, quantised=symmetric(RAMP, 0.25, 3)),
        "with_gates": Message(
            configuration=gated, quantised=symmetric(RAMP, 0.5, 1, dead_zone=0.2), gates=gates
        ),
        "uniform_bins": Message(configuration=configuration, quantised=uniform(RAMP, 11)),
        "list": Message(configuration=configuration, quantised=kmeans(RAMP, 4)),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, message in pinned().items():
        (FOLDER / f"{name}.hyl").write_bytes(message.to_bytes())
