"""hylorada demo, compare and report."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command
from hylorada.cli.output import say
from hylorada.experiments.help_text import LINES_HELP

# compare

ALLOCATION = "hylorada compare allocation --budgets 1000 2000 --seeds 42 123 999 --tune"
DESIGNS = (
    "original, per_layer, position_adaptive, shared, learnable, uniform, bias, static, low_rank, "
    "norm_gain, rank+1, dora, position_bias"
)
DIVISIONS = "equal, uniform, B-heavy, A-heavy, learned, size-neutral"
QUESTIONS = f"""The studies:
  landmarks   Do landmarks earn their parameters?
  bucketing   Is it worth learning where position buckets end?
  ablation    What does each component add?
  length      Does the gain last in longer contexts?
  allocation  How should SubLoRA's coordinates be divided between A and B?

Another example:
  {ALLOCATION}"""


def _compare_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("study", help="landmarks, bucketing, ablation, length or allocation.")
    add(
        "--model",
        default="tiny",
        help="tiny, smollm2, a folder, a GGUF file, a hub name or random:…",
    )
    add("--data", default="sotu", help="sotu, a file, a folder or a hub name.")
    add("--lines", default="auto", help=LINES_HELP)
    add("--replace", type=dict[str, str], default={}, help="Strings to replace, as JSON.")
    add("--epochs", type=float, default=1.0, help="Passes over the training sequences.")
    add("--num_train", type=int, default=500, help="Training sequences, drawn by each seed.")
    add("--num_val", type=int, default=100, help="Sequences on which rates are tuned.")
    add("--num_test", type=int, default=200, help="Sequences on which arms are judged.")
    add("--num_landmarks", type=int, default=8, help="Landmarks of every design.")
    add(
        "--designs",
        nargs="+",
        default=None,
        help=f"Arms beside the baseline, of {DESIGNS}; in ablation of +DoRA, '+position bias', "
        "+position_adaptive, +learnable (with --factorial landmarks and controls); in allocation "
        f"of {DIVISIONS}; null takes the study's own.",
    )
    add("--seeds", type=int, nargs="+", default=[42, 123, 456], help="One block of arms each.")
    add("--max_length", type=int | None, default=None, help="Tokens in a sequence; 512.")
    add("--batch_size", type=int, default=8, help="Sequences in a step.")
    add("--learning_rate", type=float | None, default=None, help="5e-4; in allocation 1e-2.")
    add("--precision", default="float32", help="float32, bfloat16 or autocast.")
    add("--tune", action="store_true", help="Search a learning rate for every arm first.")
    add("--factorial", action="store_true", help="Cross the factors of an ablation.")
    add("--budgets", type=int, nargs="+", default=[1000, 2000], help="Coordinates, in allocation.")
    add("--certified_documents", type=int, default=10_000, help="Drawn for its certificates.")
    add("--evidence_items", type=int, default=16, help="Questions of the evidence metric.")
    add("--cpu", action="store_true", help="Stay on the CPU where there is an accelerator.")
    add("--engine", default="local", help="local, or ray for a cluster (extra 'cluster').")
    add("--workers", type=int | None, default=None, help="Runs at a time.")
    add("--ledger", default="runs", help="Folder or URL of runs, shared by studies.")
    add("--out", default=None, help="Folder of the study; studies/NAME.")


def _compare(options: Namespace) -> None:
    from hylorada.experiments.studies import StudyOptions
    from hylorada.experiments.studies.tables import show
    from hylorada.experiments.study import Place, compare

    chosen = options.as_dict()
    study = chosen.pop("study")
    out = Path(chosen.pop("out") or Path("studies") / study)
    place = Place(
        out=out,
        command=chosen.pop("typed"),
        **{name: chosen.pop(name) for name in ("engine", "workers", "ledger")},
    )
    for name in ("designs", "seeds", "budgets"):
        chosen[name] = None if chosen[name] is None else tuple(chosen[name])
    console = Console()
    show(compare(study, StudyOptions(**chosen), place, console), console)
    say(f"hylorada report {out} draws the page.")


# report


def _report_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", help="A study's folder, a folder of studies, or a run's folder.")
    parser.add_argument("--out", default="report.html", help="The page, one file.")
    parser.add_argument("--figures", nargs="*", default=[], help="Also as files: svg png pdf.")
    parser.add_argument("--tables", nargs="*", default=[], help="Also as files: csv tex.")


def _report(options: Namespace) -> None:
    from hylorada.report.page import write

    page = write(
        Path(options.folder),
        Path(options.out),
        figures=" ".join(options.figures),
        tables=" ".join(options.tables),
    )
    print(f"The page lies in {page}.")


# demo


def _demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="demo", help="Folder for the runs and the report.")


def _demo(options: Namespace) -> None:
    from hylorada.experiments.demo import demo, farewell
    from hylorada.report.page import write

    out, console = Path(options.out), Console()
    study = demo(out, console)
    farewell(study, write(out, out / "report.html"), console)


COMMANDS = {
    "demo": Command(
        "Compare adapters on the embedded model and text, and report.",
        "hylorada demo --out demo",
        _demo_options,
        _demo,
    ),
    "compare": Command(
        "Ask whether a component earns its parameters: arms, seeds, controls, a verdict.",
        "hylorada compare landmarks --seeds 42 123 456 --tune --out studies/landmarks",
        _compare_options,
        _compare,
        QUESTIONS,
    ),
    "report": Command(
        "Draw the page of a study: the verdict first, then tables and figures.",
        "hylorada report studies/landmarks --out report.html --figures svg",
        _report_options,
        _report,
    ),
}
