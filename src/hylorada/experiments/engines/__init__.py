"""Engines carry out jobs: on this machine, or on a Ray cluster. All work on one ledger."""

from hylorada.errors import SpecError
from hylorada.experiments.engines.tasks import Engine
from hylorada.names import known

ENGINES = ("local", "ray")


def open_engine(name: str, workers: int | None = None) -> Engine:
    """Return the engine of that name; `workers` jobs run at a time, None lets it choose."""
    if workers is not None and workers < 1:
        raise SpecError(f"workers must be at least 1; got {workers}")
    if known(name, ENGINES, "engine") == "local":
        from hylorada.experiments.engines.local import LocalEngine

        return LocalEngine(workers)
    from hylorada.experiments.engines.ray import RayEngine

    return RayEngine(workers)
