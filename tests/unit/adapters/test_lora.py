"""Fast LoRA and DoRA err at most twice as much as PEFT's own layers, judged against float64."""

import copy
import math
from collections import defaultdict
from itertools import product
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from hylorada.seeds import generator
from tests.families import adapt, build, logits, seeded, settings, tokens
from tests.lora_layers import KINDS, error, exact, fast, lora_layer, results, tensors
from tests.reference import lora as reference

SIZES = [(13, 7, 3), (8, 24, 1), (5, 5, 5), (64, 48, 8)]  # in, out, rank


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize(("kind", "size"), [*product(KINDS, SIZES)], ids=str)
def test_the_fast_path_errs_at_most_twice_as_much_as_peft(
    kind: str, size: tuple[int, int, int], dora: bool, dtype: torch.dtype
) -> None:
    plain = lora_layer(kind, size, dora, dtype)
    same_dtype = copy.deepcopy(plain).to(dtype)  # the plain form in the precision of the base
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    for seed in range(4):  # one draw of a tiny layer is mostly luck
        draws = generator(seed, "inputs")
        x = torch.randn(5, 31, size[0], generator=draws).to(dtype)
        upstream = torch.randn(5, 31, size[1], generator=draws).to(dtype)
        yardstick = results(*exact(plain), x.double(), upstream)
        for errors, layer in ((ours, fast(plain, dora)), (theirs, copy.deepcopy(same_dtype))):
            found = results(layer, tensors(layer), x, upstream)
            for name, expected in yardstick.items():
                errors[name].append(error(found[name], expected))
    for name in ours:
        assert math.hypot(*ours[name]) <= 2 * math.hypot(*theirs[name]), name


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_dropout_keeps_the_expected_output(dora: bool) -> None:
    layer = lora_layer("linear", (13, 7, 3), dora, torch.float32, dropout=0.5)
    quick = fast(layer, dora).train()
    x = torch.randn(1, 1, 13, generator=generator(1, "inputs"))
    expected = fast(layer, dora).eval()(x)
    with seeded(0), torch.no_grad():
        draws = quick(x.expand(3000, -1, -1))
    spread = draws.std(dim=0) / 3000**0.5
    assert (spread > 0).all()
    assert ((draws.mean(dim=0) - expected[0]).abs() < 5 * spread).all()


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_position_bias_scales_the_update_and_nothing_else(family: str, dora: bool) -> None:
    """The first adapted layer of a model against the float64 formula with the same gain."""
    model = adapt(family, use_dora=dora, landmark_enabled=False)
    name, layer = next(iter(model.base_model.lora_layers("default")))
    assert name
    seen: dict[str, Tensor] = {}
    layer.register_forward_hook(lambda module, args, output: seen.update(x=args[0], y=output))
    rows = tokens()
    logits(model, rows)
    bias = model.base_model.shared_state("default").position_bias
    gain = bias(torch.arange(rows.shape[1])[None], 1, 1)[0].T.detach().double()
    assert (gain - 1).abs().max() > 0.05
    base = layer.get_base_layer()
    weight = base.weight.double()
    arguments: dict[str, Any] = {
        "x": seen["x"].double(),
        "weight": weight.T if isinstance(base, Conv1D) else weight,
        "bias": None if base.bias is None else base.bias.double(),
        "down": tensors(layer)["A"].detach().double(),
        "up": tensors(layer)["B"].detach().double(),
        "scaling": layer.scaling["default"],
        "gain": gain,
    }
    if dora:
        arguments["magnitude"] = tensors(layer)["magnitude"].detach().double()
    expected = reference.dora(**arguments) if dora else reference.lora(**arguments)
    torch.testing.assert_close(seen["y"].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_or_two_adapters_agree_with_peft(family: str, dora: bool) -> None:
    plain: dict[str, Any] = {"landmark_enabled": False, "position_bias": False, "use_dora": dora}
    ours = adapt(family, **plain)
    ours.add_adapter("second", settings(**plain))
    targets = list(ours.peft_config["default"].target_modules)
    config = LoraConfig(
        r=4,
        lora_alpha=4,
        use_rslora=True,
        use_dora=dora,
        target_modules=targets,
        fan_in_fan_out=family == "gpt2",
    )
    theirs = get_peft_model(build(family), config).eval()
    theirs.add_adapter("second", config)
    theirs.eval()
    with torch.no_grad():
        for name, tensor in ours.state_dict().items():
            if ".second." in name:
                tensor.add_(0.1)
    theirs.load_state_dict(ours.state_dict())
    for adapters in (["default"], ["default", "second"]):
        ours.base_model.set_adapter(adapters)
        theirs.base_model.set_adapter(adapters)
        torch.testing.assert_close(
            logits(ours, tokens()), logits(theirs, tokens()), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_only_lora_without_an_acting_position_bias_converts_to_lora(dora: bool) -> None:
    for bias in (False, True):
        model = adapt("llama", use_dora=dora, landmark_enabled=False, position_bias=bias)
        layers = [layer for _, layer in model.base_model.lora_layers("default")]
        expected = not (bias or dora)
        assert {layer.supports_lora_conversion("default") for layer in layers} == {expected}
