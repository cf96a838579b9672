"""hylorada bound and verify."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command
from hylorada.cli.output import require_place, say
from hylorada.errors import RunError, SpecError
from hylorada.experiments.help_text import LINES_HELP

# bound


def _bound_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("file", help="A file that hylorada compress wrote.")
    add("--data", required=True, help="The text that certifies it: sotu, a file, a folder …")
    add("--split", default="train", help="train, valid or test: the one that it was trained on.")
    add("--lines", default="auto", help=LINES_HELP)
    add("--level", default="document", help="document (unseen ones) or token (these contexts).")
    add("--samples", type=int | None, default=None, help="Documents to draw; all by default.")
    add("--delta", type=float, default=0.05, help="Probability of being wrong.")
    add("--choices", nargs="*", default=[], help="Looked-up choices, as dimension=5 mode=3.")
    add("--model", default=None, help="The base model, if it is not where the file says.")
    add("--max_length", type=int | None, default=None, help="Tokens of context; up to 1024.")
    add("--dtype", default="float32", help="float32 or bfloat16.")
    add("--seed", type=int, default=0, help="Seed of the draws.")
    add("--device", default=None, help="cpu or cuda; chosen by itself.")
    add("--out", required=True, help="The certificate, a JSON file.")


def _bound(options: Namespace) -> None:
    from hylorada.experiments.certificate_table import certificate_table
    from hylorada.experiments.certify import certify
    from hylorada.experiments.measuring import CertifySpec

    require_place("--out", options.out)
    spec = CertifySpec(
        level=options.level,
        split=options.split,
        lines=options.lines,
        samples=options.samples,
        delta=options.delta,
        choices=dict(map(_choice, options.choices)),
        base=options.model,
        max_length=options.max_length,
        dtype=options.dtype,
        seed=options.seed,
        device=options.device,
    )
    certificate = certify(Path(options.file), options.data, Path(options.out), spec)
    Console().print(certificate_table(certificate))
    say(certificate.sentence)


def _choice(word: str) -> tuple[str, int]:
    name, _, count = word.partition("=")
    if not name or not count.isdecimal():
        raise SpecError(f"a choice is written name=options, such as dimension=5; got {word!r}")
    return name, int(count)


# verify


def _verify_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("certificate", help="A file that hylorada bound wrote.")
    add("--data", required=True, help="The text that it is about.")
    add("--file", default=None, help="The compressed adapter, if it is not beside it.")
    add("--model", default=None, help="The base model, if it has moved.")
    add("--device", default=None, help="cpu or cuda; chosen by itself.")


def _verify(options: Namespace) -> None:
    from hylorada.experiments.certify import verify

    verdict = verify(
        Path(options.certificate),
        options.data,
        file=None if options.file is None else Path(options.file),
        base=options.model,
        device=options.device,
    )
    if not verdict.confirmed:
        raise RunError(verdict.sentence)
    print(verdict.sentence)


COMMANDS = {
    "bound": Command(
        "Certify what a compressed adapter is worth on unseen text.",
        "hylorada bound adapter.hyl --data my_texts --out certificate.json",
        _bound_options,
        _bound,
    ),
    "verify": Command(
        "Measure a certificate's model again and confirm it, or say what differs.",
        "hylorada verify certificate.json --data my_texts",
        _verify_options,
        _verify,
    ),
}
