"""hylorada compress and hylorada decompress."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hylorada.cli.command import Command
from hylorada.cli.output import require_place, say, write_json


def _compress_options(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="A SubLoRA adapter's folder, or a run's that trained one.")
    parser.add_argument("--out", required=True, help="The file to write, such as adapter.hyl.")
    parser.add_argument(
        "--method",
        default="auto",
        help="auto, symmetric, uniform, kmeans. auto keeps what training quantised, and otherwise "
        "looks for the fewest bits at --distortion; uniform is the published procedure.",
    )
    parser.add_argument(
        "--levels", type=int | None, default=None, help="Number of values; 11, or auto's choice."
    )
    parser.add_argument(
        "--distortion",
        type=float,
        default=0.05,
        help="Share of the vector's squared length that auto may lose: more is shorter.",
    )
    parser.add_argument("--gate_bits", type=int, default=6, help="Bits a gate, if there are any.")
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def _compress(options: Namespace) -> None:
    from hylorada.experiments.compress import CompressionSpec, compress

    require_place("--json", options.json)
    require_place("--out", options.out)
    spec = CompressionSpec(
        method=options.method,
        levels=options.levels,
        distortion=options.distortion,
        gate_bits=options.gate_bits,
    )
    result = compress(options.source, Path(options.out), spec)
    write_json(result, options.json)
    if options.json != "-":
        gates = f" and {result['gates']} gates" if result["gates"] else ""
        say(
            f"{result['dim']:,} coordinates{gates} at {result['levels']} levels: "
            f"{result['counted_bits']:,} bits counted (published estimate "
            f"{result['published_estimate_bits']:,.0f}), {result['distortion']:.2%} of the squared "
            f"length lost, {result['file_bytes']:,} bytes with the configuration → {options.out}"
        )


def _decompress_options(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="A file that hylorada compress wrote.")
    parser.add_argument("--out", required=True, help="A new folder for the PEFT adapter.")
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def _decompress(options: Namespace) -> None:
    from hylorada.experiments.compress import decompress

    require_place("--json", options.json)
    result = decompress(Path(options.file), Path(options.out))
    write_json(result, options.json)
    if options.json != "-":
        say(f"{result['dim']:,} coordinates from {result['counted_bits']:,} bits → {options.out}")


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
}
