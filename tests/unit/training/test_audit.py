"""Each way in which a parameter can stay untrained is found and named."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from hylorada.training.audit import (
    LARGEST_COPY,
    AuditCallback,
    AuditReport,
    TrainingAudit,
    UntrainedParameterError,
    audit,
)


class Factors(nn.Module):
    """A LoRA-like product: `down` receives its first gradient once `up` has left zero."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.ones(2))
        self.up = nn.Parameter(torch.zeros(2))
        self.idle = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self) -> Tensor:
        return ((self.down * self.up).sum() - 1) ** 2


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model().backward()
    optimizer.step()
    optimizer.zero_grad()


def named(report: AuditReport) -> dict[str, str | None]:
    return {record.name: record.cause for record in report.records}


def test_a_gradient_from_the_second_step_on_counts() -> None:
    model = Factors()
    model.idle.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as report:
        step(model, optimizer)
        step(model, optimizer)
    assert named(report) == {"down": None, "up": None}
    assert (
        report.verdict == "all 2 trainable parameters are optimised, received gradients and moved"
    )
    report.raise_if_untrained()


def test_a_frozen_parameter_is_not_judged() -> None:
    model = Factors()
    with audit(model, torch.optim.SGD(model.parameters(), lr=0.1)) as report:
        pass
    assert "frozen" not in named(report)


def test_an_unused_parameter_is_an_offender() -> None:
    model = Factors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as report:
        step(model, optimizer)
        step(model, optimizer)
    assert [record.name for record in report.offenders] == ["idle"]
    with pytest.raises(UntrainedParameterError, match=r"1 of 3 .*idle \(no gradient"):
        report.raise_if_untrained()


def test_a_parameter_outside_the_optimiser_is_an_offender() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with audit(model, optimizer) as report:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert [record.name for record in report.offenders] == ["bias"]
    assert "not in the optimiser" in report.verdict


def test_an_optimised_tensor_outside_the_model_is_reported() -> None:
    model = nn.Linear(2, 1, bias=False)
    stranger = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([model.weight, stranger], lr=0.1)
    with audit(model, optimizer) as report:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    with pytest.raises(UntrainedParameterError, match="1 optimised tensors that the model does"):
        report.raise_if_untrained()


def test_a_learning_rate_of_zero_is_an_offence() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with audit(model, optimizer) as report:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert "learning rate zero" in report.verdict
    assert len(report.offenders) == 2


def test_a_model_without_trainable_parameters_is_an_offence() -> None:
    model = nn.Linear(2, 1).requires_grad_(False)
    with audit(model, torch.optim.SGD(model.parameters(), lr=0.1)) as report:
        pass
    with pytest.raises(UntrainedParameterError, match="nothing was declared trainable"):
        report.raise_if_untrained()


@pytest.mark.parametrize(("dtype", "trained"), [(torch.bfloat16, False), (torch.float32, True)])
def test_a_step_below_half_an_ulp_is_lost_in_bfloat16_only(
    dtype: torch.dtype, trained: bool
) -> None:
    # bf16 values at 4 are 2^-5 apart: AdamW's step of 5e-4 rounds back to 4.
    model = nn.Linear(3, 1, bias=False, dtype=dtype)
    nn.init.constant_(model.weight, 4.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    with audit(model, optimizer) as report:
        for _ in range(3):
            model(torch.ones(1, 3, dtype=dtype)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (record,) = report.records
    assert (record.cause is None) is trained
    assert record.lost_share == (0.0 if trained else 1.0)
    assert trained or "bfloat16 rounds its updates away" in report.verdict


def test_a_parameter_that_loses_most_of_its_updates_is_an_offender() -> None:
    # Of four values only the one at 0.01 has room for a step of 5e-4.
    model = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 4.0, 4.0, 0.01]]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    with audit(model, optimizer) as report:
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert report.records[0].moved
    assert "75% of updates lost" in report.verdict


def test_steps_at_rate_zero_are_not_counted_as_lost() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with audit(model, optimizer) as report:
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert report.records[0].lost_share == 0.0


def clean(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Set what is not finite in the gradients to zero, as careful optimisers do."""
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.nan_to_num_(posinf=0.0, neginf=0.0)


def stepped(*gradients: float, careful: bool = False) -> AuditReport:
    """Return the audit of steps in which one of two weights has these gradients."""
    model = nn.ParameterDict({"tame": torch.ones(2), "wild": torch.ones(2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as report:
        if careful:
            optimizer.register_step_pre_hook(clean)
        for gradient in gradients:
            factors = torch.tensor([gradient, 1.0])
            ((model["wild"] * factors).sum() + model["tame"].sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return report


@pytest.mark.parametrize("gradient", [math.nan, math.inf, -math.inf])
def test_a_parameter_that_is_no_longer_a_number_is_an_offender(gradient: float) -> None:
    report = stepped(gradient)
    tame, wild = report.records
    assert (wild.finite, wild.finite_gradients, wild.diverged) == (False, False, True)
    assert (tame.finite, tame.finite_gradients, tame.diverged) == (True, True, False)
    with pytest.raises(UntrainedParameterError, match=r"1 of 2 .*wild \(its values are not finite"):
        report.raise_if_untrained()


def test_a_gradient_that_left_no_trace_in_the_values_is_told() -> None:
    report = stepped(1.0, math.nan, 1.0, 1.0, careful=True)
    tame, wild = report.records
    assert tame.finite_gradients
    assert (wild.finite, wild.finite_gradients) == (True, False)
    assert "wild (its gradients were not finite" in report.verdict


def test_large_gradients_are_finite() -> None:
    assert not stepped(1e38, -1e38, 1.0).offenders


def test_a_parameter_that_never_was_a_number_is_an_offender() -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.bias, math.nan)
    with audit(model, torch.optim.SGD(model.parameters(), lr=0.1)) as report:
        pass
    assert "values are not finite" in str(named(report)["bias"])


def test_a_step_that_a_loss_scaler_skips_is_no_divergence() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    with audit(model, optimizer) as report:
        for factor in (math.inf, 1.0):
            scaler.scale(model(torch.full((1, 1), factor)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    report.raise_if_untrained()


def test_sparse_gradients_are_judged() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as report:
        (model(torch.tensor([3])) * math.nan).sum().backward()
        optimizer.step()
    assert report.records[0].diverged


def test_a_continued_audit_remembers_what_diverged() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = TrainingAudit(model, optimizer)
    first.start()
    optimizer.register_step_pre_hook(clean)
    model(torch.full((1, 1), math.nan)).sum().backward()
    optimizer.step()
    second = TrainingAudit(model, optimizer)
    second.load_state_dict(first.state_dict())
    first.finish()
    assert not second.finish().records[0].finite_gradients


def test_gradients_are_seen_through_accumulation() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as report:
        model(torch.ones(1, 1)).sum().backward()
        model(torch.zeros(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    report.raise_if_untrained()


def test_a_large_tensor_is_compared_by_its_digest() -> None:
    model = nn.Embedding(LARGEST_COPY + 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as still:
        pass
    with audit(model, optimizer) as moving:
        model(torch.tensor([7])).sum().backward()
        optimizer.step()
    assert [record.moved for record in (*still.records, *moving.records)] == [False, True]


def test_no_hook_survives_the_block() -> None:
    model = Factors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit(model, optimizer) as report:
        step(model, optimizer)
    seen = report.steps
    step(model, optimizer)
    assert report.steps == seen == 1
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters() if p.requires_grad)


def test_a_continued_audit_remembers_what_was_seen_before() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = TrainingAudit(model, optimizer)
    first.start()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    state = first.state_dict()
    first.finish()
    second = TrainingAudit(model, optimizer)
    second.load_state_dict(state)
    second.start()
    report = second.finish()
    assert report.steps == 1
    report.raise_if_untrained()


class Regression(nn.Module):
    """A model in the form the Trainer wants, with a parameter nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1))
        self.forgotten = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": ((self.slope * x - labels) ** 2).mean()}


def trainer(folder: Path, callback: AuditCallback) -> Trainer:
    items = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(8)]
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    return Trainer(Regression(), arguments, train_dataset=items, callbacks=[callback])


def test_the_callback_raises_at_the_end_of_a_trainer(tmp_path: Path) -> None:
    callback = AuditCallback()
    assert callback.report.records == []
    with pytest.raises(UntrainedParameterError, match="forgotten"):
        trainer(tmp_path, callback).train()
    assert callback.report.steps == 4


def test_a_run_too_short_to_tell_warns_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = trainer(tmp_path, AuditCallback())
    short.args.max_steps = 3
    short.train()
    assert "after 3 steps 1 of 2 trainable parameters did not train: forgotten" in caplog.text


def test_a_short_run_that_diverged_raises_all_the_same(tmp_path: Path) -> None:
    callback = AuditCallback()
    short = trainer(tmp_path, callback)
    assert isinstance(short.model, Regression)
    nn.init.constant_(short.model.slope, math.nan)
    short.args.max_steps = 1
    with pytest.raises(UntrainedParameterError, match=r"slope \(its values are not finite"):
        short.train()
    assert callback.report.steps == 1


def test_many_offenders_are_counted_not_listed() -> None:
    model = nn.ParameterList(torch.zeros(1) for _ in range(9))
    with audit(model, torch.optim.SGD(model.parameters(), lr=0.1)) as report:
        pass
    assert "0, 1, 2 and 6 more (no gradient" in report.verdict
