"""Training lowers the loss, resumes exactly, and says what went wrong."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, TrainerCallback, TrainingArguments

from hylorada import HyLoRADAConfig
from hylorada.errors import CheckpointError, SpecError
from hylorada.specs.run import OptimisationSpec, TrainingSpec
from hylorada.training.audit import UntrainedParameterError
from hylorada.training.loop import (
    DivergenceError,
    checkpoints,
    load_parameters,
    restore_random_state,
)
from hylorada.training.trainer import TrainingOutcome, train, validation_loss

LLAMA = LlamaConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
SPEC = TrainingSpec(
    batch_size=4, epochs=2, checkpoint_every=2, log_every=3, progress=False, cpu=True, seed=3
)
FAST = OptimisationSpec(learning_rate=5e-3, landmark_multiplier=3.0)


class Counting(Dataset[dict[str, Tensor]]):
    """Rows that count upwards from different starts, so there is something to learn."""

    def __init__(self, items: int = 12, length: int = 9) -> None:
        self.rows = (torch.arange(items)[:, None] + torch.arange(length)) % 31

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def adapted(dropout: float = 0.1, **settings: Any) -> PeftModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LLAMA)
    config = HyLoRADAConfig(lora_dropout=dropout, max_positions=16, **settings)
    return get_peft_model(model, config)


class StopAfter(TrainerCallback):
    """Interrupts a training the way a kill would, after a step's checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


class Keep(TrainerCallback):
    """Keeps what was logged, without the times."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logs = [log for log in state.log_history if "train_runtime" not in log]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def interrupted_and_resumed(
    folder: Path, spec: TrainingSpec, step: int, damage: Callable[[Path], object] | None = None
) -> tuple[TrainingOutcome, PeftModel, Keep]:
    with pytest.raises(KeyboardInterrupt):
        train(
            adapted(),
            Counting(),
            training=spec,
            optimisation=FAST,
            folder=folder,
            valid_data=Counting(4),
            callbacks=[StopAfter(step)],
        )
    if damage is not None:
        damage(checkpoints(folder)[0])
    model, keep = adapted(), Keep()
    torch.rand(7)  # a fresh process has another random state
    outcome = train(
        model,
        Counting(),
        training=spec,
        optimisation=FAST,
        folder=folder,
        valid_data=Counting(4),
        callbacks=[keep],
    )
    return outcome, model, keep


def whole(folder: Path, spec: TrainingSpec) -> tuple[TrainingOutcome, PeftModel, Keep]:
    model, keep = adapted(), Keep()
    outcome = train(
        model,
        Counting(),
        training=spec,
        optimisation=FAST,
        folder=folder,
        valid_data=Counting(4),
        callbacks=[keep],
    )
    return outcome, model, keep


def test_training_learns(tmp_path: Path) -> None:
    spec = replace(SPEC, steps=40, checkpoint_every=None)
    outcome = train(
        adapted(dropout=0.0),
        Counting(),
        training=spec,
        optimisation=OptimisationSpec(learning_rate=3e-2, landmark_multiplier=3.0),
        folder=tmp_path,
        valid_data=Counting(),
    )
    assert outcome.steps == 40
    assert outcome.valid_tokens == 12 * 8
    assert outcome.valid_loss is not None
    assert outcome.valid_loss < 0.9 * math.log(31)
    assert outcome.audit.offenders == []


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        (SPEC, 3),  # between two logs, just after a checkpoint within an epoch was left behind
        (replace(SPEC, checkpoint_every=3), 4),  # the checkpoint closes an epoch
        (replace(SPEC, accumulation=2, evaluate_every=2, keep_best=True), 5),
        (replace(SPEC, checkpoint_every=100), 4),  # nothing written yet
    ],
)
def test_a_resumed_training_ends_with_the_same_bits(
    tmp_path: Path, spec: TrainingSpec, step: int
) -> None:
    expected, model, kept = whole(tmp_path / "whole", spec)
    outcome, resumed, again = interrupted_and_resumed(tmp_path / "cut", spec, step)
    assert again.logs == kept.logs
    assert outcome.train_loss == expected.train_loss
    assert outcome.valid_loss == expected.valid_loss
    assert outcome.best_step == expected.best_step
    torch.testing.assert_close(weights(resumed), weights(model), rtol=0, atol=0)


def test_a_damaged_checkpoint_is_passed_over_and_the_numbers_are_the_same(tmp_path: Path) -> None:
    expected, model, _ = whole(tmp_path / "whole", SPEC)

    def truncate(checkpoint: Path) -> None:
        assert checkpoint.name == "checkpoint-4"
        payload = (checkpoint / "training.pt").read_bytes()
        (checkpoint / "training.pt").write_bytes(payload[: len(payload) // 2])

    outcome, resumed, _ = interrupted_and_resumed(tmp_path / "cut", SPEC, 5, truncate)
    assert outcome.valid_loss == expected.valid_loss
    torch.testing.assert_close(weights(resumed), weights(model), rtol=0, atol=0)


def test_a_finished_training_only_evaluates_again(tmp_path: Path) -> None:
    first, _, _ = whole(tmp_path, SPEC)
    second, _, _ = whole(tmp_path, SPEC)
    assert (second.train_loss, second.valid_loss) == (first.train_loss, first.valid_loss)


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    whole(tmp_path, SPEC)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-6", "checkpoint-4"]


def test_accumulation_takes_the_steps_of_the_whole_batch(tmp_path: Path) -> None:
    found = {}
    for pieces in (1, 4):
        model = adapted(dropout=0.0)
        train(
            model,
            Counting(),
            training=replace(SPEC, accumulation=pieces),
            folder=tmp_path / str(pieces),
        )
        found[pieces] = weights(model)
    torch.testing.assert_close(found[4], found[1], rtol=1e-4, atol=1e-6)


def test_the_best_weights_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    class Constant(Counting):
        """To learn one token is to unlearn every other."""

        def __init__(self, token: int) -> None:
            self.rows = torch.full((12, 9), token)

    keep = Keep()
    outcome = train(
        adapted(dropout=0.0),
        Constant(3),
        training=replace(SPEC, evaluate_every=1, keep_best=True),
        optimisation=OptimisationSpec(learning_rate=3e-2),
        folder=tmp_path,
        valid_data=Constant(7),
        callbacks=[keep],
    )
    losses = {log["step"]: log["eval_loss"] for log in keep.logs if "eval_loss" in log}
    best = min(losses, key=lambda step: losses[step])
    assert outcome.best_step == best
    assert outcome.valid_loss == pytest.approx(losses[best], rel=1e-6)
    assert best < 6


def test_the_validation_loss_weighs_every_token_alike(tmp_path: Path) -> None:
    class Uneven(Counting):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            item = super().__getitem__(index)
            labels = item["labels"].clone()
            labels[: 2 * index] = -100
            return {**item, "labels": labels}

    model = adapted(dropout=0.0)
    outcome = train(
        model,
        Counting(),
        training=replace(SPEC, evaluation_batch_size=1, epochs=1),
        folder=tmp_path,
        valid_data=Uneven(4),
    )
    rows = [Uneven(4)[index] for index in range(4)]
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    with torch.no_grad():
        expected = model.eval()(**batch).loss
    assert outcome.valid_loss == pytest.approx(float(expected), rel=1e-5)


def test_validation_alone_needs_no_items_that_processes_could_share_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    _, tokens = validation_loss(adapted(), Counting(3), training=SPEC, folder=tmp_path)
    assert tokens == 2 * 8  # the first and the third item are this process's


def test_an_untrained_parameter_stops_the_run_at_its_end(tmp_path: Path) -> None:
    model = adapted(landmark_enabled=False, position_bias=False)
    model.base_model.model.model.norm.register_parameter("lora_A", nn.Parameter(torch.ones(1)))
    with pytest.raises(UntrainedParameterError, match=r"lora_A \(no gradient"):
        train(model, Counting(), training=replace(SPEC, chunk_tokens=0), folder=tmp_path)


def test_a_loss_that_is_no_number_stops_with_advice(tmp_path: Path) -> None:
    model = adapted()
    with torch.no_grad():
        model.get_output_embeddings().weight[0] = math.nan
    with pytest.raises(DivergenceError, match=r"loss is nan at step 1 of 6 .*try a lower learning"):
        train(model, Counting(), training=replace(SPEC, chunk_tokens=0), folder=tmp_path)


def test_a_gradient_that_is_no_number_names_its_parameter(tmp_path: Path) -> None:
    model = adapted()
    name, parameter = next((n, p) for n, p in model.named_parameters() if "lora_B" in n)
    parameter.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(DivergenceError, match="the gradient is inf, first in") as error:
        train(model, Counting(), training=replace(SPEC, precision="autocast"), folder=tmp_path)
    assert name in str(error.value)
    assert "precision float32 instead of autocast" in str(error.value)


class Seen(TrainerCallback):
    """Sees whether deterministic kernels are asked for while training."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.deterministic = torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_callers_own_wish_for_deterministic_kernels_is_given_back(
    wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        spec = replace(SPEC, deterministic=wanted, steps=1)
        train(adapted(), Counting(), training=spec, folder=tmp_path)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_kernels_are_asked_for_while_training_only(
    wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    seen = Seen()
    spec = replace(SPEC, deterministic=wanted)
    train(adapted(), Counting(), training=spec, folder=tmp_path, callbacks=[seen])
    assert seen.deterministic is wanted
    assert not torch.are_deterministic_algorithms_enabled()


def test_autocast_and_checkpointing_train(tmp_path: Path) -> None:
    spec = replace(SPEC, precision="autocast", gradient_checkpointing=True, epochs=1)
    outcome = train(adapted(), Counting(), training=spec, folder=tmp_path, valid_data=Counting(4))
    assert outcome.audit.offenders == []


def test_a_bfloat16_base_keeps_float32_adapters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(LLAMA, dtype=torch.bfloat16)
    model = get_peft_model(base, HyLoRADAConfig(max_positions=16))
    spec = replace(SPEC, precision="bfloat16", epochs=1)
    outcome = train(model, Counting(), training=spec, folder=tmp_path, valid_data=Counting(4))
    assert outcome.audit.offenders == []
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


def test_half_precision_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="trained parameters must be float32"):
        train(adapted().to(torch.bfloat16), Counting(), training=SPEC, folder=tmp_path)


def test_the_diversity_loss_joins_the_loss(tmp_path: Path) -> None:
    logged = {}
    for weight in (0.0, 5.0):
        model, keep = adapted(dropout=0.0, landmark_design="learnable"), Keep()
        with torch.no_grad():
            model.get_parameter("base_model.lora_shared.default.landmarks.boundaries")[0] = 2.0
        train(
            model,
            Counting(),
            training=replace(SPEC, log_every=1, accumulation=2, steps=1),
            optimisation=OptimisationSpec(diversity_weight=weight),
            folder=tmp_path / str(weight),
            callbacks=[keep],
        )
        logged[weight] = keep.logs[0]["loss"]
    widths = torch.softmax(torch.tensor([2.0] + [0.0] * 15), 0)
    assert logged[5.0] - logged[0.0] == pytest.approx(-5 * float((16 * widths).log().mean()), 1e-4)


def test_plain_lora_trains(tmp_path: Path) -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_config(LLAMA), LoraConfig(target_modules=["q_proj"])
    )
    assert train(model, Counting(), training=SPEC, folder=tmp_path).valid_loss is None


def test_empty_validation_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="validation data must have at least one item"):
        train(adapted(), Counting(), training=SPEC, folder=tmp_path, valid_data=Counting(0))


def test_validation_data_without_a_target_is_refused(tmp_path: Path) -> None:
    class Ignored(Counting):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            item = super().__getitem__(index)
            return {**item, "labels": torch.full_like(item["labels"], -100)}

    with pytest.raises(SpecError, match="must have a token to predict"):
        validation_loss(adapted(), Ignored(), training=SPEC, folder=tmp_path)


def test_a_checkpoint_of_another_adapter_is_refused(tmp_path: Path) -> None:
    whole(tmp_path, SPEC)
    with pytest.raises(CheckpointError, match="must be those that are trained"):
        train(adapted(position_bias=False), Counting(), training=SPEC, folder=tmp_path)


def test_stored_values_of_another_shape_are_refused() -> None:
    model = nn.Linear(2, 1, bias=False)
    with pytest.raises(CheckpointError, match=r"shape \(1, 2\); there has \(3,\)"):
        load_parameters(model, {"weight": torch.zeros(3)}, "there")


def test_a_process_without_a_stored_random_state_says_so(caplog: pytest.LogCaptureFixture) -> None:
    restore_random_state([], 0)
    assert "fresh random states" in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0.0),
        ("steps", 0),
        ("batch_size", 0),
        ("accumulation", 3),
        ("chunk_tokens", -1),
        ("evaluate_every", 0),
        ("checkpoint_every", 0),
        ("checkpoints_kept", 0),
        ("log_every", 0),
        ("workers", -1),
        ("keep_best", True),
    ],
)
def test_a_setting_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(SpecError, match=field):
        TrainingSpec(**{field: value})


def test_shifted_attention_acts_while_training_and_not_after(tmp_path: Path) -> None:
    """Grouped attention trains other weights; the model is given back with its own attention."""
    full, full_model, _ = whole(tmp_path / "full", SPEC)
    shifted, model, _ = whole(tmp_path / "shifted", replace(SPEC, shifted_group=4))
    own, other = weights(full_model), weights(model)
    assert any(not torch.equal(own[name], other[name]) for name in own)
    assert shifted.train_loss != full.train_loss
    assert model.config._attn_implementation == full_model.config._attn_implementation
