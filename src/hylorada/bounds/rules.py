"""What every bound asks of its arguments; each refusal names the rule, the value and the repair."""

import math

import numpy as np
from jaxtyping import Float

from hylorada.errors import SpecError


def require_delta(delta: float) -> None:
    """Raise unless the allowed probability of failure lies strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise SpecError(
            f"delta is a probability of failure, so it must lie strictly between 0 and 1; "
            f"got {delta}; 0.05 states 95 %"
        )


def require_complexity(complexity: float) -> None:
    """Raise unless a complexity in nats is finite and not negative."""
    if not 0 <= complexity < math.inf:
        raise SpecError(
            f"complexity is -ln of a prior probability, so it must be finite and not negative; "
            f"got {complexity} nats"
        )


def require_count(name: str, value: int, least: int = 1) -> None:
    """Raise unless a count reaches the least that the formula has a meaning for."""
    if value < least:
        raise SpecError(f"{name} must be at least {least}; got {value}")


def require_range(loss_range: float) -> None:
    """Raise unless the width of the loss's interval is positive and finite."""
    if not 0 < loss_range < math.inf:
        raise SpecError(
            f"loss_range must be positive and finite; got {loss_range}; smooth the predictions if "
            "their loss has no bound"
        )


def require_risk(risk: float) -> None:
    """Raise unless a measured risk is a finite number."""
    if not math.isfinite(risk):
        raise SpecError(f"risk must be a finite number; got {risk}")


def require_fraction(risk: float) -> None:
    """Raise unless a risk was scaled to [0, 1], as a kl bound needs it."""
    if not 0 <= risk <= 1:
        raise SpecError(f"risk must lie in [0, 1] for a kl bound; got {risk}; divide by the range")


def require_values(values: Float[np.ndarray, " count"], least: int = 1) -> None:
    """Raise unless there are enough values, all of them finite."""
    require_count("the number of values", values.size, least)
    if not bool(np.isfinite(values).all()):
        raise SpecError("every value must be finite; got infinity or nan; smooth the predictions")
