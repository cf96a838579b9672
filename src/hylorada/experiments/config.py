"""The configuration of a training run: YAML files, dotted overrides, frozen dataclasses."""

import re
from argparse import ArgumentError
from collections import Counter
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

from jsonargparse import ArgumentParser
from peft import LoraConfig, PeftConfig

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.errors import SpecError
from hylorada.experiments.complaints import one_line
from hylorada.experiments.help_text import explained_parser
from hylorada.models.context import ContextSpec
from hylorada.models.initial import DEFAULT_SEED, SOURCE, InitialSpec
from hylorada.subspace.config import SubLoRAConfig
from hylorada.text.corpus import TextSpec
from hylorada.training.optimisation import OptimisationSpec
from hylorada.training.settings import TrainingSpec

# What only HyLoRADA understands; the rest of the adapter section is LoRA's.
OURS = {spec.name for spec in fields(HyLoRADAConfig)} - {spec.name for spec in fields(LoraConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """Which model is adapted.

    Attributes:
        source: tiny, smollm2, a folder, a GGUF file, a hub name, or random: a model at its start.
        shape: Of a random model: gpt2-small, gpt2-mini, gpt2-micro, or a folder with config.json.
        initial_seed: The seed of a random model's weights.
        tokenizer: Of a random model: tiny, another source, or a folder with its files.
        context: Widen the model's context to this many tokens; None keeps it.
        scaling: How: linear, dynamic or yarn.
    """

    source: str = "tiny"
    shape: str | None = None
    initial_seed: int = DEFAULT_SEED
    tokenizer: str | None = None
    context: int | None = None
    scaling: str = "linear"

    def __post_init__(self) -> None:
        """Check every field."""
        self.context_spec()
        self.full_source()
        given = self.shape or self.tokenizer or self.initial_seed != DEFAULT_SEED
        if given and self.source != SOURCE:
            raise SpecError(
                f"shape, initial_seed and tokenizer describe a random model; the source is "
                f"{self.source!r}: set model.source=random or leave them out"
            )

    def full_source(self) -> str:
        """Return the source by which the model is loaded, a random one with all that makes it."""
        if self.source != SOURCE:
            return self.source
        usual = InitialSpec()
        return InitialSpec(
            shape=usual.shape if self.shape is None else self.shape,
            seed=self.initial_seed,
            tokenizer=usual.tokenizer if self.tokenizer is None else self.tokenizer,
        ).source()

    def context_spec(self) -> ContextSpec | None:
        """Return how the context is widened, or None."""
        if self.context is None:
            return None
        return ContextSpec(length=self.context, scaling=self.scaling)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection:
    """Which text is trained and validated on.

    Attributes:
        source: sotu, a file, a folder, a folder of prepared tokens, or a hub name.
        length: Tokens in a sequence.
        packing: "blocks" cuts the stream of all documents, "padded" takes a document a row,
            "packed" fills rows with whole documents that do not see each other.
        num_train: Sequences to train on, drawn by the seed; None takes all.
        num_val: Sequences to validate on, from the start; None takes all, 0 none.
        text_field: Field of jsonl, parquet and hub rows that holds the text; None finds it.
        lines: What lines of plain text become: keep, double (joined by two newlines), drop_blank or
            documents (one a line); auto is double for WikiText and keep elsewhere.
        replace: Strings to replace in every text, such as {"<unk>": "unk"}.
        cache: Where tokens are kept; None: the user's cache folder.
    """

    source: str = "sotu"
    length: int = 512
    packing: Literal["blocks", "padded", "packed"] = "blocks"
    num_train: int | None = None
    num_val: int | None = 100
    text_field: str | None = None
    lines: str = "auto"
    replace: dict[str, str] = field(default_factory=dict)
    cache: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.length < 2:
            raise SpecError(f"length must be at least 2; got {self.length}")
        if self.num_train is not None and self.num_train < 1:
            raise SpecError(f"num_train must be at least 1; got {self.num_train}")
        if self.num_val is not None and self.num_val < 0:
            raise SpecError(f"num_val must not be negative; got {self.num_val}")
        self.text_spec()

    def text_spec(self) -> TextSpec:
        """Return how rows and lines become documents."""
        return TextSpec(text_field=self.text_field, lines=self.lines, replace=self.replace)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSection:
    """What is trained; fields from `r` on are those of `HyLoRADAConfig`.

    Attributes:
        method: "lora" leaves out all that HyLoRADA adds, "sublora" generates LoRA's factors from
            the vector that the sublora section describes, "none" evaluates the frozen model.
        train_norms: Also train every norm as a whole.
        train_embeddings: Also train the embeddings, and a head with weights of its own.
        r: Rank of the LoRA factors.
        lora_alpha: Numerator of the LoRA scaling.
        lora_dropout: Share of the LoRA branch's inputs that dropout sets to zero.
        target_modules: Modules to adapt, by the ends of their names; None: all of attention.
        use_rslora: Scale by α/√r instead of α/r.
        use_dora: Train magnitudes apart from directions.
        landmark_enabled: Add the module that landmark_design names.
        landmark_design: position_adaptive, learnable, original, per_layer or shared; controls at
            the same place are bias, static, low_rank and norm_gain.
        num_landmarks: Landmarks K; the rank of the low_rank control.
        num_position_buckets: Rows B of the position gate.
        bucket_spacing: How positions become buckets: log or uniform.
        max_positions: Tokens of context that the buckets cover; None: data.length.
        bucket_temperature: Softness of the learnable buckets, in bucket_temperature_unit.
        bucket_temperature_unit: Of what it is a share: context, or the width of a bucket.
        landmark_scale: Initial scale; 0 leaves the model unchanged at the start.
        landmark_dropout: Share of the landmark mixture that dropout sets to zero.
        landmark_module: Full name of the final norm; None: found in the model.
        position_bias: Scale each LoRA update by the token's position.
        position_bias_buckets: Entries of the position bias' table.
        share_factors: LoRA factors that equal modules of all layers share: A, B or AB.
    """

    method: Literal["hylorada", "lora", "sublora", "none"] = "hylorada"
    train_norms: bool = False
    train_embeddings: bool = False
    r: int = 8
    lora_alpha: float = 16.0
    lora_dropout: float = 0.05
    target_modules: tuple[str, ...] | None = None
    use_rslora: bool = True
    use_dora: bool = False
    landmark_enabled: bool = True
    landmark_design: str = "position_adaptive"
    num_landmarks: int = 8
    num_position_buckets: int = 32
    bucket_spacing: str = "log"
    max_positions: int | None = None
    bucket_temperature: float = 0.1
    bucket_temperature_unit: str = "context"
    landmark_scale: float = 0.1
    landmark_dropout: float = 0.0
    landmark_module: str | None = None
    position_bias: bool = True
    position_bias_buckets: int = 64
    share_factors: str | None = None

    def __post_init__(self) -> None:
        """Check every field, through the configuration it becomes."""
        self.peft_config()

    def peft_config(self, **more: Any) -> HyLoRADAConfig:
        """Return the PEFT configuration; `more` adds fields of it that a run computes."""
        own = {"method", "train_norms", "train_embeddings", "target_modules"}
        values = {name: value for name, value in asdict(self).items() if name not in own}
        if self.method == "lora":
            # Our LoRA without additions, not PEFT's own: the same targets and the same arithmetic.
            values = {name: value for name, value in values.items() if name not in OURS}
            values |= {"landmark_enabled": False, "position_bias": False}
        targets = None if self.target_modules is None else list(self.target_modules)
        return HyLoRADAConfig(target_modules=targets, task_type="CAUSAL_LM", **values, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubLoRASection:
    """The subspace of method sublora; the fields are those of `SubLoRAConfig`.

    Attributes:
        intrinsic_dim: Trained coordinates d.
        allocation_mode: "uniform", "fixed" or "learned".
        allocation_ratio: B's share of the coordinates in fixed mode.
        gate_sharpness: C of the soft mask in learned mode.
        gate_sharpness_start: C at the start, annealed to gate_sharpness; None keeps it.
        relative_sharpness: Count C per layer's slice instead of per coordinate.
        projection: grouped, kron_qr, fastfood, sparse or dense.
        projection_seed: Seed of the projections and of the frozen start of A.
        fused_parts: Which of q, k and v of GPT-2's fused c_attn are adapted, such as "qv".
    """

    intrinsic_dim: int = 1000
    allocation_mode: str = "uniform"
    allocation_ratio: float = 0.5
    gate_sharpness: float = 10.0
    gate_sharpness_start: float | None = None
    relative_sharpness: bool = False
    projection: str = "grouped"
    projection_seed: int = 137
    fused_parts: str | None = None

    def __post_init__(self) -> None:
        """Check every field, through the configuration it becomes."""
        self.peft_config(AdapterSection())

    def peft_config(self, adapter: AdapterSection, **more: Any) -> SubLoRAConfig:
        """Return the PEFT configuration; rank, scaling and targets come from `adapter`."""
        if adapter.use_dora:
            raise SpecError("method 'sublora' generates LoRA's factors only; set use_dora=False")
        targets = None if adapter.target_modules is None else list(adapter.target_modules)
        return SubLoRAConfig(
            task_type="CAUSAL_LM",
            r=adapter.r,
            lora_alpha=adapter.lora_alpha,
            lora_dropout=adapter.lora_dropout,
            use_rslora=adapter.use_rslora,
            target_modules=targets,
            **asdict(self),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides the numbers of a run, and where they are written.

    Attributes:
        out: The run's folder; None: `runs/` and the run's id.
    """

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    adapter: AdapterSection = field(default_factory=AdapterSection)
    sublora: SubLoRASection = field(default_factory=SubLoRASection)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    optimisation: OptimisationSpec = field(default_factory=OptimisationSpec)
    out: str | None = None

    def __post_init__(self) -> None:
        """Check what the sections say together."""
        if self.adapter.method == "sublora":
            self.peft_config()
        elif self.sublora != SubLoRASection():
            raise SpecError(
                f"the sublora section needs adapter.method=sublora; the method is "
                f"{self.adapter.method!r}"
            )

    def peft_config(self, **more: Any) -> PeftConfig:
        """Return the configuration of the adapter; `more` adds fields that a run computes."""
        if self.adapter.method == "sublora":
            return self.sublora.peft_config(self.adapter, **more)
        return self.adapter.peft_config(**more)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration in plain types, as YAML and JSON take it."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--config` and the dotted options of a training run to a parser."""
    parser.add_argument("--config", action="config", help="A YAML file with these options.")
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)
    parser.add_argument("--out", type=str | None, default=None, help="The run's folder.")


def parse(argv: list[str]) -> TrainConfig:
    """Return the configuration that a command line describes.

    `--data.num_train`, `--data.num-train` and, where only one section has it, `--num-train` are
    the same option.
    """
    parser = explained_parser(
        "hylorada train",
        "Train an adapter on a model.",
        "hylorada train --config configs/train.yaml --training.epochs=2",
        notes="An option that only one section has needs no section: --epochs=2 is the same.",
        usage="hylorada train [--config FILE] [--section.field=VALUE ...] [--out FOLDER]",
    )
    add_arguments(parser)
    try:
        parsed = parser.parse_args([normalised(argument) for argument in argv])
    except ArgumentError as error:
        options = {name: UNIQUE.get(name, name) for name in LEAVES}
        raise SpecError(one_line(str(error), options, parser)) from error
    sections = {name: build(**parsed[name].as_dict()) for name, build in SECTIONS.items()}
    return TrainConfig(**sections, out=parsed["out"])


def normalised(argument: str) -> str:
    """Return an option with underscores and its section; anything else as it is."""
    found = re.fullmatch(r"--([A-Za-z][\w.-]*)(=.*)?", argument, flags=re.DOTALL)
    if found is None:
        return argument
    name = found.group(1).replace("-", "_")
    return f"--{UNIQUE.get(name, name)}{found.group(2) or ''}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


SECTIONS: dict[str, Any] = {
    spec.name: spec.type for spec in fields(TrainConfig) if is_dataclass(spec.type)
}
LEAVES = Counter(spec.name for section in SECTIONS.values() for spec in fields(section))
UNIQUE = {
    spec.name: f"{name}.{spec.name}"
    for name, section in SECTIONS.items()
    for spec in fields(section)
    if LEAVES[spec.name] == 1
}
