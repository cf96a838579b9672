"""The study `ablation`: components added one after the other, or crossed."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

from hylorada.names import known
from hylorada.specs.adapters import AdapterSection
from hylorada.specs.study import StudyOptions
from hylorada.studies.components import BASELINE, baseline, plain, repeated
from hylorada.studies.definitions import STUDIES, Definition, Parts
from hylorada.studies.plan import ArmPlan, Contrast, arm

DORA, BIAS = "DoRA", "position bias"
BIASED = ("+DoRA", "+position bias")
# What each step has beside its own component. Learnable buckets take the place of the fixed ones.
STEPS = {
    "+DoRA": (),
    "+position bias": ("+DoRA",),
    "+position_adaptive": BIASED,
    "+learnable": BIASED,
}
LANDMARKS: dict[str, object] = {"landmark_enabled": True}
CHANGES: dict[str, dict[str, object]] = {
    "+DoRA": {"use_dora": True},
    "+position bias": {"position_bias": True},
    "+position_adaptive": LANDMARKS,
    "+learnable": LANDMARKS | {"landmark_design": "learnable"},
}
TUNED = {"+DoRA": "learning_rate", "+position bias": "position_bias_multiplier"}


def _cumulative(options: StudyOptions) -> Parts:
    """Return the six documented configurations, each adding to the one before."""
    chosen = [known(name, STEPS, "design") for name in options.designs or STEPS]
    names = [name for name in STEPS if name in chosen]
    arms = [arm(options, "none", "reference", "the frozen model", AdapterSection())]
    arms.append(baseline(options))
    for name in names:
        parts = (*STEPS[name], name)
        changes = {key: value for part in parts for key, value in CHANGES[part].items()}
        tuned = TUNED.get(name, "landmark_multiplier")
        arms.append(_candidate(options, name, " ".join(parts), changes, tuned))
    contrasts = []
    for previous, name in pairwise(names):
        earlier = "+position bias" if name == "+learnable" else previous
        if earlier in names:
            step = Contrast(name=name, arms=(name,), against_name=earlier, against=(earlier,))
            contrasts.append(step)
    return Parts(arms=[*arms, repeated(options)], baseline=BASELINE, contrasts=tuple(contrasts))


def _factorial(options: StudyOptions) -> Parts:
    """Return every combination of DoRA, position bias and landmarks, and their main effects."""
    from hylorada.adapters.designs import DESIGNS

    designs = options.designs or ("position_adaptive", "learnable")
    for name in designs:
        known(name, DESIGNS, "design")
    arms, levels = [], {}
    for dora, bias, design in product((False, True), (False, True), (None, *designs)):
        name = " + ".join([DORA] * dora + [BIAS] * bias + ([design] if design else [])) or BASELINE
        changes: dict[str, object] = {"use_dora": dora, "position_bias": bias}
        tuned = "learning_rate" if dora else "position_bias_multiplier"
        if design:
            changes |= LANDMARKS | {"landmark_design": design}
            tuned = "landmark_multiplier"
        crossed = _candidate(options, name, f"+ {name}", changes, tuned)
        arms.append(baseline(options) if name == BASELINE else crossed)
        levels[name] = {DORA: dora, BIAS: bias} | {one: one == design for one in designs}
    effects = tuple(_main_effects(levels, designs))
    return Parts(arms=[*arms, repeated(options)], baseline=BASELINE, contrasts=effects)


def _candidate(
    options: StudyOptions, name: str, added: str, changes: Mapping[str, object], tuned: str
) -> ArmPlan:
    words, section = f"{BASELINE} {added}", plain(options, **changes)
    return arm(options, name, "candidate", words, section, baseline=BASELINE, tuned=tuned)


def _main_effects(
    levels: Mapping[str, Mapping[str, bool]], designs: Sequence[str]
) -> Iterator[Contrast]:
    """Yield for each factor all arms with it against all without."""
    for factor in (DORA, BIAS, *designs):
        # The other landmark designs are left out: without landmarks means with none.
        absent = {factor, *designs} if factor in designs else {factor}
        yield Contrast(
            name=f"with {factor}",
            arms=tuple(name for name, level in levels.items() if level[factor]),
            against_name=f"without {factor}",
            against=tuple(
                name for name, level in levels.items() if not any(level[one] for one in absent)
            ),
        )


STUDIES.add(
    Definition(
        name="ablation",
        title="What does each component add?",
        parts=lambda options: (_factorial if options.factorial else _cumulative)(options),
    )
)
