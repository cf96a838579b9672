"""hylorada compress, decompress, bound and verify."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from hylorada.cli.command import (
    Command,
    add_json,
    add_settings,
    chosen,
    deliver,
    require_place,
    say,
)
from hylorada.errors import RunError, SpecError
from hylorada.specs.evaluation import CertifySpec, CompressionSpec


def _compress_options(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="A SubLoRA adapter's folder, or a run's that trained one.")
    parser.add_argument("--out", required=True, help="The file to write, such as adapter.hyl.")
    add_settings(parser, CompressionSpec)
    add_json(parser)


def _compress(options: Namespace) -> None:
    from hylorada.jobs.compress import compress

    require_place("--json", options.json)
    require_place("--out", options.out)
    cost = compress(options.source, Path(options.out), chosen(CompressionSpec, options))
    gates = f" and {cost.gates} gates" if cost.gates else ""
    line = (
        f"{cost.dim:,} coordinates{gates} at {cost.levels} levels: {cost.counted_bits:,} bits "
        f"counted (published estimate {cost.published_estimate_bits:,.0f}), "
        f"{cost.distortion:.2%} of the squared length lost, {cost.file_bytes:,} bytes with the "
        f"configuration → {options.out}"
    )
    deliver(cost, options.json, line)


def _decompress_options(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="A file that hylorada compress wrote.")
    parser.add_argument("--out", required=True, help="A new folder for the PEFT adapter.")
    add_json(parser)


def _decompress(options: Namespace) -> None:
    from hylorada.jobs.compress import decompress

    require_place("--json", options.json)
    cost = decompress(Path(options.file), Path(options.out))
    line = f"{cost.dim:,} coordinates from {cost.counted_bits:,} bits → {options.out}"
    deliver(cost, options.json, line)


def _bound_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("file", help="A file that hylorada compress wrote.")
    add("--data", required=True, help="The text that certifies it: sotu, a file, a folder …")
    add("--out", required=True, help="The certificate, a JSON file.")
    add("--choices", nargs="*", default=[], help="Looked-up choices, as dimension=5 mode=3.")
    add_settings(parser, CertifySpec, without=["choices"], renamed={"base": "model"})


def _bound(options: Namespace) -> None:
    from hylorada.cli.tables import certificate_table
    from hylorada.jobs.certify import certify

    require_place("--out", options.out)
    options.choices = dict(map(_choice, options.choices))
    spec = chosen(CertifySpec, options, renamed={"base": "model"})
    certificate = certify(Path(options.file), options.data, Path(options.out), spec)
    Console().print(certificate_table(certificate))
    say(certificate.sentence)


def _choice(word: str) -> tuple[str, int]:
    name, _, count = word.partition("=")
    if not name or not count.isdecimal():
        raise SpecError(f"a choice is written name=options, such as dimension=5; got {word!r}")
    return name, int(count)


def _verify_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("certificate", help="A file that hylorada bound wrote.")
    add("--data", required=True, help="The text that it is about.")
    add("--file", default=None, help="The compressed adapter, if it is not beside it.")
    add("--model", default=None, help="The base model, if it has moved.")
    add("--device", default=None, help="cpu or cuda; CUDA where there is one by default.")


def _verify(options: Namespace) -> None:
    from hylorada.jobs.certify import verify

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
    "compress": Command(
        "Write a SubLoRA adapter as one small file, its bits counted.",
        "hylorada compress runs/my_run --out adapter.hyl",
        _compress_options,
        _compress,
    ),
    "decompress": Command(
        "Turn a compressed file back into a PEFT adapter, byte for byte what was counted.",
        "hylorada decompress adapter.hyl --out adapter",
        _decompress_options,
        _decompress,
    ),
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
