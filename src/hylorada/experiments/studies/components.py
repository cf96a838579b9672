"""Arms that add one component to the baseline: what most studies are made of."""

from collections.abc import Callable
from typing import Any

from hylorada.adapters.config import DESIGNS
from hylorada.adapters.controls import CONTROLS
from hylorada.experiments.config import AdapterSection
from hylorada.experiments.studies.options import StudyOptions
from hylorada.experiments.studies.plan import ArmPlan, Parts
from hylorada.names import known

BASELINE = "rsLoRA"
REPEATED = "A/A"
ON = {"landmark_enabled": True}
# What each component changes, the rate that tuning may set for it, and what it is called.
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


def single_components(*names: str) -> Callable[[StudyOptions], Parts]:
    """Return a study of single components on the baseline."""

    def parts(options: StudyOptions) -> Parts:
        chosen = [component(options, name) for name in options.designs or names]
        return Parts(arms=[baseline(options), *chosen, repeated(options)], baseline=BASELINE)

    return parts
