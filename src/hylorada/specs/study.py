"""What a person chooses of a study, and where it works."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hylorada.names import known
from hylorada.specs import check, setting
from hylorada.specs.run import DataSection, ModelSection, Precision, TrainingSpec

ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What a person chooses of a study; the defaults suit the embedded model on a laptop."""

    model: str = setting("tiny", "tiny, smollm2, a folder, a GGUF file, a hub name or random:…")
    data: str = setting("sotu", "sotu, a file, a folder or a hub name.")
    lines: str = setting("auto", "What lines of plain text become; see hylorada train --help.")
    replace: dict[str, str] = field(
        default_factory=dict, metadata={"help": "Strings to replace in every text, as JSON."}
    )
    epochs: float = setting(1.0, "Passes over the training sequences.")
    num_train: int = setting(500, "Training sequences, drawn by each seed.", least=1)
    num_val: int = setting(100, "Sequences of the validation text; tuning uses them.", least=1)
    num_test: int = setting(200, "Sequences of the test text, from its start.", least=1)
    num_landmarks: int = setting(8, "Landmarks of every design.", least=1)
    designs: tuple[str, ...] | None = setting(
        None,
        "Arms beside the baseline, by name; null takes the study's own. hylorada list designs "
        "shows landmark designs and controls.",
    )
    seeds: tuple[int, ...] = setting((42, 123, 456), "One block of arms each.")
    max_length: int | None = setting(
        None, "Tokens in a sequence; null: 512. In length the longest one; null: 8192.", least=2
    )
    batch_size: int = setting(8, "Sequences in a step.", least=1)
    learning_rate: float | None = setting(None, "Base rate; null: 5e-4, in allocation 1e-2.")
    precision: Precision = setting("float32", "float32, bfloat16 or autocast.")
    tune: bool = setting(False, "Search a learning rate for every arm first.")
    factorial: bool = setting(False, "Cross the factors of an ablation.")
    budgets: tuple[int, ...] = setting((1000, 2000), "Coordinates, in allocation.")
    certified_documents: int = setting(
        10_000, "Documents drawn for each certificate of allocation, or all of fewer.", least=2
    )
    evidence_items: int = setting(16, "Questions of the evidence metric.")
    cpu: bool = setting(False, "Stay on the CPU where there is an accelerator.")

    def __post_init__(self) -> None:
        """Check what no section of a run checks."""
        check(self)
        # The sections of a run check the rest, before steps are counted with it.
        TrainingSpec(epochs=self.epochs, precision=self.precision)
        DataSection(lines=self.lines, replace=self.replace)
        ModelSection(source=self.model)

    @property
    def length(self) -> int:
        """Return the tokens in a sequence."""
        return 512 if self.max_length is None else self.max_length


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """Where a study works: its folder, the ledger of its runs, and the engine that runs them."""

    out: Path
    ledger: str = setting("runs", "Folder or URL of runs; studies that share it share runs.")
    engine: str = setting("local", "local, or ray for a cluster (extra 'cluster').")
    workers: int | None = setting(
        None, "Runs at a time; null lets the engine choose, 0 runs them in this process.", least=0
    )
    command: str = ""

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)
        known(self.engine, ENGINES, "engine")

    @property
    def runs(self) -> str:
        """Return the ledger as every process finds it, wherever it was started."""
        if urlsplit(self.ledger).scheme:
            return self.ledger
        return str(Path(self.ledger).expanduser().absolute())
