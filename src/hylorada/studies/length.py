"""The study `length`: does a gain last in longer contexts?"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from hylorada.records.studies import FiguresData, GainCurve, GainCurves, GainPoint, Study
from hylorada.specs.study import StudyOptions
from hylorada.studies.components import BASELINE, component, plain, repeated
from hylorada.studies.definitions import STUDIES, Definition, Parts
from hylorada.studies.plan import arm
from hylorada.studies.results import ArmRuns

SHORTEST_CONTEXT, LONGEST_CONTEXT = 512, 8192
DESIGNS = ("position_adaptive", "low_rank")


def length_parts(options: StudyOptions) -> Parts:
    """Return baseline and component at each context from 512 up, with equal tokens everywhere.

    A step has at least the tokens of one longest sequence.
    """
    longest = LONGEST_CONTEXT if options.max_length is None else options.max_length
    shortest = min(SHORTEST_CONTEXT, longest)
    lengths = [shortest]
    while lengths[-1] * 2 <= longest:
        lengths.append(lengths[-1] * 2)
    batch = max(options.batch_size, lengths[-1] // shortest)
    usual = replace(options, max_length=shortest, batch_size=batch)
    arms = []
    for length in lengths:
        name = f"{BASELINE} @ {length}"
        role = "baseline" if length == shortest else "reference"
        words = f"rsLoRA, {length} tokens"
        arms.append(arm(usual, name, role, words, plain(usual), length=length))
        arms += [
            component(usual, design, name=f"{design} @ {length}", baseline=name, length=length)
            for design in options.designs or DESIGNS
        ]
    first = f"{BASELINE} @ {shortest}"
    return Parts(arms=[*arms, repeated(usual, first)], baseline=first)


def conclude(study: Study, runs: Mapping[str, ArmRuns], ledger: str) -> Study:
    """Return the study with each component's gain over the context length."""
    curves: dict[str, list[GainPoint]] = {}
    for one in study.arms:
        name, at, _ = one.name.partition(" @ ")
        if at and one.gain is not None:
            gain, length = one.gain, runs[one.name].arm.config.data.length
            point = GainPoint(x=length, **msgspec.structs.asdict(gain))
            curves.setdefault(name, []).append(point)
    found = [GainCurve(name=name, points=points) for name, points in curves.items()]
    gains = GainCurves(over="context, tokens", curves=found)
    return msgspec.structs.replace(study, figures_data=FiguresData(gain_curves=gains))


STUDIES.add(
    Definition(
        name="length",
        title="Does the gain last in longer contexts?",
        parts=length_parts,
        conclude=conclude,
    )
)
