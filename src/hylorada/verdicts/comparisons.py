"""A candidate against controls of the same or smaller size: what explains its gain; no torch."""

from collections.abc import Sequence

import numpy as np

from hylorada.evaluation.statistics import Estimate
from hylorada.verdicts.arms import Arm, PairedArms
from hylorada.verdicts.gains import gain_estimate
from hylorada.verdicts.judgements import Comparison
from hylorada.verdicts.sentences import comparison_sentence
from hylorada.verdicts.spread import Pool, spread


def compare_with_controls(
    study: PairedArms, noise: Pool | None, *, confidence: float
) -> tuple[Comparison, ...]:
    """Return every candidate against every control; without noise (one seed), no intervals.

    Each interval holds for all candidates at once (Bonferroni). It needs no adjustment over
    controls: a candidate is only said to stand above its controls when it beats them all.
    """
    candidates = study.indices("candidate")
    if not candidates:
        return ()
    return tuple(
        _comparison(study.arms[candidate], study.arms[control], gain)
        for control in study.indices("control")
        for candidate, gain in zip(
            candidates, _gains(study, noise, control, candidates, confidence), strict=True
        )
    )


def explaining(candidate: str, comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Return the controls of no larger size that the candidate does not beat."""
    return tuple(
        one.against
        for one in comparisons
        if one.arm == candidate and one.no_larger and not one.beaten
    )


def _gains(
    study: PairedArms, noise: Pool | None, control: int, candidates: list[int], confidence: float
) -> list[Estimate]:
    """Return the gains of the candidates over one control, in per cent."""
    if noise is None:
        effects = (study.values[0, [control]] - study.values[0, candidates]).mean(-1)
        return [gain_estimate(float(effect), None, None, seeds=1) for effect in effects]
    names = [(study.arms[one].name, study.arms[control].name) for one in candidates]
    found = spread(
        study.values,
        noise,
        first=control,
        others=candidates,
        errors=np.array([[study.control_errors[pair] for pair in names]]),
        error_degrees=study.error_degrees,
        confidence=confidence,
    )
    reach = found.reach(np.full(found.effects.shape, found.unadjusted / len(candidates)))
    return [
        gain_estimate(effect, (effect - far, effect + far), error, seeds=study.seeds)
        for effect, far, error in np.stack(
            [found.effects[0], reach[0], found.standard_error[0]], axis=-1
        ).tolist()
    ]


def _comparison(candidate: Arm, control: Arm, gain: Estimate) -> Comparison:
    beaten = gain.interval is not None and gain.interval[0] > 0
    unknown = candidate.parameters is None or control.parameters is None
    return Comparison(
        arm=candidate.name,
        against=control.name,
        gain=gain,
        beaten=beaten,
        no_larger=unknown or (control.parameters or 0) <= (candidate.parameters or 0),
        sentence=comparison_sentence(candidate.name, control.name, gain, beaten=beaten),
    )
