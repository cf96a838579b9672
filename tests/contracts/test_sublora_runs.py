"""SubLoRA from the command line: the section, random models, whole runs, several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from peft import PeftModel
from safetensors.torch import load_file

from hylorada.cli.train import parse
from hylorada.errors import SpecError
from hylorada.jobs.assembly import adapter_config, add_adapter, load_model
from hylorada.jobs.pipeline import train_run
from hylorada.specs.adapters import SubLoRASection
from hylorada.specs.run import RunConfig
from hylorada.subspace.config import SubLoRAConfig
from hylorada.training.optimisation import component_rates
from tests.small_run import small_arguments
from tests.unit.subspace.small import space

CONFIG = Path(__file__).parents[2] / "configs" / "sublora_train.yaml"
OPTIONS = [
    "--adapter.method=sublora",
    "--sublora.intrinsic_dim=60",
    "--adapter.r=2",
    "--lora_dropout=0",
]
MICRO = ["--model.source=random", "--model.shape=gpt2-micro", "--model.initial_seed=3"]


def test_the_section_becomes_the_peft_configuration() -> None:
    config = parse(
        [
            f"--config={CONFIG}",
            "--sublora.intrinsic_dim=1000",
            "--sublora.allocation_mode=fixed",
            "--sublora.allocation-ratio=0.8",
        ]
    )
    found = adapter_config(config.adapter)
    assert isinstance(found, SubLoRAConfig)
    assert (found.r, found.lora_alpha, found.scaling(), found.lora_dropout) == (4, 32, 8.0, 0.1)
    assert found.split() == (200, 800)
    assert (found.target_modules, found.target_head) == ({"c_attn"}, True)
    assert found.fused_parts == "qv"
    rates = component_rates(config.optimisation, "")
    assert rates["subspace"] == pytest.approx(5e-3)
    assert rates["gates"] == pytest.approx(1e-2)


def test_the_shipped_configuration_has_the_counts_of_the_paper() -> None:
    options = ["--model.tokenizer=tiny", "--model.shape=gpt2-micro"]
    config = parse([f"--config={CONFIG}", *options])
    model = add_adapter(load_model(config).model, config)
    allocation = space(model).allocation
    # Two layers of width 32: r (32 + 32) for q and for v, r (32 + 2048) for the head.
    assert allocation.full == 2 * 2 * 4 * 64 + 4 * (32 + 2048)
    assert {target.name.split(".")[-2] for target in allocation.layout} == {"q", "v", "lm_head"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapter.intrinsic_dim=9"], "is a setting of method sublora; the method is hylorada"),
        (
            ["--adapter.method=sublora", "--adapter.allocation_mode=shared"],
            "uniform, fixed, learned",
        ),
        (["--adapter.method=sublora", "--use_dora=true"], "a setting of method hylorada and lora"),
        (["--model.shape=gpt2-micro"], "describe a random model; the source is 'tiny'"),
        (["--model.source=random", "--model.shape=gpt9"], "shape must be one of"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(options)


def test_a_random_model_is_described_by_its_section() -> None:
    section = parse(MICRO).model
    assert section.full_source() == "random:gpt2-micro,seed=3,tokenizer=tiny"
    assert RunConfig().model.full_source() == "tiny"
    assert SubLoRASection().allocation_mode == "uniform"


@pytest.mark.parametrize("mode", ["uniform", "learned"])
def test_a_run_from_a_random_start_trains_and_its_adapter_is_the_model(
    mode: str, tmp_path: Path
) -> None:
    text = small_arguments(tmp_path)[1:]
    options = [*text, *MICRO, *OPTIONS, f"--sublora.allocation_mode={mode}", "--accumulation=2"]
    targets = "--target_modules=[c_attn,lm_head]"
    config = parse([*options, targets, "--learning_rate=5e-3", f"--out={tmp_path / 'run'}"])
    result = train_run(config)
    assert result.audit is not None
    assert "all" in result.audit
    assert result.trainable_parameters == 60 + (3 if mode == "learned" else 0)
    stored = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == result.trainable_parameters
    loaded = PeftModel.from_pretrained(load_model(config).model, tmp_path / "run" / "adapter")
    assert bool(space(loaded).vector.any())


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    keys = ("loss", "eval_loss", "grad_norm")
    return [entry[key] for entry in entries for key in keys if key in entry]


def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path) -> None:
    options = [*OPTIONS, "--sublora.allocation_mode=learned", "--log_every=1", "--num_train=12"]
    arguments = [*small_arguments(tmp_path), *options, "--accumulation=2"]
    train_run(parse([*arguments, f"--out={tmp_path / 'one'}"]))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, "-m", "hylorada", "train", *arguments, f"--out={tmp_path / 'two'}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) > 6
    assert two == pytest.approx(one, abs=1e-5)
