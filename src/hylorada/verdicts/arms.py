"""The arms of a study as paired numbers, refused early when they cannot be compared; no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from hylorada.errors import SpecError
from hylorada.names import require_one_of

ROLES = ("baseline", "candidate", "control", "self_check", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration of a study: its log perplexity under each seed, in the study's order.

    Attributes:
        name: What the study calls it.
        log_perplexities: Mean loss on the test text in nats per token, one value a seed.
        role: One of `baseline`, `candidate`, `control`, `self_check`, `reference`.
        parameters: Trainable parameters; decides which controls are of no larger size.
    """

    name: str
    log_perplexities: tuple[float, ...]
    role: str
    parameters: int | None = None

    def __post_init__(self) -> None:
        require_one_of(f"the role of {self.name!r}", self.role, ROLES)
        if not self.log_perplexities:
            raise SpecError(f"an arm needs at least one seed; {self.name!r} has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedArms:
    """Arms that can be compared, the baseline first.

    Attributes:
        arms: The arms.
        values: Their log perplexities in nats, as one study.
        errors: Standard error over documents in nats of each arm against the baseline.
        control_errors: The same for each (candidate, control).
        error_degrees: Degrees of freedom of those errors, infinite when unknown.
    """

    arms: tuple[Arm, ...]
    values: Float[np.ndarray, "1 arms seeds"]
    errors: Float[np.ndarray, "1 arms"]
    control_errors: dict[tuple[str, str], float]
    error_degrees: float

    @property
    def seeds(self) -> int:
        """Return the number of paired seeds."""
        return int(self.values.shape[2])

    def indices(self, role: str) -> list[int]:
        """Return where the arms of a role stand, the baseline aside."""
        return [index for index, arm in enumerate(self.arms) if index and arm.role == role]

    def effects(self, index: int) -> tuple[float, ...]:
        """Return an arm's effects against the baseline in nats, one a seed."""
        return tuple((self.values[0, 0] - self.values[0, index]).tolist())

    def informative(self) -> Bool[np.ndarray, "1 arms"]:
        """Return which arms may tell of the noise: judged ones that repeat no earlier arm exactly.

        A repeated arm (an exact A/A arm) would shrink the variance without knowing anything of it.
        """
        values = [arm.log_perplexities for arm in self.arms]
        return np.array(
            [
                [
                    arm.role != "reference" and values.index(arm.log_perplexities) == index
                    for index, arm in enumerate(self.arms)
                ]
            ]
        )


def paired_arms(
    arms: Sequence[Arm],
    *,
    baseline: str,
    evaluation_errors: Mapping[str, float] | None = None,
    comparison_errors: Mapping[tuple[str, str], float] | None = None,
    documents: int | None = None,
    seeds: Sequence[int] | None = None,
) -> PairedArms:
    """Return the arms with the baseline first, after checking that they can be paired."""
    ordered = _baseline_first(arms, baseline)
    _require_paired(ordered, seeds)
    if documents is not None and documents < 2:
        raise SpecError(f"an error over documents needs at least 2 of them; got {documents}")
    errors = _document_errors(ordered, evaluation_errors)
    return PairedArms(
        arms=tuple(ordered),
        values=np.array([[arm.log_perplexities for arm in ordered]], dtype=np.float64),
        errors=errors,
        control_errors=_control_errors(ordered, errors, comparison_errors),
        error_degrees=math.inf if documents is None else documents - 1.0,
    )


def _baseline_first(arms: Sequence[Arm], baseline: str) -> list[Arm]:
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise SpecError(f"arms need different names; got {names}")
    if baseline not in names:
        raise SpecError(f"no arm is called {baseline!r}; got {names}")
    if len(arms) < 2:
        raise SpecError(f"a verdict needs an arm beside the baseline {baseline!r}; got none")
    return sorted(arms, key=lambda arm: arm.name != baseline)


def _require_paired(arms: Sequence[Arm], seeds: Sequence[int] | None) -> None:
    count = len(arms[0].log_perplexities) if seeds is None else len(seeds)
    for arm in arms:
        if len(arm.log_perplexities) != count:
            raise SpecError(
                f"every arm needs one value for each of the {count} seeds, in their order; "
                f"{arm.name!r} has {len(arm.log_perplexities)}: run the missing ones"
            )
        for index, value in enumerate(arm.log_perplexities):
            if not math.isfinite(value):
                seed = f"seed number {index + 1}" if seeds is None else f"seed {seeds[index]}"
                raise SpecError(
                    f"a log perplexity must be finite; arm {arm.name!r} has {value} at {seed}: "
                    "leave the arm out or run it again"
                )


def _document_errors(
    arms: Sequence[Arm], errors: Mapping[str, float] | None
) -> Float[np.ndarray, "1 arms"]:
    """Return each arm's standard error over documents in nats, 0 for the first, the baseline."""
    if errors is None:
        return np.zeros((1, len(arms)))
    names = [arm.name for arm in arms[1:]]
    if set(errors) - {arms[0].name} != set(names):
        raise SpecError(
            f"evaluation errors must be given for every arm or for none; arms are {names}, "
            f"errors are given for {list(errors)}"
        )
    for name, error in errors.items():
        _require_error(name, error)
    return np.array([[0.0, *(errors[name] for name in names)]], dtype=np.float64)


def _control_errors(
    arms: Sequence[Arm],
    errors: Float[np.ndarray, "1 arms"],
    given: Mapping[tuple[str, str], float] | None,
) -> dict[tuple[str, str], float]:
    """Return the standard error over documents in nats of each (candidate, control).

    Where it is not given, the sum of both arms' errors against the baseline stands for it: the
    triangle inequality makes that no smaller than the truth.
    """
    by_name = dict(zip([arm.name for arm in arms], errors[0].tolist(), strict=True))
    pairs = {
        (candidate.name, control.name): by_name[candidate.name] + by_name[control.name]
        for candidate in arms
        for control in arms
        if (candidate.role, control.role) == ("candidate", "control")
    }
    for pair, error in (given or {}).items():
        if pair not in pairs:
            raise SpecError(
                f"a comparison is one of (candidate, control) {list(pairs)}; got {pair}"
            )
        _require_error(" against ".join(pair), error)
        pairs[pair] = error
    return pairs


def _require_error(name: str, error: float) -> None:
    if not 0 <= error < math.inf:
        raise SpecError(f"an evaluation error must be finite and not negative; {name} has {error}")
