"""The studies that ship: which arms each compares. A new one is one line in `STUDIES`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise, product
from typing import Any

from hylorada.adapters.controls import CONTROLS
from hylorada.adapters.designs import DESIGNS
from hylorada.errors import SpecError
from hylorada.experiments.allocation import allocation_parts
from hylorada.experiments.allocation_results import conclude_allocation
from hylorada.experiments.config import AdapterSection
from hylorada.experiments.options import StudyOptions
from hylorada.experiments.plan import ArmPlan, Contrast, Parts, Plan, TuningPlan
from hylorada.experiments.records import ArmRecord

__all__ = ["STUDIES", "StudyOptions", "known", "plan_of"]

BASELINE = "rsLoRA"
REPEATED = "A/A"
FROZEN = "frozen"
SHORTEST_CONTEXT, LONGEST_CONTEXT = 512, 8192


# From the entry of a study, its runs and its ledger to what replaces or joins the entry.
Conclude = Callable[[dict[str, Any], Mapping[str, ArmRecord], str], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A study by name: its question, and what it compares under given options.

    Attributes:
        conclude: What the study adds to its file beyond what every study says.
    """

    title: str
    parts: Callable[[StudyOptions], Parts]
    conclude: Conclude | None = None


def plan_of(study: str, options: StudyOptions) -> Plan:
    """Return the plan of a study, every part of it checked."""
    definition = STUDIES[known(study, STUDIES, "study")]
    parts = definition.parts(options)
    tuning = None
    if options.tune:
        seed = next(
            seed for seed in range(7, 7 + len(options.seeds) + 1) if seed not in options.seeds
        )
        same = {} if parts.rates is None else dict.fromkeys(("base", "component"), parts.rates)
        tuning = TuningPlan(seed=seed, **same)
    return Plan(
        study=study,
        title=definition.title,
        arms=tuple(parts.arms),
        baseline=parts.baseline,
        seeds=options.seeds,
        tuning=tuning,
        contrasts=parts.contrasts,
    )


def known(name: str, names: Sequence[str] | dict[str, Any], what: str) -> str:
    """Return a name that is known, or raise with the nearest one."""
    if name in names:
        return name
    near = get_close_matches(name, list(names), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    raise SpecError(f"unknown {what} {name!r}; {hint}")


# What one component on top of the baseline is: what it changes, its rate, and what to call it.

ON = {"landmark_enabled": True}
COMPONENTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "original": (ON, "landmark_multiplier", "landmarks gated by the mean of the text so far"),
    "per_layer": (ON, "landmark_multiplier", "half as many landmarks after every block"),
    "position_adaptive": (ON, "landmark_multiplier", "landmarks gated by log position and content"),
    "shared": (ON, "landmark_multiplier", "one bank of landmarks after every block"),
    "learnable": (ON, "landmark_multiplier", "landmarks gated by learned position buckets"),
    "uniform": (
        ON | {"landmark_design": "position_adaptive", "bucket_spacing": "uniform"},
        "landmark_multiplier",
        "landmarks gated by uniform position buckets and content",
    ),
    "bias": (ON, "landmark_multiplier", "control: one vector after the final norm"),
    "static": (ON, "landmark_multiplier", "control: a single landmark"),
    "low_rank": (ON, "landmark_multiplier", "control: a low-rank map of the landmarks' size"),
    "norm_gain": (ON, "landmark_multiplier", "control: a gain after the final norm"),
    "rank+1": ({}, "learning_rate", "control: LoRA with one more rank"),
    "dora": ({"use_dora": True}, "learning_rate", "magnitudes trained apart from directions"),
    "position_bias": ({"position_bias": True}, "position_bias_multiplier", "updates by position"),
}
CONTROL_NAMES = (*CONTROLS, "rank+1")


def component(options: StudyOptions, design: str, **more: Any) -> ArmPlan:
    """Return the arm that adds one component to the baseline."""
    changes, tuned, description = COMPONENTS[known(design, COMPONENTS, "design")]
    adapter = dict(changes)
    if design in DESIGNS:
        adapter["landmark_design"] = design
    if design == "rank+1":
        adapter["r"] = AdapterSection().r + 1
    defaults = {
        "name": design,
        "role": "control" if design in CONTROL_NAMES else "candidate",
        "description": description,
        "baseline": BASELINE,
        "tuned": tuned,
    }
    return options.arm(**(defaults | more), adapter=adapter)


def baseline(options: StudyOptions) -> ArmPlan:
    """Return the arm that all components are added to."""
    return options.arm(BASELINE, "baseline", "rank-stabilised LoRA alone")


def repeated(options: StudyOptions, of: str = BASELINE) -> ArmPlan:
    """Return the baseline once more, in another order with other dropout: only noise differs."""
    return options.arm(
        REPEATED,
        "self_check",
        "the baseline again, in another order with other dropout",
        baseline=of,
        repetition=1,
    )


def _components(*names: str) -> Callable[[StudyOptions], Parts]:
    """Return a study of single components on the baseline."""

    def parts(options: StudyOptions) -> Parts:
        chosen = [component(options, name) for name in options.designs or names]
        return Parts(arms=[baseline(options), *chosen, repeated(options)], baseline=BASELINE)

    return parts


def _ablation(options: StudyOptions) -> Parts:
    return _factorial(options) if options.factorial else _cumulative(options)


def _cumulative(options: StudyOptions) -> Parts:
    """Return the six documented configurations, each adding to the one before."""
    dora = {"use_dora": True}
    biased = dora | {"position_bias": True}
    landmarks = biased | ON
    steps = {
        "+DoRA": (dora, "learning_rate"),
        "+position bias": (biased, "position_bias_multiplier"),
        "+position_adaptive": (landmarks, "landmark_multiplier"),
        "+learnable": (landmarks | {"landmark_design": "learnable"}, "landmark_multiplier"),
    }
    names = list(steps)
    if options.designs is not None:
        names = [known(name, steps, "design") for name in options.designs]
    arms = [
        options.arm(
            name,
            "candidate",
            f"rsLoRA {' '.join(list(steps)[: index + 1])}".replace(
                "+position_adaptive +learnable", "+learnable"
            ),
            adapter=steps[name][0],
            baseline=BASELINE,
            tuned=steps[name][1],
        )
        for index, name in enumerate(steps)
        if name in names
    ]
    # Learnable buckets take the place of the fixed ones: both follow the position bias.
    before = {"+learnable": "+position bias"}
    chain = [
        Contrast(name=later, arms=(later,), against_name=earlier, against=(earlier,))
        for earlier, later in ((before.get(b, a), b) for a, b in pairwise(names))
        if earlier in names
    ]
    none = options.arm("none", "reference", "the frozen model", adapter={"method": "none"})
    return Parts(
        arms=[none, baseline(options), *arms, repeated(options)],
        baseline=BASELINE,
        contrasts=tuple(chain),
    )


def _factorial(options: StudyOptions) -> Parts:
    """Return every combination of DoRA, position bias and landmarks, and their main effects."""
    designs = options.designs or ("position_adaptive", "learnable")
    arms, levels = [], {}
    for dora, bias, design in product((False, True), (False, True), (None, *designs)):
        words = ["DoRA"] * dora + ["position bias"] * bias + ([design] if design else [])
        name = " + ".join(words) or BASELINE
        levels[name] = {"DoRA": dora, "position bias": bias} | {d: d == design for d in designs}
        if not words:
            arms.append(baseline(options))
            continue
        adapter: dict[str, Any] = {"use_dora": dora, "position_bias": bias}
        if design:
            adapter |= ON | {"landmark_design": known(design, DESIGNS, "design")}
        tuned = "landmark_multiplier" if design else "learning_rate"
        arms.append(
            options.arm(
                name,
                "candidate",
                f"rsLoRA + {name}",
                adapter=adapter,
                baseline=BASELINE,
                tuned=tuned if design or dora else "position_bias_multiplier",
            )
        )
    effects = tuple(_main_effects(levels, designs))
    return Parts(arms=[*arms, repeated(options)], baseline=BASELINE, contrasts=effects)


def _main_effects(levels: dict[str, dict[str, bool]], designs: Sequence[str]) -> list[Contrast]:
    found = []
    for factor in ("DoRA", "position bias", *designs):
        with_it = tuple(name for name, level in levels.items() if level[factor])
        # The other landmark designs are left out: without landmarks means with none.
        others = [design for design in designs if design != factor] if factor in designs else []
        without = tuple(
            name
            for name, level in levels.items()
            if not level[factor] and not any(level[other] for other in others)
        )
        found.append(
            Contrast(
                name=f"with {factor}",
                arms=with_it,
                against_name=f"without {factor}",
                against=without,
            )
        )
    return found


def _length(options: StudyOptions) -> Parts:
    """Return baseline and component at each context from 512 up, with equal tokens everywhere."""
    longest = options.max_length or LONGEST_CONTEXT
    shortest = min(SHORTEST_CONTEXT, longest)
    lengths = [shortest]
    while lengths[-1] * 2 <= longest:
        lengths.append(lengths[-1] * 2)
    usual = replace(options, max_length=shortest)
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


STUDIES: dict[str, Definition] = {
    "landmarks": Definition(
        title="Do landmarks earn their parameters?",
        parts=_components(
            "original",
            "per_layer",
            "position_adaptive",
            "shared",
            "bias",
            "low_rank",
            "static",
            "rank+1",
            "norm_gain",
        ),
    ),
    "bucketing": Definition(
        title="Is it worth learning where position buckets end?",
        parts=_components("position_adaptive", "uniform", "learnable", "low_rank", "bias"),
    ),
    "ablation": Definition(title="What does each component add?", parts=_ablation),
    "length": Definition(title="Does the gain last in longer contexts?", parts=_length),
    "allocation": Definition(
        title="How should coordinates be divided between A and B?",
        parts=allocation_parts,
        conclude=conclude_allocation,
    ),
}
