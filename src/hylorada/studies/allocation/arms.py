"""The study `allocation`: ways to divide d coordinates between the factors A and B of SubLoRA."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from hylorada.errors import SpecError
from hylorada.names import known
from hylorada.records.studies import Study
from hylorada.specs.adapters import SubLoRASection
from hylorada.specs.evaluation import CertificateSpec
from hylorada.specs.run import RANDOM
from hylorada.specs.study import StudyOptions
from hylorada.studies.components import REPEATED
from hylorada.studies.definitions import STUDIES, Definition, Parts
from hylorada.studies.plan import ArmPlan, Contrast, arm

if TYPE_CHECKING:
    from hylorada.studies.results import ArmRuns

EQUAL, NEUTRAL = "equal", "size-neutral"
# The base rate; a subspace's vector steps at ten times this rate, its gates at this rate itself.
LEARNING_RATE, GATE_MULTIPLIER = 1e-2, 1.0
RATES = (0.1, 0.4, 1.6, 6.4)  # the vector at 0.01 to 0.64; the best lay between 0.03 and 0.3
# The first question is the statement H1; the others stand beside it, judged on their own.
ASYMMETRIC, BESIDE = "H1", "beside H1"
DROPOUT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A way to divide the coordinates; `ratio` is B's share where it is fixed."""

    mode: str
    words: str
    ratio: float | None = None
    role: str = "candidate"
    question: str = BESIDE


DIVISIONS = {
    EQUAL: Division(mode="fixed", ratio=0.5, words="half of the coordinates for A, half for B"),
    "uniform": Division(mode="uniform", words="every coordinate moves A and B together"),
    "B-heavy": Division(
        mode="fixed", ratio=0.8, words="four of five coordinates for B", question=ASYMMETRIC
    ),
    "A-heavy": Division(
        mode="fixed", ratio=0.2, words="four of five coordinates for A", question=ASYMMETRIC
    ),
    "learned": Division(mode="learned", words="a trained gate for every layer"),
    NEUTRAL: Division(mode="fixed", words="B's share of the parameters", role="reference"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What of a model is adapted: q, v and the head, and B's share of their factors."""

    modules: tuple[str, ...]
    fused_parts: str | None
    share_of_b: float


def allocation_parts(options: StudyOptions) -> Parts:
    """Return every division at every budget, each against the equal one of its budget."""
    wanted = [known(name, DIVISIONS, "design") for name in options.designs or DIVISIONS]
    names = list(dict.fromkeys([EQUAL, *wanted]))
    budgets = tuple(dict.fromkeys(options.budgets))
    if not budgets:
        raise SpecError("an allocation study needs at least one budget; give --budgets 1000")
    for budget, one in product(budgets, DIVISIONS.values()):
        if one.ratio is not None:  # refused before a model is loaded, if it cannot be divided
            SubLoRASection(
                intrinsic_dim=budget, allocation_mode=one.mode, allocation_ratio=one.ratio
            )
    if options.replace:
        raise SpecError(
            "a certificate is about text as it is read, so an allocation study replaces nothing; "
            f"got replace={options.replace}; write the text with hylorada prepare --replace first"
        )
    targets = targets_of(options.model)
    if options.learning_rate is None:
        options = replace(options, learning_rate=LEARNING_RATE)
    rates = {"learning rate": len(RATES)} if options.tune else {}
    choices = {"configuration": len(names) * len(budgets)} | rates
    certificate = CertificateSpec(documents=options.certified_documents, choices=choices)
    arms = [
        divided(options, name, budget, targets, certificate, first=budget == budgets[0])
        for budget in budgets
        for name in names
    ]
    again = replace(
        arms[0],
        name=REPEATED,
        role="self_check",
        description="the equal division again, in another order with other dropout",
        baseline=arms[0].name,
        repetition=1,
    )
    contrasts = tuple(
        Contrast(
            name=name,
            arms=tuple(arm_name(name, budget) for budget in budgets),
            against_name=EQUAL,
            against=tuple(arm_name(EQUAL, budget) for budget in budgets),
            question=DIVISIONS[name].question,
        )
        for name in names[1:]
    )
    return Parts(arms=[*arms, again], baseline=arms[0].name, contrasts=contrasts, rates=RATES)


def divided(
    options: StudyOptions,
    division: str,
    budget: int,
    targets: Targets,
    certificate: CertificateSpec,
    *,
    first: bool,
) -> ArmPlan:
    """Return one division at one budget; the equal one is what the others are compared with."""
    chosen = DIVISIONS[division]
    ratio = targets.share_of_b if division == NEUTRAL else chosen.ratio
    is_base = division == EQUAL
    role = ("baseline" if first else "reference") if is_base else chosen.role
    share = "" if ratio is None else f", B's share {ratio:.2f}"
    section = SubLoRASection(
        intrinsic_dim=budget,
        allocation_mode=chosen.mode,
        lora_dropout=DROPOUT,
        fused_parts=targets.fused_parts,
        target_modules=list(targets.modules),
    )
    found = arm(
        options,
        arm_name(division, budget),
        role,
        f"d = {budget}: {chosen.words}{share}",
        section if ratio is None else replace(section, allocation_ratio=ratio),
        baseline=None if is_base else arm_name(EQUAL, budget),
        certificate=certificate,
    )
    steps = replace(found.config.optimisation, gate_multiplier=GATE_MULTIPLIER)
    return replace(found, config=replace(found.config, optimisation=steps))


def arm_name(division: str, budget: int) -> str:
    """Return what a division at a budget is called."""
    return f"{division} d={budget}"


def division_of(name: str) -> str:
    """Return the division that an arm stands for."""
    return EQUAL if name == REPEATED else name.rpartition(" d=")[0]


def targets_of(source: str) -> Targets:
    """Return what is adapted of a model, and which share of its factors' parameters B has."""
    from peft import get_peft_model

    from hylorada.models.initial import outline
    from hylorada.models.pretrained import load, load_tokenizer
    from hylorada.subspace import SubLoRAConfig, SubLoRAModel

    random = source.partition(":")[0] == RANDOM  # needs no weights to count parameters
    model = outline(source, load_tokenizer(source)) if random else load(source).model
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if "c_attn" in names:
        modules, fused = ["c_attn", "lm_head"], "qv"
    elif {"q_proj", "v_proj"} <= names:
        modules, fused = ["q_proj", "v_proj", "lm_head"], None
    else:
        raise SpecError(
            "the allocation study adapts q and v, by the names c_attn or q_proj and v_proj; "
            f"{source!r} has neither; take a model of the GPT-2 or Llama kind"
        )
    config = SubLoRAConfig(
        intrinsic_dim=1, fused_parts=fused, target_modules=modules, task_type="CAUSAL_LM"
    )
    tuner = get_peft_model(model, config).base_model
    assert isinstance(tuner, SubLoRAModel)
    allocation = tuner.subspace().allocation
    share = 1 - allocation.a_size / allocation.full
    return Targets(modules=tuple(modules), fused_parts=fused, share_of_b=share)


def conclude(study: Study, runs: "Mapping[str, ArmRuns]", ledger: str) -> Study:
    """Return the study with bits, bounds, gates and three statements."""
    from hylorada.studies.allocation.results import conclude_allocation

    return conclude_allocation(study, runs, ledger)


STUDIES.add(
    Definition(
        name="allocation",
        title="How should coordinates be divided between A and B?",
        parts=allocation_parts,
        conclude=conclude,
    )
)
