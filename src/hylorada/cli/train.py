"""hylorada train: reads YAML files and dotted options of its own."""

import os

from hylorada.cli.output import say

PURPOSE = "Train an adapter: --config FILE, then --section.field=value for what differs."


def train(words: list[str]) -> None:
    """Carry out a training run and say where it lies."""
    from hylorada.experiments.config import parse
    from hylorada.experiments.run import run

    config = parse(words)
    result = run(config)
    if os.environ.get("RANK", "0") != "0":  # several processes have one result
        return
    folder = config.out or f"runs/{result['id']}"
    say(
        f"run {result['id']}: {result['steps']} steps, "
        f"{result['trainable_parameters']:,} trainable parameters, "
        f"validation perplexity {_shown(result['valid_perplexity'])} "
        f"on {result['valid_tokens']:,} tokens → {folder}"
    )


def _shown(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"
