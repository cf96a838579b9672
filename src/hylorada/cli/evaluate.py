"""hylorada evaluate."""

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command
from hylorada.cli.output import require_place, write_json
from hylorada.experiments.help_text import LINES_HELP


def _evaluate_options(parser: ArgumentParser) -> None:
    parser.add_argument("subject", help="A model, an adapter folder or a run folder.")
    parser.add_argument("--data", default="sotu", help="sotu, a file, a folder or a hub name.")
    parser.add_argument("--split", default="test", help="train, valid or test.")
    parser.add_argument("--lines", default="auto", help=LINES_HELP)
    parser.add_argument("--model", default=None, help="The base model of an adapter, if moved.")
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=["ppl", "position_curve", "lim_ppl", "retrieval", "context_gain"],
        help="Of ppl, position_curve, lim_ppl_seed, mid_ppl, lim_ppl, context_gain, retrieval, "
        "cost.",
    )
    parser.add_argument("--max_length", type=int, default=512, help="Tokens of context.")
    parser.add_argument("--max_tokens", type=int | None, default=131_072, help="Tokens read.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of generated items.")
    parser.add_argument("--device", default=None, help="cpu or cuda; chosen by itself.")
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def _evaluate(options: Namespace) -> None:
    from hylorada.evaluation.metrics import EvaluationSpec, require_metrics
    from hylorada.experiments.subject import evaluate_subject

    require_metrics(options.metrics)
    require_place("--json", options.json)
    result = evaluate_subject(
        options.subject,
        data=options.data,
        split=options.split,
        lines=options.lines,
        base=options.model,
        metrics=options.metrics,
        spec=EvaluationSpec(
            max_length=options.max_length, max_tokens=options.max_tokens, seed=options.seed
        ),
        device=options.device,
    )
    write_json(result, options.json)
    if options.json != "-":
        from hylorada.experiments.evaluation_table import evaluation_table

        Console().print(evaluation_table(result))


COMMANDS = {
    "evaluate": Command(
        "Measure a model, an adapter or a run on held-out text.",
        "hylorada evaluate runs/my_run --data sotu --metrics ppl lim_ppl",
        _evaluate_options,
        _evaluate,
    ),
}
