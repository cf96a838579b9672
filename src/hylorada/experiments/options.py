"""What a person chooses of a study, and what it makes of every run."""

import math
from dataclasses import dataclass, field
from typing import Any, cast

from hylorada.errors import SpecError
from hylorada.evaluation.metrics import EvaluationSpec
from hylorada.experiments.config import (
    AdapterSection,
    DataSection,
    ModelSection,
    SubLoRASection,
    TrainConfig,
)
from hylorada.experiments.plan import ArmPlan
from hylorada.training.optimisation import OptimisationSpec
from hylorada.training.settings import TrainingSpec

PLAIN: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}
LOGGED_POINTS = 25
CURVE_BUCKETS = 16
LEARNING_RATE = OptimisationSpec().learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What a person chooses of a study; the defaults suit the embedded model on a laptop.

    Attributes:
        designs: Which arms beside the baseline; None takes the study's own.
        num_train: Training sequences, drawn by each seed.
        num_val: Sequences of the validation text, on which rates are tuned.
        num_test: Sequences of the test text, from its start, on which arms are judged.
        max_length: Tokens in a sequence; in `length` the longest one, None for 8192.
        learning_rate: Base rate; None takes the study's own.
        budgets: Intrinsic dimensions of the study `allocation`.
        certified_documents: Documents drawn for each certificate of `allocation`; all of them
            where the corpus has no more.
        tune: Whether each arm searches its own learning rate first.
        factorial: Whether `ablation` crosses its factors instead of adding one after the other.
        evidence_items: Questions of the evidence-position metric.
        cpu: Stay on the CPU where there is an accelerator.
    """

    model: str = "tiny"
    data: str = "sotu"
    designs: tuple[str, ...] | None = None
    epochs: float = 1.0
    num_train: int = 500
    num_val: int = 100
    num_test: int = 200
    num_landmarks: int = 8
    seeds: tuple[int, ...] = (42, 123, 456)
    max_length: int | None = None
    batch_size: int = 8
    learning_rate: float | None = None
    precision: str = "float32"
    budgets: tuple[int, ...] = (1000, 2000)
    certified_documents: int = 10_000
    lines: str = "auto"
    replace: dict[str, str] = field(default_factory=dict)
    tune: bool = False
    factorial: bool = False
    evidence_items: int = 16
    cpu: bool = False

    def __post_init__(self) -> None:
        """Check what no section of a run checks."""
        for name in ("num_val", "num_test", "num_train", "num_landmarks"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.certified_documents < 2:
            raise SpecError(
                f"certified_documents must be at least 2; got {self.certified_documents}"
            )
        if self.precision not in ("float32", "bfloat16", "autocast"):
            raise SpecError(
                f"precision must be float32, bfloat16 or autocast; got {self.precision!r}"
            )

    def config(
        self, length: int | None = None, sublora: SubLoRASection | None = None, **adapter: Any
    ) -> TrainConfig:
        """Return the run of an arm; `length` keeps the tokens of a step and of the epoch."""
        length, usual = length or self.length, self.length
        batch = max(1, self.batch_size * usual // length)
        sequences = max(1, self.num_train * usual // length)
        steps = math.ceil(self.epochs * math.ceil(sequences / batch))
        settings: dict[str, Any] = {"num_landmarks": self.num_landmarks, **PLAIN, **adapter}
        return TrainConfig(
            model=ModelSection(source=self.model),
            data=DataSection(
                source=self.data,
                length=length,
                num_train=sequences,
                num_val=max(1, self.num_val * usual // length),
                lines=self.lines,
                replace=self.replace,
            ),
            adapter=AdapterSection(**settings),
            sublora=sublora or SubLoRASection(),
            training=TrainingSpec(
                epochs=self.epochs,
                batch_size=batch,
                evaluation_batch_size=batch,
                precision=cast(Any, self.precision),
                log_every=max(1, steps // LOGGED_POINTS),
                progress=False,
                cpu=self.cpu,
                deterministic=True,
            ),
            optimisation=OptimisationSpec(learning_rate=self.learning_rate or LEARNING_RATE),
        )

    def evaluation(self, length: int | None = None) -> EvaluationSpec:
        """Return what is measured of every arm."""
        return EvaluationSpec(
            max_length=length or self.length,
            max_tokens=self.num_test * self.length,
            position_buckets=min(CURVE_BUCKETS, (length or self.length) - 1),
            evidence_items=self.evidence_items,
            progress=False,
        )

    @property
    def length(self) -> int:
        """Return the tokens in a sequence."""
        return self.max_length or 512

    def arm(self, name: str, role: str, description: str, **more: Any) -> ArmPlan:
        """Return an arm; `adapter` and `sublora` hold what it changes, `length` its own length."""
        length, sublora = more.pop("length", None), more.pop("sublora", None)
        adapter = more.pop("adapter", {})
        return ArmPlan(
            name=name,
            role=role,
            description=description,
            config=self.config(length, sublora, **adapter),
            evaluation=self.evaluation(length),
            **more,
        )
