"""`SubLoRAModel`: counts, refusals, and passes of every kind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import get_peft_model, inject_adapter_in_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from hylorada import CheckpointError, SpecError, UnsupportedModelError
from hylorada.subspace import SubLoRAConfig, SubLoRAModel
from hylorada.subspace.model import SubLoRALinear, compute_dtype
from hylorada.training.loss import chunked_loss
from tests.families import build, logits, tokens, trainable
from tests.unit.subspace.small import MODES, adapt, move, settings, space

HEAD: dict[str, Any] = {"target_modules": ["c_attn", "lm_head"]}


def gradients(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in trainable(model).values()]
    return [gradient.clone() for gradient in found if gradient is not None]


def loss(model: nn.Module, rows: Tensor, **inputs: Any) -> Tensor:
    found: Tensor = model(input_ids=rows, labels=rows, **inputs).loss
    return found


@pytest.mark.parametrize(("parts", "a_size"), [("qv", 76_800), (None, 39_936)])
def test_gpt2_small_has_the_counts_of_the_paper(parts: str | None, a_size: int) -> None:
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50_304))
    config = SubLoRAConfig(target_modules=["c_attn", "lm_head"], fused_parts=parts)
    allocation = space(get_peft_model(model, config)).allocation
    assert allocation.full == 351_744
    assert allocation.a_size == a_size
    assert allocation.full - allocation.a_size == 351_744 - a_size


def test_parts_of_a_fused_layer_change_their_rows_only() -> None:
    model = adapt("gpt2", target_modules=["c_attn"], fused_parts="qv")
    layer = next(m for m in model.modules() if isinstance(m, SubLoRALinear))
    q, k, v = layer.get_delta_weight("default").chunk(3, dim=1)
    assert not bool(k.any())
    tensors = space(model).tensors()
    stem = "transformer.h.0.attn.c_attn"
    for part, name in ((q, "q"), (v, "v")):
        expected = tensors[f"{stem}.{name}.B"] @ tensors[f"{stem}.{name}.A"] * 2.0
        torch.testing.assert_close(part, expected.t())


def test_a_starts_as_in_lora_and_b_at_zero() -> None:
    tensors = space(adapt("llama", moved=False, target_modules=["q_proj"])).tensors()
    for name, tensor in tensors.items():
        if name.endswith(".B"):
            assert not bool(tensor.any())
        else:
            assert 0.9 / 32**0.5 < float(tensor.detach().abs().max()) <= 1 / 32**0.5
    first, second = (tensors[f"model.layers.{n}.self_attn.q_proj.A"] for n in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_agree_with_finite_differences(mode: str) -> None:
    model = adapt("llama", allocation_mode=mode, relative_sharpness=True)
    rows = tokens()
    loss(model, rows).backward()
    step = 1e-2
    for parameter in trainable(model).values():
        assert parameter.grad is not None
        with torch.no_grad():
            for index in range(0, parameter.numel(), 13):
                held = float(parameter[index])
                ends = []
                for value in (held + step, held - step):
                    parameter[index] = value
                    ends.append(float(loss(model, rows).double()))
                parameter[index] = held
                slope = (ends[0] - ends[1]) / (2 * step)
                assert float(parameter.grad[index]) == pytest.approx(slope, abs=2e-3, rel=2e-2)


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_in_pieces_trains_the_head(mode: str) -> None:
    model = adapt("gpt2", allocation_mode=mode, target_modules=["lm_head"]).train()
    loss(model, tokens()).backward()
    expected = gradients(model)
    model.zero_grad()
    with chunked_loss(model, chunk_tokens=7):
        loss(model, tokens()).backward()
    for found, wanted in zip(gradients(model), expected, strict=True):
        assert bool(wanted.any())
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)
    model.zero_grad()
    with chunked_loss(model, chunk_tokens=7):
        for rows in tokens().split(1):
            with space(model).holding_gradients():
                loss(model, rows).backward()
    assert not bool(gradients(model)[0].any())


def checkpointed(reentrant: bool) -> Callable[[nn.Module], None]:
    def prepare(model: Any) -> None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()

    return prepare


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_passes_have_the_same_gradients(reentrant: bool) -> None:
    model = adapt("llama").train()
    loss(model, tokens()).backward()
    expected = gradients(model)
    model.zero_grad()
    checkpointed(reentrant)(model)
    both = loss(model, tokens()[:1]) + loss(model, tokens()[1:])
    both.backward()
    torch.testing.assert_close(gradients(model)[0] / 2, expected[0])


def test_low_precision_models_keep_exact_coordinates() -> None:
    model = move(get_peft_model(build("llama", dtype=torch.bfloat16), settings()).eval())
    assert space(model).vector.dtype == torch.float32
    assert logits(model, tokens()).isfinite().all()
    loss(model, tokens()).backward()
    gradient = space(model).vector.grad
    assert gradient is not None
    assert gradient.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        exact = adapt("llama")
        layer = next(m for m in exact.modules() if isinstance(m, SubLoRALinear))
        assert compute_dtype(layer.get_base_layer()) == torch.bfloat16
        loss(exact, tokens()).backward()
    assert bool(gradients(exact)[0].any())


def test_a_head_alone_may_be_the_target() -> None:
    model = adapt("gpt2", target_modules=["lm_head"])
    assert [target.name for target in space(model).allocation.layout] == ["lm_head.A", "lm_head.B"]


def test_the_callers_configuration_is_left_alone() -> None:
    config = settings()
    for family in ("gpt2", "llama"):
        model = get_peft_model(build(family), config)
        assert model.peft_config["default"].fingerprint is not None
    assert config.fingerprint is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 33}, "r must not exceed the smaller side, 32, of"),
        ({"fused_parts": "qv", "target_modules": ["mlp.c_proj"]}, "needs a layer that computes q"),
        ({"intrinsic_dim": 10**6}, "lower intrinsic_dim, or adapt more modules"),
        ({"target_modules": ["wte"]}, "SubLoRA adapts linear layers; got Embedding"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        adapt("gpt2", **changes)


def test_a_refused_adapter_leaves_the_model_as_it_was() -> None:
    base = build("gpt2")
    expected, flags = logits(base, tokens()), [p.requires_grad for p in base.parameters()]
    for changes in ({"intrinsic_dim": 10**6}, {"target_modules": ["wte", "c_attn"]}):
        with pytest.raises(SpecError, match=r"lower intrinsic_dim|adapts linear layers"):
            get_peft_model(base, settings(**changes))
    assert not any(isinstance(module, SubLoRALinear) for module in base.modules())
    assert [p.requires_grad for p in base.parameters()] == flags
    assert torch.equal(logits(base, tokens()), expected)
    model = move(get_peft_model(base, settings()).eval())
    first = logits(model, tokens())
    with pytest.raises(CheckpointError, match="fingerprint other"):
        model.add_adapter("second", settings(fingerprint="other"))
    assert list(model.peft_config) == ["default"]
    assert torch.equal(logits(model, tokens()), first)
    assert list(trainable(model)) == ["base_model.sublora_subspace.default.vector"]


def test_a_model_without_a_head_has_none_to_adapt() -> None:
    base = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(
        UnsupportedModelError, match="no head of its own to adapt; leave out lm_head"
    ):
        get_peft_model(base, SubLoRAConfig(target_modules=["lm_head"]))


def test_injection_without_the_tuner_is_refused_by_peft() -> None:
    with pytest.raises(ValueError, match="shared"):
        inject_adapter_in_model(settings(), build("gpt2"))


def test_a_module_that_is_no_language_model_can_be_adapted() -> None:
    base = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    config = SubLoRAConfig(target_modules=["0", "2"], intrinsic_dim=9, r=2)
    model = get_peft_model(base, config)
    assert isinstance(model.base_model, SubLoRAModel)
    x = torch.ones(1, 8)
    assert torch.equal(model(x), base(x))


def test_quantised_weights_are_not_merged_into() -> None:
    model = adapt("llama", target_modules=["q_proj"])
    layer = next(m for m in model.modules() if isinstance(m, SubLoRALinear))
    base = layer.get_base_layer()
    base.weight = nn.Parameter(torch.zeros(32, 32, dtype=torch.uint8), requires_grad=False)
    assert compute_dtype(base) == torch.float32
    packed = nn.Module()
    packed.register_buffer("qweight", torch.zeros(2, dtype=torch.int32))
    assert compute_dtype(packed) == torch.float32
    with pytest.raises(SpecError, match="load the model unquantised to merge"):
        model.merge_adapter()


def test_updates_that_are_no_numbers_are_not_merged() -> None:
    model = adapt("llama")
    with torch.no_grad():
        space(model).vector.fill_(torch.nan)
    with pytest.raises(SpecError, match="no numbers; not merged"):
        model.merge_adapter(safe_merge=True)


def test_the_layer_says_what_it_is() -> None:
    assert "sublora.SubLoRALinear" in repr(adapt("gpt2"))
