"""hylorada evaluate."""

from argparse import ArgumentParser, Namespace

from hylorada.cli.command import Command, add_json, add_settings, chosen, deliver, require_place
from hylorada.specs.evaluation import DEFAULT_METRICS, EvaluationSpec
from hylorada.specs.run import TextSpec


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("subject", help="A model, an adapter folder or a run folder.")
    add("--data", default="sotu", help="sotu, a file, a folder or a hub name (default: sotu)")
    add("--split", default="test", help="train, valid or test (default: test)")
    add_settings(parser, TextSpec, only=["lines"])
    add("--model", default=None, help="The base model of an adapter, if it has moved.")
    usual = f"hylorada list metrics shows them (default: {' '.join(DEFAULT_METRICS)})"
    add("--metrics", nargs="+", default=DEFAULT_METRICS, metavar="TEXT", help=usual)
    add_settings(parser, EvaluationSpec)
    add("--device", default=None, help="cpu or cuda; CUDA where there is one by default.")
    add_json(parser)


def _evaluate(options: Namespace) -> None:
    from hylorada.cli.tables import evaluation_table
    from hylorada.evaluation.metrics import require_metrics
    from hylorada.jobs.evaluate import evaluate_subject

    require_metrics(options.metrics)
    require_place("--json", options.json)
    result = evaluate_subject(
        options.subject,
        data=options.data,
        split=options.split,
        lines=options.lines,
        base=options.model,
        metrics=options.metrics,
        spec=chosen(EvaluationSpec, options),
        device=options.device,
    )
    deliver(result, options.json, evaluation_table(result))


COMMANDS = {
    "evaluate": Command(
        "Measure a model, an adapter or a run on held-out text.",
        "hylorada evaluate runs/my_run --data sotu --metrics ppl lim_ppl",
        _options,
        _evaluate,
    ),
}
