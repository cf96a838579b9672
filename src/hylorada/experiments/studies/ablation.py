"""The study `ablation`: components added one after the other, or crossed."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

from hylorada.adapters.config import DESIGNS
from hylorada.experiments.studies.components import BASELINE, ON, baseline, repeated
from hylorada.experiments.studies.options import StudyOptions
from hylorada.experiments.studies.plan import ArmPlan, Contrast, Parts
from hylorada.names import known

DORA, BIAS = "DoRA", "position bias"


def ablation_parts(options: StudyOptions) -> Parts:
    """Return the cumulative ablation, or the factorial one where that is asked for."""
    return _factorial(options) if options.factorial else _cumulative(options)


def _cumulative(options: StudyOptions) -> Parts:
    """Return the six documented configurations, each adding to the one before."""
    dora = {"use_dora": True}
    biased = dora | {"position_bias": True}
    fixed = biased | ON
    learned = fixed | {"landmark_design": "learnable"}
    steps: dict[str, tuple[dict[str, Any], str, str]] = {
        "+DoRA": (dora, "learning_rate", "+DoRA"),
        "+position bias": (biased, "position_bias_multiplier", "+DoRA +position bias"),
        "+position_adaptive": (
            fixed,
            "landmark_multiplier",
            "+DoRA +position bias +position_adaptive",
        ),
        "+learnable": (learned, "landmark_multiplier", "+DoRA +position bias +learnable"),
    }
    chosen = [known(name, steps, "design") for name in options.designs or steps]
    names = [name for name in steps if name in chosen]
    arms = []
    for name in names:
        adapter, tuned, added = steps[name]
        arms.append(
            options.arm(
                name,
                "candidate",
                f"{BASELINE} {added}",
                adapter=adapter,
                baseline=BASELINE,
                tuned=tuned,
            )
        )
    none = options.arm("none", "reference", "the frozen model", adapter={"method": "none"})
    return Parts(
        arms=[none, baseline(options), *arms, repeated(options)],
        baseline=BASELINE,
        contrasts=tuple(_steps(names)),
    )


def _steps(names: Sequence[str]) -> Iterator[Contrast]:
    """Yield each step against the one before it."""
    # Learnable buckets take the place of the fixed ones: both follow the position bias.
    before = {"+learnable": "+position bias"}
    for previous, name in pairwise(names):
        earlier = before.get(name, previous)
        if earlier in names:
            yield Contrast(name=name, arms=(name,), against_name=earlier, against=(earlier,))


def _factorial(options: StudyOptions) -> Parts:
    """Return every combination of DoRA, position bias and landmarks, and their main effects."""
    designs = options.designs or ("position_adaptive", "learnable")
    arms, levels = [], {}
    for dora, bias, design in product((False, True), (False, True), (None, *designs)):
        arm = _crossed(options, dora, bias, design)
        arms.append(arm)
        levels[arm.name] = {DORA: dora, BIAS: bias} | {one: one == design for one in designs}
    effects = tuple(_main_effects(levels, designs))
    return Parts(arms=[*arms, repeated(options)], baseline=BASELINE, contrasts=effects)


def _crossed(options: StudyOptions, dora: bool, bias: bool, design: str | None) -> ArmPlan:
    """Return the arm with these levels of the factors; all off is the baseline."""
    words = [DORA] * dora + [BIAS] * bias + ([design] if design else [])
    if not words:
        return baseline(options)
    adapter: dict[str, Any] = {"use_dora": dora, "position_bias": bias}
    tuned = "learning_rate" if dora else "position_bias_multiplier"
    if design:
        adapter |= ON | {"landmark_design": known(design, DESIGNS, "design")}
        tuned = "landmark_multiplier"
    name = " + ".join(words)
    return options.arm(
        name,
        "candidate",
        f"{BASELINE} + {name}",
        adapter=adapter,
        baseline=BASELINE,
        tuned=tuned,
    )


def _main_effects(levels: dict[str, dict[str, bool]], designs: Sequence[str]) -> Iterator[Contrast]:
    """Yield for each factor all arms with it against all without."""
    for factor in (DORA, BIAS, *designs):
        with_it = tuple(name for name, level in levels.items() if level[factor])
        # The other landmark designs are left out: without landmarks means with none.
        others = [design for design in designs if design != factor] if factor in designs else []
        without = tuple(
            name
            for name, level in levels.items()
            if not level[factor] and not any(level[other] for other in others)
        )
        yield Contrast(
            name=f"with {factor}",
            arms=with_it,
            against_name=f"without {factor}",
            against=without,
        )
