"""Everything declared trainable trains, nothing else does, with and without checkpointing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from hylorada import UnsupportedModelError
from hylorada.adapters.positions import CheckpointWithPositions
from hylorada.training.audit import audit
from tests.families import (
    EVERY_CASE,
    EVERY_DESIGN,
    FAMILIES,
    VARIANTS,
    adapt,
    build,
    logits,
    tokens,
    trainable,
)

Changes = dict[str, Any]


def two_steps(model: PeftModel, steps: int = 2) -> list[float]:
    optimizer = torch.optim.AdamW(trainable(model).values(), lr=1e-2, weight_decay=0.0)
    batch, losses = tokens(batch=4, time=24), []
    with audit(model, optimizer) as report:
        for _ in range(steps):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    report.raise_if_untrained()
    return losses


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_every_trainable_parameter_moves_and_no_other(family: str, changes: Changes) -> None:
    model = adapt(family, perturbed=False, **changes).train()
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    assert all("lora_" in name for name in trainable(model))
    two_steps(model, steps=3)
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert parameter.grad is None
            assert torch.equal(parameter, frozen[name]), name


@pytest.mark.parametrize(("family", "changes"), EVERY_DESIGN + VARIANTS)
def test_training_lowers_the_loss(family: str, changes: Changes) -> None:
    losses = two_steps(adapt(family, perturbed=False, **changes).train(), steps=6)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_with_zero_scale_an_untrained_adapter_changes_nothing(family: str) -> None:
    model = adapt(family, landmark_scale=0.0, perturbed=False)
    torch.testing.assert_close(
        logits(model, tokens()), logits(build(family), tokens()), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_the_names_of_trained_tensors_carry_the_adapter(family: str, changes: Changes) -> None:
    names = trainable(adapt(family, **changes))
    assert all(".default." in f"{name}." for name in names)


@pytest.mark.parametrize(("family", "changes"), [c for c in VARIANTS if "llama" in str(c.id)])
def test_dropout_acts_only_while_training(family: str, changes: Changes) -> None:
    model = adapt(family, lora_dropout=0.3, landmark_dropout=0.3, **changes)
    calm = logits(model, tokens())
    model.train()
    assert not torch.equal(logits(model, tokens()), logits(model, tokens()))
    model.eval()
    assert torch.equal(logits(model, tokens()), calm)


def gradients(model: PeftModel, loss: Callable[[PeftModel], Tensor]) -> dict[str, Tensor]:
    loss(model).backward()
    found = {}
    for name, parameter in trainable(model).items():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    return found


def loss_of_two_passes(model: PeftModel) -> Tensor:
    """A loss like DPO's: the second pass, elsewhere in the context, runs before one backward."""
    here, there = tokens(time=12, seed=6), tokens(time=18, seed=7)
    positions = torch.arange(18)[None].expand(2, -1) + 40
    first = model(input_ids=here, labels=here, use_cache=False).loss
    return (
        first + model(input_ids=there, labels=there, position_ids=positions, use_cache=False).loss
    )


def loss_of_two_padded_passes(model: PeftModel) -> Tensor:
    """The same for models without `position_ids`: here the padding moves the positions."""
    here, there = tokens(time=12, seed=6), tokens(time=18, seed=7)
    mask = torch.ones_like(there)
    mask[1, :7] = 0
    first = model(input_ids=here, labels=here, use_cache=False).loss
    return first + model(input_ids=there, labels=there, attention_mask=mask, use_cache=False).loss


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_checkpointed_gradients_equal_those_without(
    family: str, changes: Changes, reentrant: bool
) -> None:
    loss = loss_of_two_padded_passes if family == "bloom" else loss_of_two_passes
    expected = gradients(adapt(family, **changes).train(), loss)
    model = adapt(family, **changes).train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-5, rtol=2e-4, msg=name)


def test_checkpointing_can_be_switched_off_and_on_again() -> None:
    expected = gradients(adapt("llama").train(), loss_of_two_passes)
    model = adapt("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.gradient_checkpointing_disable()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for name, gradient in gradients(model, loss_of_two_passes).items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-5, rtol=2e-4, msg=name)


def test_checkpointing_works_for_an_adapter_after_another_was_unloaded() -> None:
    base = build("llama").train()
    base.gradient_checkpointing_enable({"use_reentrant": False})
    first = adapt("llama", base=base).train()
    gradients(first, loss_of_two_passes)
    base = first.unload()
    assert not any(
        isinstance(getattr(module, "_gradient_checkpointing_func", None), CheckpointWithPositions)
        for module in base.modules()
    )
    expected = gradients(adapt("llama").train(), loss_of_two_passes)
    for name, gradient in gradients(adapt("llama", base=base).train(), loss_of_two_passes).items():
        torch.testing.assert_close(gradient, expected[name], atol=2e-5, rtol=2e-4, msg=name)


def test_checkpoints_that_the_model_knows_nothing_of_are_refused_with_a_repair() -> None:
    """As FSDP makes them: wrappers around the blocks."""
    model = adapt("llama").train()
    apply_activation_checkpointing(
        model, check_fn=lambda module: isinstance(module, LlamaDecoderLayer)
    )
    with pytest.raises(UnsupportedModelError, match="gradient_checkpointing_enable"):
        gradients(model, loss_of_two_passes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bfloat16_base_keeps_adapters_in_float32(family: str) -> None:
    model = adapt(family, dtype=torch.bfloat16, share_factors="A").train()
    assert {parameter.dtype for parameter in trainable(model).values()} == {torch.float32}
    batch = tokens(time=12)
    output = model(input_ids=batch, labels=batch)
    assert output.logits.dtype == torch.bfloat16
    output.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trainable(model).values())


@pytest.mark.parametrize(("family", "changes"), EVERY_DESIGN + VARIANTS)
def test_a_bfloat16_base_gives_nearly_the_same_logits(family: str, changes: Changes) -> None:
    exact = logits(adapt(family, **changes), tokens())
    rounded = logits(adapt(family, dtype=torch.bfloat16, **changes), tokens())
    base_error = logits(build(family, dtype=torch.bfloat16), tokens()) - logits(
        build(family), tokens()
    )
    assert (rounded - exact).norm() < 6 * base_error.norm()


def test_autocast_trains_the_adapters_in_float32() -> None:
    model = adapt("llama", use_dora=True).train()
    batch = tokens(time=12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    for parameter in trainable(model).values():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
