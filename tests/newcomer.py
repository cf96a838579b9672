"""What a reader of the pages has at hand, in small: a model, texts, a run, a study."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from hylorada import HyLoRADAConfig, SubLoRAConfig
from hylorada.cli import main
from hylorada.cli import study as study_commands
from hylorada.files import write_record
from hylorada.models.pretrained import load
from hylorada.studies import StudyOptions, study
from hylorada_benches import adapters, projections
from tests.pages import ROOT
from tests.small_run import write_model
from tests.small_study import Here
from tests.unit.report.example import small

LENGTH = 40
MODEL = "path/to/model"
# A small model needs small sizes; the words of the pages stay as they are.
SIZES = {
    "train": [
        *(f"--data.length={LENGTH}", "--num_train=24", "--num_val=4"),
        *("--cpu=true", "--progress=false"),
    ],
    "evaluate": ["--max_length", "40", "--max_tokens", "400", "--device", "cpu"],
    "bench": ["--rounds", "1"],
    "bound": ["--device", "cpu", "--samples", "20"],
    "verify": ["--device", "cpu"],
    "compare": [
        *("--data", "my_texts", "--max_length", f"{LENGTH}", "--num_train", "8", "--num_val", "4"),
        *("--num_test", "4", "--batch_size", "4", "--evidence_items", "2", "--seeds", "1"),
        *("--certified_documents", "20", "--workers", "1", "--cpu"),
    ],
}
# Of a study: its base model, and fewer arms and budgets than it has by itself.
OF_STUDY = {
    "landmarks": ["--model", MODEL, "--designs", "position_adaptive"],
    "bucketing": ["--model", MODEL, "--designs", "learnable"],
    "length": ["--model", MODEL, "--designs", "position_adaptive"],
    "allocation": [
        *("--model", f"random:{MODEL},seed=1,tokenizer={MODEL}"),
        *("--budgets", "40", "--designs", "uniform"),
    ],
}


# What a reader has elsewhere, and what stands for it here.
ELSEWHERE = {"smollm2": MODEL, "s3://bucket/runs": "memory://bucket/runs"}


def in_small(job: str, options: list[str]) -> list[str]:
    """Return a command of the pages with words that make it small enough to be carried out."""
    words = [job, *(ELSEWHERE.get(word, word) for word in options), *SIZES.get(job, [])]
    if "configs/train.yaml" in options:
        words.append("--data.source=my_texts")
    return [*words, *OF_STUDY[options[0]]] if job == "compare" else words


def make_everything_small(patch: pytest.MonkeyPatch) -> None:
    """Have studies run in this process, the demonstration and the benches on very small models.

    What starts workers is tested in test_study_command.py, and a Ray cluster in test_ray.py.
    """
    patch.setattr(study, "open_engine", lambda name, workers: Here())
    options = StudyOptions(
        model=MODEL,
        data="my_texts",
        designs=("learnable",),
        seeds=(1,),
        max_length=LENGTH,
        num_train=8,
        num_val=4,
        num_test=4,
        batch_size=4,
    )
    patch.setattr(study_commands, "demo", partial(study_commands.demo, options=options))
    shape = replace(adapters.SMALL_GPT2, layers=1, width=16, heads=2, vocabulary=50, length=8)
    for name in ("SMALL_GPT2", "SMALL_LLAMA", "WIDE_LLAMA"):
        family = getattr(adapters, name).family
        patch.setattr(adapters, name, replace(shape, name=name, family=family))
    less = {"shape": shape, "full": 2000, "dims": (20,), "step_dims": (10,)}
    patch.setattr(projections, "measure", partial(projections.measure, **less))


def write_texts(folder: Path) -> None:
    """Save many short texts in files named by their split."""
    folder.mkdir()
    for split, first in (("train", 0), ("valid", 500), ("test", 700)):
        for number in range(first, first + 60):
            text = f"{number} is followed by {number + 1}, and then comes {number + 2}."
            (folder / f"{split}_{number}.txt").write_text(text)


def write_world(folder: Path) -> Path:
    """Save what the pages take for granted under the names they use, and return the folder."""
    files = folder / "files"
    write_model(files / "path/to/model")
    shutil.copytree(files / "path/to/model", files / "path/to/base")
    write_texts(files / "my_texts")
    for name in ("abstracts", "arxiv_abstracts"):
        shutil.copytree(files / "my_texts", files / name)
    (files / "path/to/wikitext2_raw").mkdir()
    text = "\n".join(f" = {number} = \n\n {number} is a number . \n" for number in range(60))
    (files / "path/to/wikitext2_raw/wiki.test.raw").write_text(text)
    shutil.copytree(ROOT / "configs", files / "configs")
    (files / "studies/landmarks").mkdir(parents=True)
    write_record(files / "studies/landmarks/study.json", small())
    run = [
        f"--model.source={files / 'path/to/model'}",
        f"--data.source={files / 'my_texts'}",
        f"--data.cache={folder / 'cache'}",
        "--adapter.method=sublora",
        f"--out={files / 'runs/my_run'}",
    ]
    assert main(["train", *run, *SIZES["train"]]) == 0
    shutil.copytree(files / "runs/my_run/adapter", files / "path/to/adapter")
    write_certificates(files / "benchmarks/results/certificates", files)
    return folder


def write_certificates(folder: Path, files: Path) -> None:
    """Save a compressed run and its certificate, under the names of those that are published."""
    folder.mkdir(parents=True)
    file, certificate = folder / "document.hyl", folder / "document.document.json"
    assert main(["compress", str(files / "runs/my_run"), "--out", str(file)]) == 0
    words = ["bound", str(file), "--data", str(files / "my_texts"), "--out", str(certificate)]
    assert main([*words, *SIZES["bound"]]) == 0
    shutil.copy(certificate, folder / "gpt2.document.json")


def _of_adapters() -> dict[str, Any]:
    return {"hidden": torch.zeros(1, 6, 768), "positions": torch.arange(6)[None]}


def _of_sublora() -> dict[str, Any]:
    lora = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    module = get_peft_model(load("tiny").model, lora)
    return {"base": load("tiny").model, "fresh": load("tiny").model, "module": module}


def _of_compression() -> dict[str, Any]:
    config = SubLoRAConfig(task_type="CAUSAL_LM", intrinsic_dim=40, allocation_mode="learned")
    model = get_peft_model(load("tiny").model, config)
    tokens = torch.arange(8)[None]
    batch = {"input_ids": tokens, "labels": tokens}
    return {"model": model, "batches": [batch], "price": 1e-5}


def _of_training() -> dict[str, Any]:
    model = get_peft_model(load("path/to/model").model, HyLoRADAConfig(max_positions=LENGTH))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {"model": model, "optimizer": torch.optim.AdamW(trained)}


def _of_report() -> dict[str, Any]:
    from hylorada.report.canvas import COLOURS, Caption, Sheet

    return {"Any": Any, "COLOURS": COLOURS, "Caption": Caption, "Sheet": Sheet}


# Names that the snippets of a page use and do not make.
GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/adapters.md": _of_adapters,
    "docs/compression.md": _of_compression,
    "docs/report.md": _of_report,
    "docs/sublora.md": _of_sublora,
    "docs/training.md": _of_training,
}
