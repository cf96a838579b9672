"""Arms that add one component to the baseline, and the studies of such arms alone."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hylorada.names import known
from hylorada.specs.adapters import AdapterSection, HyLoRADASection, adapter_section
from hylorada.specs.study import StudyOptions
from hylorada.studies.definitions import STUDIES, Definition, Parts
from hylorada.studies.plan import ArmPlan, arm

BASELINE = "rsLoRA"
REPEATED = "A/A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """What an arm changes of the baseline, and the rate that tuning may set for it."""

    words: str
    changes: dict[str, object] = field(default_factory=dict)
    tuned: str = "learning_rate"
    control: bool = False


def components() -> dict[str, Component]:
    """Return every component by name: all registered designs, and what is none of them."""
    from hylorada.adapters.designs import DESIGNS

    found = {
        design.name: Component(
            words=design.words,
            changes={"landmark_enabled": True, "landmark_design": design.name},
            tuned="landmark_multiplier",
            control=design.control,
        )
        for design in DESIGNS.values()
    }
    return found | {
        "uniform": Component(
            words="landmarks gated by uniform position buckets and content",
            changes={"landmark_enabled": True, "bucket_spacing": "uniform"},
            tuned="landmark_multiplier",
        ),
        "rank+1": Component(
            words="control: LoRA with one more rank",
            changes={"r": HyLoRADASection().r + 1},
            control=True,
        ),
        "dora": Component(
            words="magnitudes trained apart from directions", changes={"use_dora": True}
        ),
        "position_bias": Component(
            words="updates by position",
            changes={"position_bias": True},
            tuned="position_bias_multiplier",
        ),
    }


def component(
    options: StudyOptions,
    design: str,
    *,
    name: str | None = None,
    baseline: str = BASELINE,
    length: int | None = None,
) -> ArmPlan:
    """Return the arm that adds one component to a baseline, called by it unless named."""
    every = components()
    found = every[known(design, every, "design")]
    return arm(
        options,
        name or design,
        "control" if found.control else "candidate",
        found.words,
        plain(options, **found.changes),
        length=length,
        baseline=baseline,
        tuned=found.tuned,
    )


def plain(options: StudyOptions, **changes: object) -> AdapterSection:
    """Return the adapter of the baseline with some changes: no landmarks, no position bias."""
    usual: dict[str, object] = {"landmark_enabled": False, "position_bias": False}
    return adapter_section(
        "hylorada", **(usual | {"num_landmarks": options.num_landmarks} | changes)
    )


def baseline(options: StudyOptions) -> ArmPlan:
    """Return the arm that all components are added to."""
    return arm(options, BASELINE, "baseline", "rank-stabilised LoRA alone", plain(options))


def repeated(options: StudyOptions, of: str = BASELINE) -> ArmPlan:
    """Return the baseline once more, in another order with other dropout: only noise differs."""
    words = "the baseline again, in another order with other dropout"
    section = plain(options)
    return arm(options, REPEATED, "self_check", words, section, baseline=of, repetition=1)


def single_components(*names: str) -> Callable[[StudyOptions], Parts]:
    """Return the parts of a study of single components on the baseline."""

    def parts(options: StudyOptions) -> Parts:
        chosen = [component(options, name) for name in options.designs or names]
        return Parts(arms=[baseline(options), *chosen, repeated(options)], baseline=BASELINE)

    return parts


LANDMARKS = ("original", "per_layer", "position_adaptive", "shared", "bias", "low_rank", "static")
STUDIES.add(
    Definition(
        name="landmarks",
        title="Do landmarks earn their parameters?",
        parts=single_components(*LANDMARKS, "rank+1", "norm_gain"),
    )
)
STUDIES.add(
    Definition(
        name="bucketing",
        title="Is it worth learning where position buckets end?",
        parts=single_components("position_adaptive", "uniform", "learnable", "low_rank", "bias"),
    )
)
