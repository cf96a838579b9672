"""The configuration of a run: which model, which text, which adapter, how it is trained."""

from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from hylorada.errors import SpecError
from hylorada.names import require_one_of
from hylorada.specs import check, setting
from hylorada.specs.adapters import AdapterSection, HyLoRADASection
from hylorada.specs.evaluation import MAX_LEVELS

LINES = ("auto", "keep", "double", "drop_blank", "documents")
SCALINGS = ("linear", "dynamic", "yarn")
# What is shown or where it is kept changes no number.
WITHOUT_EFFECT = {"training": ("progress", "report_to", "workers"), "data": ("cache",)}
RANDOM = "random"
RANDOM_SEED = 137
Precision = Literal["float32", "bfloat16", "autocast"]
Packing = Literal["blocks", "padded", "packed"]
CODEBOOKS = ("symmetric", "learned")
POSITIVE, NOT_NEGATIVE = "positive and finite", "finite and not negative"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """A model at its random start: a shape and a seed are the whole of its weights.

    `shape` and `tokenizer` are as in `ModelSection`.
    """

    shape: str = "gpt2-small"
    seed: int = RANDOM_SEED
    tokenizer: str = "tiny"
    layers: int | None = setting(None, "Blocks; None takes as many as the shape has.", least=1)

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)
        if self.shape not in SHAPES and not self.config_file.is_file():
            raise SpecError(
                f"shape must be one of {', '.join(SHAPES)} or a folder with config.json; "
                f"got {self.shape!r}"
            )
        if self.seed < 0:
            raise SpecError(f"initial_seed must not be negative; got {self.seed}")

    @property
    def config_file(self) -> Path:
        """Return the file that describes a shape of one's own."""
        return Path(self.shape).expanduser() / "config.json"

    def source(self) -> str:
        """Return the name by which the model is loaded."""
        layers = "" if self.layers is None else f",layers={self.layers}"
        return f"{RANDOM}:{self.shape}{layers},seed={self.seed},tokenizer={self.tokenizer}"

    @classmethod
    def parse(cls, source: str) -> "RandomModel":
        """Return the model of a name such as `random:gpt2-small,seed=3,tokenizer=tiny`."""
        shape, *options = source.removeprefix(RANDOM).removeprefix(":").split(",")
        values = dict(option.partition("=")[::2] for option in options)
        unknown = values.keys() - {"seed", "tokenizer", "layers"}
        numbers = {name: values[name] for name in ("seed", "layers") if name in values}
        if unknown or not all(number.isdecimal() for number in numbers.values()):
            raise SpecError(f"a random model is written {cls().source()!r}; got {source!r}")
        words: dict[str, Any] = {"shape": shape} if shape else {}
        return cls(**words | values | {name: int(number) for name, number in numbers.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a GPT-2; without a vocabulary it takes its tokenizer's, rounded up."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int | None = None


SHAPES = {
    "gpt2-small": Shape(layers=12, width=768, heads=12, context=1024, vocabulary=50304),
    "gpt2-mini": Shape(layers=4, width=256, heads=4, context=1024),
    "gpt2-micro": Shape(layers=2, width=32, heads=2, context=128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSpec:
    """How far and by which rule a model's context is widened.

    Attributes:
        length: Tokens the model shall accept.
        scaling: For rotary positions "linear" (positions divided by the factor), "dynamic" (an NTK
            base that grows with the text, exact within the original context) or "yarn" (low
            frequencies interpolated, high ones kept). Learned positions know only "linear".
        factor: How much to stretch; None is `length` over the model's own context.
    """

    length: int
    scaling: str = "linear"
    factor: float | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.length < 2:
            raise SpecError(f"context length must be at least 2; got {self.length}")
        require_one_of("scaling", self.scaling, SCALINGS)
        if self.factor is not None and not 1 <= self.factor < inf:
            raise SpecError(f"context factor must be finite and at least 1; got {self.factor}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """Which model is adapted."""

    source: str = setting(
        "tiny", "tiny, smollm2, a folder, a GGUF file, a hub name, or random: an untrained model."
    )
    shape: str | None = setting(
        None, "Of a random model: gpt2-small, gpt2-mini, gpt2-micro, or a folder with config.json."
    )
    initial_seed: int = setting(RANDOM_SEED, "Seed of a random model's weights.")
    tokenizer: str | None = setting(
        None, "Of a random model: tiny, another source, or a folder with its files."
    )
    context: int | None = setting(None, "Widen the model's context to this many tokens.")
    scaling: str = setting("linear", "How to widen it: linear, dynamic or yarn.")

    def __post_init__(self) -> None:
        """Check every field."""
        self.context_spec()
        self.full_source()
        given = self.shape or self.tokenizer or self.initial_seed != RANDOM_SEED
        if given and self.source != RANDOM:
            raise SpecError(
                f"shape, initial_seed and tokenizer describe a random model; the source is "
                f"{self.source!r}: set model.source=random or leave them out"
            )

    def full_source(self) -> str:
        """Return the name by which the model is loaded, a random one with all that makes it."""
        if self.source != RANDOM:
            return self.source
        given = {"shape": self.shape, "tokenizer": self.tokenizer, "seed": self.initial_seed}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return RandomModel(**chosen).source()

    def context_spec(self) -> ContextSpec | None:
        """Return how the context is widened, or None."""
        if self.context is None:
            return None
        return ContextSpec(length=self.context, scaling=self.scaling)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """How rows and lines become documents.

    `lines` says what to do with the lines of plain text. "keep" leaves a file as it is; "double"
    empties blank rows and joins all rows by two newlines, as perplexities on WikiText are
    published; "drop_blank" leaves out blank lines; "documents" makes each line that is not blank a
    document, and so streams. "auto" is "double" for WikiText (`wiki.*.raw`, `wiki.*.tokens`, hub
    names that begin with wikitext after their owner) and "keep" elsewhere.
    """

    text_field: str | None = setting(
        None, "Field of jsonl, parquet and hub rows that holds the text; None finds it."
    )
    lines: str = setting(
        "auto",
        "What lines of plain text become: keep, double (joined by two newlines), drop_blank or "
        "documents (one a line); auto is double for WikiText and keep elsewhere.",
        among=LINES,
    )
    replace: dict[str, str] = field(
        default_factory=dict,
        metadata={"help": 'Strings to replace in every text, as JSON: {"<unk>": "unk"}.'},
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)
        if "" in self.replace:
            raise SpecError(
                "replace must not have an empty string to look for; leave that entry out"
            )

    def rewritten(self, text: str) -> str:
        """Return the text with every replacement made, in the order given."""
        for old, new in self.replace.items():
            text = text.replace(old, new)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection(TextSpec):
    """Which text is trained and validated on."""

    source: str = setting(
        "sotu", "sotu, a file, a folder, a folder of prepared tokens, or a hub name."
    )
    length: int = setting(512, "Tokens in a sequence.", least=2)
    packing: Packing = setting(
        "blocks",
        "blocks cuts the stream of all documents, padded takes a document a row, packed fills rows "
        "with whole documents that do not see each other.",
    )
    num_train: int | None = setting(
        None, "Sequences to train on, drawn by the seed; None: all.", least=1
    )
    num_val: int | None = setting(
        100, "Sequences to validate on, from the start; None: all, 0: none.", least=0
    )
    cache: str | None = setting(None, "Where tokens are kept; None: the user's cache folder.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """What a training does; a step is one update of the optimiser."""

    epochs: float = setting(
        1.0, "Passes over the training data; ignored if steps is given.", rule="positive and finite"
    )
    steps: int | None = setting(None, "Updates of the optimiser; None counts epochs.", least=1)
    batch_size: int = setting(
        8, "Sequences per step over all processes: 1 × 8 and 2 × 4 are the same training.", least=1
    )
    accumulation: int = setting(
        1, "Pieces of a batch computed one after the other: less memory.", least=1
    )
    precision: Precision = setting(
        "float32",
        "bfloat16 expects the frozen weights in bfloat16, autocast computes in it from float32 "
        "weights; trained parameters are float32 in every case.",
    )
    gradient_checkpointing: bool = setting(
        False, "Recompute blocks in the backward pass, to save memory."
    )
    chunk_tokens: int = setting(
        1024, "Rows of logits that exist at a time; 0: the model's loss.", least=0
    )
    shifted_group: int | None = setting(
        None,
        "Tokens in a group of shifted sparse attention while training; None attends to everything. "
        "Evaluation always does.",
        least=2,
    )
    evaluate_every: int | None = setting(
        None, "Steps between evaluations; None: at the end only.", least=1
    )
    evaluation_batch_size: int = setting(8, "Sequences in a batch of validation.", least=1)
    keep_best: bool = setting(False, "End with the weights of the best evaluation, not the last.")
    checkpoint_every: int | None = setting(
        100, "Steps between checkpoints; None: at the end only.", least=1
    )
    checkpoints_kept: int = setting(2, "Newest checkpoints kept while training.", least=1)
    log_every: int = setting(10, "Steps between lines of metrics.jsonl.", least=1)
    workers: int = setting(0, "Processes that load data; 0 loads in the training's own.", least=0)
    report_to: tuple[str, ...] = setting((), "Trackers of transformers, such as tensorboard.")
    progress: bool = setting(True, "Show progress bars, on standard error.")
    cpu: bool = setting(False, "Stay on the CPU where there is an accelerator.")
    deterministic: bool = setting(
        False,
        "Prefer kernels that give the same bits every time; a CPU always has them, an accelerator "
        "is a little slower for it.",
    )
    compile: bool = setting(
        False, "Compile blocks and loss: half a minute at the start, then faster steps on a GPU."
    )
    seed: int = setting(
        42, "Of the sequences drawn, their order, the adapter's first values and dropout.", least=0
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)
        if self.batch_size % self.accumulation:
            raise SpecError(
                f"batch_size must be a multiple of accumulation, {self.accumulation}; "
                f"got {self.batch_size}"
            )
        if self.keep_best and self.evaluate_every is None:
            raise SpecError("keep_best needs evaluations during training; set evaluate_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisationSpec:
    """How AdamW steps; rates are per step, multipliers are relative to `learning_rate`."""

    learning_rate: float = setting(
        5e-4, "Highest rate of the LoRA factors, per step.", rule=POSITIVE
    )
    weight_decay: float = setting(
        0.01, "Of matrices; biases, gates, scales, tables and boundaries do not decay.", least=0
    )
    landmark_multiplier: float | None = setting(
        None, "Rate of landmarks; None takes the one measured best for the design.", rule=POSITIVE
    )
    subspace_multiplier: float = setting(
        10.0, "Rate of a subspace's vector; at 10 and the default rate it is 5e-3.", rule=POSITIVE
    )
    gate_multiplier: float = setting(
        20.0, "Rate of the gates that divide A's and B's shares.", rule=POSITIVE
    )
    position_bias_multiplier: float = setting(1.0, "Rate of the position bias.", rule=POSITIVE)
    norm_multiplier: float = setting(1.0, "Rate of norms, where they are trained.", rule=POSITIVE)
    embedding_multiplier: float = setting(
        1.0, "Rate of embeddings, where they are trained.", rule=POSITIVE
    )
    boundary_learning_rate: float | None = setting(
        None, "Absolute rate of learnable boundaries; None: that of landmarks.", rule=POSITIVE
    )
    boundary_frozen_steps: int = setting(
        0, "Steps with fixed buckets before boundaries move.", least=0
    )
    diversity_weight: float = setting(
        0.0, "Weight of the loss that spreads clustered boundaries; zero is off.", least=0
    )
    warmup_share: float = setting(
        0.03,
        "Share of all steps over which the rates rise, before they fall to zero.",
        rule="in [0, 1)",
    )
    max_gradient_norm: float = setting(
        1.0, "Longer gradients are scaled down to this norm; zero is off.", least=0
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisationSpec:
    """How SubLoRA's coordinates, once trained, train on as they will be stored in a file.

    The loss then sees the values that `hylorada compress` writes, which keeps them as they are.
    """

    share: float = setting(
        0.0,
        "Further steps with quantised coordinates, as a share of the training's steps, such as "
        "0.15; zero is off. Needs method sublora.",
        rule=NOT_NEGATIVE,
    )
    kind: str = setting(
        "symmetric",
        "symmetric trains one step whose multiples are the values; learned each value.",
        among=CODEBOOKS,
    )
    levels: int | None = setting(
        None,
        "Number of values, odd for symmetric; null takes as many as compress would, or 11.",
        between=(2, MAX_LEVELS),
    )
    price: float = setting(
        3e-5,
        "Loss in nats per token that saving a bit is worth: more makes shorter files.",
        rule=NOT_NEGATIVE,
    )
    gradual: bool = setting(
        False, "Round a growing share of the coordinates for good, instead of all from the start."
    )
    dead_zone: float = setting(
        0.0,
        "Share of a step, up to 0.5, by which each value but zero begins later: more zeros.",
        between=(0, 0.5),
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)
        if self.levels is not None and self.kind == "symmetric" and self.levels % 2 == 0:
            raise SpecError(f"kind 'symmetric' takes an odd number of levels; got {self.levels}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides the numbers of a run, and where they are written.

    Attributes:
        out: The run's folder; None: `runs/` and the run's id.
    """

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    adapter: AdapterSection = field(default_factory=HyLoRADASection)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    optimisation: OptimisationSpec = field(default_factory=OptimisationSpec)
    quantisation: QuantisationSpec = field(default_factory=QuantisationSpec)
    out: str | None = None

    def __post_init__(self) -> None:
        """Refuse sections that contradict each other."""
        if self.quantisation.share == 0.0:
            return
        if self.adapter.method != "sublora":
            raise SpecError(
                "quantisation needs an adapter that is one vector; got method "
                f"{self.adapter.method!r}; set adapter.method=sublora or quantisation.share=0"
            )
        if self.adapter.rebuilds_modules or self.training.keep_best:
            raise SpecError(
                "quantisation ends with the quantised vector and nothing else; set train_norms, "
                "train_embeddings and keep_best to false"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration in plain types, as YAML and JSON take it."""
        plain: dict[str, Any] = _plain(asdict(self) | {"adapter": self.adapter.settings()})
        return plain

    def deciding_settings(self) -> dict[str, Any]:
        """Return the part of the configuration that decides numbers, in plain types."""
        settings = self.as_dict()
        settings.pop("out")
        for section, names in WITHOUT_EFFECT.items():
            for name in names:
                settings[section].pop(name)
        if self.quantisation.share == 0.0:  # what is off decides nothing
            settings.pop("quantisation")
        return settings


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
