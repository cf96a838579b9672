"""The study `length`: does a gain last in longer contexts?"""

from dataclasses import replace

from hylorada.experiments.studies.components import BASELINE, component, repeated
from hylorada.experiments.studies.options import StudyOptions
from hylorada.experiments.studies.plan import Parts

SHORTEST_CONTEXT, LONGEST_CONTEXT = 512, 8192


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
        arms.append(usual.arm(name, role, f"rsLoRA, {length} tokens", length=length))
        for design in options.designs or ("position_adaptive", "low_rank"):
            arms.append(
                component(usual, design, name=f"{design} @ {length}", baseline=name, length=length)
            )
    first = f"{BASELINE} @ {shortest}"
    return Parts(arms=[*arms, repeated(usual, first)], baseline=first)
