"""The study `allocation`: ways to divide d coordinates between the factors A and B of SubLoRA."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from peft import get_peft_model
from torch import nn
from transformers import PreTrainedModel

from hylorada.errors import SpecError
from hylorada.experiments.config import AdapterSection, SubLoRASection
from hylorada.experiments.run_certificate import CertificateSpec
from hylorada.experiments.studies.components import REPEATED
from hylorada.experiments.studies.options import StudyOptions
from hylorada.experiments.studies.plan import ArmPlan, Contrast, Parts
from hylorada.models import initial
from hylorada.models.pretrained import load, load_tokenizer
from hylorada.names import known
from hylorada.subspace.allocation import AllocationSpec
from hylorada.subspace.model import SubLoRAModel

EQUAL, NEUTRAL = "equal", "size-neutral"
# The base rate; a subspace's vector steps at ten times this rate, its gates at this rate itself.
LEARNING_RATE, GATE_MULTIPLIER = 1e-2, 1.0
RATES = (0.1, 0.4, 1.6, 6.4)  # the vector at 0.01 to 0.64; the best lay between 0.03 and 0.3
# The first question is the statement H1; the others stand beside it, judged on their own.
ASYMMETRIC, BESIDE = "H1", "beside H1"
RANK, ALPHA, DROPOUT = 4, 32.0, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A way to divide the coordinates; `ratio` is B's share where it is fixed."""

    mode: str
    words: str
    ratio: float | None = None
    role: str = "candidate"


DIVISIONS = {
    EQUAL: Division(mode="fixed", ratio=0.5, words="half of the coordinates for A, half for B"),
    "uniform": Division(mode="uniform", words="every coordinate moves A and B together"),
    "B-heavy": Division(mode="fixed", ratio=0.8, words="four of five coordinates for B"),
    "A-heavy": Division(mode="fixed", ratio=0.2, words="four of five coordinates for A"),
    "learned": Division(mode="learned", words="a trained gate for every layer"),
    NEUTRAL: Division(mode="fixed", words="B's share of the parameters", role="reference"),
}
QUESTIONS = {
    "B-heavy": ASYMMETRIC,
    "A-heavy": ASYMMETRIC,
    "learned": BESIDE,
    "uniform": BESIDE,
    NEUTRAL: BESIDE,
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
    budgets = _checked(options.budgets)
    if options.replace:
        raise SpecError(
            "a certificate is about text as it is read, so an allocation study replaces nothing; "
            f"got replace={options.replace}; write the text with hylorada prepare --replace first"
        )
    targets = targets_of(options.model)
    usual = options
    if options.learning_rate is None:
        usual = replace(options, learning_rate=LEARNING_RATE)
    choices = {"configuration": len(names) * len(budgets)}
    if options.tune:
        choices["learning rate"] = len(RATES)
    certificate = CertificateSpec(documents=options.certified_documents, choices=choices)
    arms = [
        arm(usual, name, budget, targets, certificate, first=budget == budgets[0])
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
    return Parts(
        arms=[*arms, again],
        baseline=arms[0].name,
        contrasts=tuple(contrasts(names[1:], budgets)),
        rates=RATES,
    )


def arm(
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
    section = SubLoRASection(
        intrinsic_dim=budget,
        allocation_mode=chosen.mode,
        allocation_ratio=SubLoRASection().allocation_ratio if ratio is None else ratio,
        fused_parts=targets.fused_parts,
    )
    is_base = division == EQUAL
    role = ("baseline" if first else "reference") if is_base else chosen.role
    share = "" if ratio is None else f", B's share {ratio:.2f}"
    found = options.arm(
        arm_name(division, budget),
        role,
        f"d = {budget}: {chosen.words}{share}",
        adapter={
            "method": "sublora",
            "r": RANK,
            "lora_alpha": ALPHA,
            "lora_dropout": DROPOUT,
            "use_rslora": False,
            "target_modules": targets.modules,
        },
        sublora=section,
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


def contrasts(divisions: list[str], budgets: tuple[int, ...]) -> list[Contrast]:
    """Return each division against the equal one over all budgets."""
    return [
        Contrast(
            name=division,
            arms=tuple(arm_name(division, budget) for budget in budgets),
            against_name=EQUAL,
            against=tuple(arm_name(EQUAL, budget) for budget in budgets),
            question=QUESTIONS[division],
        )
        for division in divisions
    ]


def targets_of(source: str) -> Targets:
    """Return what is adapted of a model, and which share of its factors' parameters B has."""
    model = _outline(source)
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    modules: tuple[str, ...]
    if "c_attn" in names:
        modules, fused = ("c_attn", "lm_head"), "qv"
    elif {"q_proj", "v_proj"} <= names:
        modules, fused = ("q_proj", "v_proj", "lm_head"), None
    else:
        raise SpecError(
            "the allocation study adapts q and v, by the names c_attn or q_proj and v_proj; "
            f"{source!r} has neither; take a model of the GPT-2 or Llama kind"
        )
    return Targets(
        modules=modules, fused_parts=fused, share_of_b=_share_of_b(model, modules, fused)
    )


def _outline(source: str) -> PreTrainedModel:
    """Return the modules of a model; a random one needs no weights for that."""
    if source.partition(":")[0] == initial.SOURCE:
        return initial.outline(source, load_tokenizer(source))
    return load(source).model


def _share_of_b(model: nn.Module, modules: tuple[str, ...], fused: str | None) -> float:
    adapter = AdapterSection(
        method="sublora", r=RANK, lora_alpha=ALPHA, use_rslora=False, target_modules=modules
    )
    section = SubLoRASection(intrinsic_dim=1, fused_parts=fused)
    tuner = get_peft_model(model, section.peft_config(adapter)).base_model
    assert isinstance(tuner, SubLoRAModel)
    allocation = tuner.subspace().allocation
    return 1 - allocation.a_size / allocation.full


def _checked(budgets: Sequence[int]) -> tuple[int, ...]:
    """Return each budget once; refuse, before a model is loaded, one that cannot be divided."""
    if not budgets:
        raise SpecError("an allocation study needs at least one budget; give --budgets 1000")
    for budget, division in product(budgets, DIVISIONS.values()):
        if division.ratio is not None:
            AllocationSpec(dim=budget, mode=division.mode, ratio=division.ratio)
    return tuple(dict.fromkeys(budgets))
