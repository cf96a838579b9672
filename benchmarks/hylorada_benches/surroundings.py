"""What a reader must know of machine and packages to judge the times."""

import os
import platform
from pathlib import Path
from typing import Any

import peft
import torch
import transformers


def surroundings() -> dict[str, Any]:
    """Return the machine, the threads that compute, and the versions of the packages."""
    return {"machine": machine(), "threads": torch.get_num_threads(), "versions": versions()}


def machine() -> dict[str, Any]:
    """Return what the processor calls itself, where Linux tells, and the number of cores."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    kind = platform.processor() or platform.machine()
    return {"processor": names[0] if names else kind, "cores": os.cpu_count()}


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute."""
    return {module.__name__: str(module.__version__) for module in (torch, transformers, peft)}


def best_device() -> str:
    """Return "cuda" if there is one, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str) -> str:
    """Return what the device is called, "CPU" for any processor."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"
