"""Quantisation-aware training through `hylorada train`: what is validated is what is stored."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from safetensors.torch import load_file
from transformers import TrainerCallback

from hylorada.cli.train import parse
from hylorada.errors import SpecError
from hylorada.jobs.assembly import load_data, load_model
from hylorada.jobs.compress import compress, decompress
from hylorada.jobs.pipeline import train_run
from hylorada.jobs.run import run
from hylorada.records.runs import RunResult
from hylorada.specs.evaluation import CompressionSpec
from hylorada.specs.run import RunConfig
from hylorada.training.trainer import validation_loss
from tests.small_run import small_arguments

WEIGHTS = "adapter_model.safetensors"
ADAPTER = [
    "--adapter.method=sublora",
    "--adapter.intrinsic_dim=80",
    "--adapter.r=2",
    "--learning_rate=0.01",
    "--epochs=4",
    "--checkpoint_every=4",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


def described(place: Path, out: Path, *options: str) -> RunConfig:
    """Return a run of 24 steps and, where it is quantised by half, 12 more."""
    return parse([*small_arguments(place), *ADAPTER, *options, f"--out={out}"])


def test_what_was_validated_is_what_the_file_decodes_to(place: Path, tmp_path: Path) -> None:
    config = described(place, tmp_path / "run", "--quantisation.share=0.5")
    result = train_run(config)
    assert result.steps == 36
    assert result.trainable_parameters == 80
    cost = compress(str(tmp_path / "run"), tmp_path / "run.hyl", CompressionSpec())
    assert cost.distortion == 0.0
    decompress(tmp_path / "run.hyl", tmp_path / "decoded")
    stored = load_file(tmp_path / "run" / "adapter" / WEIGHTS)
    decoded = load_file(tmp_path / "decoded" / WEIGHTS)
    assert {name: t.numpy().tobytes() for name, t in decoded.items()} == {
        name: t.numpy().tobytes() for name, t in stored.items()
    }
    base = load_model(config)
    model = PeftModel.from_pretrained(base.model, str(tmp_path / "decoded"))
    valid = load_data(config, base.tokenizer).valid
    assert valid is not None
    loss, _ = validation_loss(model, valid, training=config.training, folder=tmp_path / "again")
    assert loss == pytest.approx(result.valid_loss, rel=1e-6)
    assert len((tmp_path / "run" / "quantised.jsonl").read_text().splitlines()) >= 2
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_at_as_many_bits_it_keeps_more_than_quantising_afterwards(
    place: Path, tmp_path: Path
) -> None:
    options = ("--quantisation.share=0.5", "--quantisation.levels=3", "--quantisation.price=0")
    trained = train_run(described(place, tmp_path / "trained", *options))
    plain = train_run(described(place, tmp_path / "plain"))
    bits = compress(str(tmp_path / "trained"), tmp_path / "trained.hyl", CompressionSpec())
    rounded = CompressionSpec(method="symmetric", levels=3)
    after = compress(str(tmp_path / "plain"), tmp_path / "plain.hyl", rounded)
    assert bits.levels <= 3
    assert bits.counted_bits <= 1.1 * after.counted_bits
    decompress(tmp_path / "plain.hyl", tmp_path / "rounded")
    config = described(place, tmp_path / "x")
    base = load_model(config)
    model = PeftModel.from_pretrained(base.model, str(tmp_path / "rounded"))
    valid = load_data(config, base.tokenizer).valid
    assert valid is not None
    loss, _ = validation_loss(model, valid, training=config.training, folder=tmp_path / "again")
    assert plain.valid_loss is not None
    assert trained.valid_loss is not None
    assert trained.valid_loss < loss


def test_a_price_makes_the_file_shorter(place: Path, tmp_path: Path) -> None:
    bits = []
    for price in ("0", "0.01"):
        out = tmp_path / price
        train_run(
            described(
                place,
                out,
                "--quantisation.share=0.5",
                "--quantisation.levels=7",
                f"--quantisation.price={price}",
            )
        )
        bits.append(compress(str(out), tmp_path / "file", CompressionSpec()).counted_bits)
    assert bits[1] < bits[0]


@pytest.mark.parametrize(
    "options",
    [
        ("--quantisation.gradual=true", "--quantisation.levels=5", "--quantisation.dead_zone=0.2"),
        ("--quantisation.kind=learned", "--quantisation.levels=4"),
        ("--adapter.allocation_mode=learned",),
    ],
    ids=["gradual", "list", "gates"],
)
def test_every_way_ends_in_values_that_a_file_keeps(
    options: tuple[str, ...], place: Path, tmp_path: Path
) -> None:
    config = described(place, tmp_path / "run", "--quantisation.share=0.25", *options)
    result = train_run(config)
    cost = compress(str(tmp_path / "run"), tmp_path / "run.hyl", CompressionSpec())
    assert cost.distortion == 0.0
    decompress(tmp_path / "run.hyl", tmp_path / "decoded")
    stored = load_file(tmp_path / "run" / "adapter" / WEIGHTS)
    decoded = load_file(tmp_path / "decoded" / WEIGHTS)
    assert all(decoded[name].equal(tensor) for name, tensor in stored.items())
    assert sum(tensor.numel() for tensor in stored.values()) == result.trainable_parameters


class KilledError(Exception):
    """Stands for a signal."""


class KilledAt(TrainerCallback):
    """Ends the training at a step of its second part."""

    def __init__(self, steps: int, at: int) -> None:
        self.steps, self.at = steps, at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        if state.max_steps == self.steps and state.global_step == self.at:
            raise KilledError


@pytest.mark.parametrize("gradual", [False, True])
@pytest.mark.parametrize(("steps", "at"), [(24, 6), (12, 2), (12, 6)])
def test_a_killed_run_resumes_to_the_same_numbers(
    gradual: bool, steps: int, at: int, place: Path, tmp_path: Path
) -> None:
    options = ["--quantisation.share=0.5", f"--quantisation.gradual={str(gradual).lower()}"]
    config = described(place, tmp_path / "whole", *options, "--quantisation.levels=5")
    whole = train_run(config)
    resumed = replace(config, out=str(tmp_path / "resumed"))
    base = load_model(resumed)
    data = load_data(resumed, base.tokenizer)
    with pytest.raises(KilledError):
        run(resumed, base, data, callbacks=[KilledAt(steps, at)])
    found = train_run(resumed)
    assert numbers(found) == numbers(whole)
    for name in ("adapter/" + WEIGHTS, "metrics.jsonl", "quantised.jsonl"):
        assert (tmp_path / "resumed" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes(), name


def numbers(result: RunResult) -> tuple[object, ...]:
    return (result.id, result.steps, result.train_loss, result.valid_loss, result.valid_tokens)


# Refusals


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--adapter.method=lora"], "an adapter that is one vector; got method 'lora'"),
        (["--adapter.method=none"], "got method 'none'; set adapter.method=sublora"),
        (["--adapter.method=sublora", "--train_norms=true"], "quantised vector and nothing else"),
        (
            ["--adapter.method=sublora", "--keep_best=true", "--evaluate_every=1"],
            "quantised vector and nothing else",
        ),
        (["--adapter.method=sublora", "--quantisation.levels=4"], "odd number of levels; got 4"),
        (["--adapter.method=sublora", "--quantisation.levels=300"], "between 2 and 255; got 300"),
        (["--adapter.method=sublora", "--quantisation.kind=best"], "one of symmetric, learned"),
        (["--adapter.method=sublora", "--quantisation.price=-1"], "finite and not negative"),
        (["--adapter.method=sublora", "--quantisation.dead_zone=0.6"], "between 0 and 0.5"),
    ],
)
def test_what_cannot_be_quantised_is_refused_in_a_line(options: list[str], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint) as caught:
        parse([*options, "--quantisation.share=0.1"])
    assert "\n" not in str(caught.value)


def test_a_run_that_is_not_quantised_has_the_id_it_always_had() -> None:
    plain = RunConfig()
    assert "quantisation" not in plain.deciding_settings()
    quantised = parse(["--adapter.method=sublora", "--quantisation.share=0.1"])
    assert quantised.deciding_settings()["quantisation"]["share"] == 0.1
    assert math.isclose(quantised.deciding_settings()["quantisation"]["price"], 3e-5)
