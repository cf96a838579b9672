"""What an allocation study left behind, as its figures and tables read it."""

from statistics import fmean
from typing import Any, NamedTuple

from hylorada.report.marks import finite

SIDES = ("A", "B")


class Place(NamedTuple):
    """A layer of a learned arm: mean gradient norms of A and B, and the final γ of each seed."""

    layer: str
    norms: tuple[float, float]
    gates: list[float]

    @property
    def ratio(self) -> float:
        """Return how much larger the gradient of B is than that of A."""
        return self.norms[1] / self.norms[0]

    @property
    def gate(self) -> float:
        """Return γ, the mean over seeds."""
        return fmean(self.gates)


def data(study: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of `figures_data`, empty where the study has none."""
    return study["figures_data"].get(key) or []


def risk_unit(study: dict[str, Any]) -> str:
    """Return the unit of risks and bounds."""
    return str(study["figures_data"].get("risk_unit") or "bits per token")


def value_of(found: dict[str, Any] | None) -> float | None:
    """Return a value of an arm, None where it is missing or not finite."""
    value = (found or {}).get("value")
    return float(value) if value is not None and finite(value) else None


def bits_per_coordinate(arm: dict[str, Any]) -> float | None:
    """Return the length of an arm's message for each coordinate, in bits."""
    bits, budget = value_of(arm["allocation"].get("bits")), arm["allocation"].get("budget")
    return bits / budget if bits is not None and budget else None


def share_of_b(arm: dict[str, Any]) -> float | None:
    """Return B's share of an arm's coordinates: the trained one, else the fixed one."""
    trained = value_of(arm["allocation"].get("share_of_b"))
    fixed = arm["allocation"].get("ratio")
    return fixed if trained is None else trained


def layer_places(arm: dict[str, Any]) -> list[Place]:
    """Return the layers of a learned arm whose gradients and gates are known."""
    found = arm["allocation"] or {}
    norms = found.get("gradients") or {}
    columns = [found.get("layers") or [], *(norms.get(side) or [] for side in SIDES)]
    gates = list(zip(*(found.get("gamma") or []), strict=False))
    return [
        Place(layer, (float(a), float(b)), [float(one) for one in seeds])
        for layer, a, b, seeds in zip(*columns, gates, strict=False)
        if finite(a, b, *seeds) and a > 0 and b > 0
    ]
