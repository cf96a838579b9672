"""What a person chooses of a study, and what it makes of every run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args, get_type_hints

from hylorada.errors import SpecError
from hylorada.evaluation.metrics import EvaluationSpec
from hylorada.experiments.config import (
    AdapterSection,
    DataSection,
    ModelSection,
    SubLoRASection,
    TrainConfig,
)
from hylorada.experiments.studies.plan import ArmPlan
from hylorada.names import require_one_of
from hylorada.training.optimisation import OptimisationSpec
from hylorada.training.settings import TrainingSpec

PLAIN: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}
LOGGED_POINTS = 25
CURVE_BUCKETS = 16
PRECISIONS = get_args(get_type_hints(TrainingSpec)["precision"])


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
        counts = ("num_val", "num_test", "num_train", "num_landmarks", "batch_size")
        least = dict.fromkeys(counts, 1) | {"certified_documents": 2, "max_length": 2}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise SpecError(f"{name} must be at least {bound}; got {value}")
        require_one_of("precision", self.precision, PRECISIONS)
        TrainingSpec(epochs=self.epochs)  # before steps are counted with it

    @property
    def length(self) -> int:
        """Return the tokens in a sequence."""
        return 512 if self.max_length is None else self.max_length

    def arm(
        self,
        name: str,
        role: str,
        description: str,
        *,
        length: int | None = None,
        adapter: Mapping[str, Any] = {},
        sublora: SubLoRASection | None = None,
        **more: Any,
    ) -> ArmPlan:
        """Return an arm; `adapter` and `sublora` hold what it changes, `length` its own length."""
        length = self.length if length is None else length
        return ArmPlan(
            name=name,
            role=role,
            description=description,
            config=self._config(length, adapter, sublora or SubLoRASection()),
            evaluation=self._evaluation(length),
            **more,
        )

    def _config(
        self, length: int, adapter: Mapping[str, Any], sublora: SubLoRASection
    ) -> TrainConfig:
        """Return the run of an arm; its length keeps the tokens of a step and of the epoch."""
        usual = self.length
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
            sublora=sublora,
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
            optimisation=OptimisationSpec()
            if self.learning_rate is None
            else OptimisationSpec(learning_rate=self.learning_rate),
        )

    def _evaluation(self, length: int) -> EvaluationSpec:
        """Return what is measured of an arm: the same text in every length."""
        return EvaluationSpec(
            max_length=length,
            max_tokens=self.num_test * self.length,
            position_buckets=min(CURVE_BUCKETS, length - 1),
            evidence_items=self.evidence_items,
            progress=False,
        )
