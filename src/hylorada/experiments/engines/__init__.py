"""Engines carry out jobs: on this machine, or on a Ray cluster. All work on one ledger."""

from difflib import get_close_matches

from hylorada.errors import SpecError
from hylorada.experiments.engines.work import Engine

ENGINES = ("local", "ray")


def open_engine(name: str, workers: int | None = None) -> Engine:
    """Return the engine of that name; `workers` jobs run at a time, None lets it choose."""
    if workers is not None and workers < 1:
        raise SpecError(f"workers must be at least 1; got {workers}")
    if name == "local":
        from hylorada.experiments.engines.local import LocalEngine

        return LocalEngine(workers)
    if name == "ray":
        from hylorada.experiments.engines.ray import RayEngine

        return RayEngine(workers)
    near = get_close_matches(name, ENGINES, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ENGINES)}"
    raise SpecError(f"unknown engine {name!r}; {hint}")
