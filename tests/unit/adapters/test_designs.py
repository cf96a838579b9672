"""A design is one registration: a new one needs no other line of the library."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn

from hylorada import HyLoRADAConfig, SpecError, count_landmark_params
from hylorada.adapters.designs import DESIGNS, Design, Gated
from hylorada.specs.run import OptimisationSpec
from hylorada.training.optimisation import build_optimizer
from tests.families import HIDDEN, adapt, build, logits, perturb, settings, tokens


class Tilt(nn.Module):
    """Adds one learned vector to each token, the further on in the text the more."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, hidden_states: Tensor, positions: Tensor) -> Tensor:
        return hidden_states + positions[..., None] * self.direction


@pytest.fixture
def tilt(monkeypatch: pytest.MonkeyPatch) -> Design:
    """Register a design of another package until the test ends."""
    monkeypatch.setattr(DESIGNS, "_entries", dict(DESIGNS))
    return DESIGNS.add(
        Design(
            name="tilt",
            words="a vector that grows with the position",
            module=Tilt,
            build=lambda settings, hidden_size, layers: Tilt(hidden_size),
            rate_multiplier=7.0,
            fewest_landmarks=3,
            switch="direction",
        )
    )


def test_a_design_from_outside_is_trained_saved_and_loaded(tilt: Design, tmp_path: Path) -> None:
    model = get_peft_model(build("llama"), settings(landmark_design=tilt.name)).train()
    assert count_landmark_params(model) == HIDDEN
    optimizer = build_optimizer(model, OptimisationSpec(learning_rate=1e-3), tilt.name)
    rates = {group["component"]: group["lr"] for group in optimizer.param_groups}
    assert rates["landmarks"] == pytest.approx(7e-3)
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    tuner = model.base_model
    moved = tuner.lora_shared["default"].landmarks.direction
    assert bool(moved.any())
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path)
    assert torch.equal(logits(loaded.eval(), tokens()), logits(model.eval(), tokens()))


def test_a_design_from_outside_has_its_limits_and_its_switch(tilt: Design) -> None:
    with pytest.raises(SpecError, match=r"num_landmarks must be at least 3 for .*'tilt'; got 2"):
        HyLoRADAConfig(landmark_design="tilt", num_landmarks=2)
    model = adapt("llama", landmark_design="tilt", perturbed=False, position_bias=False)
    state = model.base_model.shared_state("default")
    assert state.is_inert()
    assert not perturb(state).is_inert()


def test_a_design_without_a_switch_always_acts() -> None:
    design = Design(name="tilt", words="", module=Tilt, build=lambda s, d, n: Tilt(d))
    assert design.acts(Tilt(3))


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_is_switched_off_by_the_parameter_it_names(name: str) -> None:
    design = DESIGNS[name]
    module = perturb(design.build(settings(max_positions=16), 8, 2))
    assert design.acts(module)
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            if parameter_name.rpartition(".")[2] == design.switch:
                parameter.zero_()
    assert not design.acts(module)
    states = torch.randn(1, 5, 8)
    assert torch.equal(module(states, torch.arange(5)[None]), states)


@pytest.mark.parametrize("name", [name for name in DESIGNS if not DESIGNS[name].control])
def test_the_gates_of_landmarks_are_shares(name: str) -> None:
    module = perturb(DESIGNS[name].build(settings(max_positions=16), 8, 2))
    banks = [part for part in module.modules() if isinstance(part, Gated)]
    assert len(banks) == (2 if name == "per_layer" else 1)
    for bank in banks:
        weights = bank.gate_weights(torch.randn(2, 5, 8), torch.arange(5)[None])
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 5))


def test_an_unknown_design_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown design 'learnabel'; did you mean 'learnable'"):
        DESIGNS["learnabel"]
