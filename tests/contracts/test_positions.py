"""Every way of computing a token's logits agrees, because every module knows its true position."""

from functools import cache
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    NanoChatConfig,
    NanoChatForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from hylorada import UnsupportedModelError
from tests.families import (
    EVERY_CASE,
    FAMILIES,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    adapt,
    build,
    logits,
    tokens,
)

Changes = dict[str, Any]
TOLERANCE: dict[str, Any] = {"atol": 2e-4, "rtol": 2e-4}
PADDING = 5


def in_pieces(model: nn.Module, rows: Tensor, pieces: list[int], **inputs: Any) -> Tensor:
    """Return the logits of a row decoded with a cache, the given number of tokens at a time."""
    found, start, past = [], 0, None
    for piece in pieces:
        with torch.no_grad():
            out = model(
                input_ids=rows[:, start : start + piece],
                past_key_values=past,
                use_cache=True,
                **{name: value[:, : start + piece] for name, value in inputs.items()},
            )
        past, start = out.past_key_values, start + piece
        found.append(out.logits)
    return torch.cat(found, dim=1)


def left_padded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows with padding before the second one's last tokens, and the mask for it."""
    padded, mask = rows.clone(), torch.ones_like(rows)
    padded[1, :PADDING], mask[1, :PADDING] = 0, 0
    return padded, mask


def true_positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


@cache
def base_reads_positions_from_the_mask(family: str) -> bool:
    """Whether the family itself gives padded rows their unpadded logits from the mask alone."""
    padded, mask = left_padded(tokens())
    found = logits(build(family), padded, attention_mask=mask)[1, PADDING:]
    alone = logits(build(family), padded[1:, PADDING:])[0]
    return torch.allclose(found, alone, **TOLERANCE)


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_decoding_with_a_cache_agrees_with_one_pass(family: str, changes: Changes) -> None:
    model, rows = adapt(family, **changes), tokens()  # longer than the sliding windows
    whole = logits(model, rows)
    one_by_one = in_pieces(model, rows, [1] * 20)
    torch.testing.assert_close(one_by_one, whole, **TOLERANCE)
    chunked = in_pieces(model, rows, [9, 4, 1, 1, 5])
    torch.testing.assert_close(chunked, whole, **TOLERANCE)


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_a_left_padded_row_agrees_with_itself_alone(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    padded, mask = left_padded(tokens())
    alone = logits(model, padded[1:, PADDING:])[0]
    inputs = [{"position_ids": true_positions(mask)}] if family != "bloom" else []
    if base_reads_positions_from_the_mask(family):
        inputs.append({})
    assert inputs
    for extra in inputs:
        found = logits(model, padded, attention_mask=mask, **extra)
        torch.testing.assert_close(found[1, PADDING:], alone, **TOLERANCE)
        torch.testing.assert_close(found[0], logits(model, padded)[0], **TOLERANCE)


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_a_right_padded_row_agrees_with_itself_alone(family: str, changes: Changes) -> None:
    model, rows = adapt(family, **changes), tokens()
    mask = torch.ones_like(rows)
    mask[1, -PADDING:] = 0
    found = logits(model, rows, attention_mask=mask)
    torch.testing.assert_close(
        found[1, :-PADDING], logits(model, rows[1:, :-PADDING])[0], **TOLERANCE
    )


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_a_left_padded_batch_generates_what_each_row_generates(
    family: str, changes: Changes
) -> None:
    model = adapt(family, **changes)
    padded, mask = left_padded(tokens(time=12))

    def scores(rows: Tensor, mask: Tensor) -> Tensor:
        found = model.generate(
            input_ids=rows,
            attention_mask=mask,
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return torch.stack(found.logits, dim=1)

    together = scores(padded, mask)
    torch.testing.assert_close(together[:1], scores(padded[:1], mask[:1]), **TOLERANCE)
    alone = scores(padded[1:, PADDING:], mask[1:, PADDING:])
    torch.testing.assert_close(together[1:], alone, **TOLERANCE)


def packed_and_alone(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the logits of three documents in one row, and of each document by itself."""
    row, lengths = tokens(batch=1, time=22), [9, 1, 12]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = logits(model, row, position_ids=positions, use_cache=False)
    alone = [logits(model, document) for document in row.split(lengths, dim=1)]
    return packed, torch.cat(alone, dim=1)


# Bloom's ALiBi ignores position_ids, and OPT's attention crosses documents in one row.
UNABLE_TO_PACK = ("bloom", "opt")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_base_model_packs_unless_it_is_known_not_to(family: str) -> None:
    packed, alone = packed_and_alone(build(family))
    assert torch.allclose(packed, alone, **TOLERANCE) == (family not in UNABLE_TO_PACK)


@pytest.mark.parametrize(
    ("family", "changes"), [c for c in EVERY_CASE if c.values[0] not in UNABLE_TO_PACK]
)
def test_packed_documents_agree_with_documents_alone(family: str, changes: Changes) -> None:
    packed, alone = packed_and_alone(adapt(family, **changes))
    torch.testing.assert_close(packed, alone, **TOLERANCE)


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_a_token_changes_nothing_before_it(family: str, changes: Changes) -> None:
    model, rows = adapt(family, **changes), tokens()
    before = logits(model, rows)
    changed = rows.clone()
    changed[:, 13] = (changed[:, 13] - 2) % (VOCABULARY - 3) + 3
    after = logits(model, changed)
    assert torch.equal(after[:, :13], before[:, :13])
    assert not torch.allclose(after[:, 13:], before[:, 13:], atol=1e-3)


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_every_way_to_generate_gives_the_same_tokens(family: str, changes: Changes) -> None:
    model, rows = adapt(family, **changes), tokens(time=8)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}

    def continuation(rows: Tensor, **how: Any) -> Tensor:
        return model.generate(
            input_ids=rows, attention_mask=torch.ones_like(rows), **options, **how
        )

    plain = continuation(rows, use_cache=False)
    assert torch.equal(continuation(rows), plain)
    if family != "bloom":  # needs a cache that grows
        assert torch.equal(continuation(rows, cache_implementation="static"), plain)
    beams = continuation(rows, num_beams=3, use_cache=False)
    assert torch.equal(continuation(rows, num_beams=3), beams)
    assert torch.equal(continuation(rows[:1], prompt_lookup_num_tokens=2), plain[:1])


@pytest.mark.parametrize("design", ["position_adaptive", "original", "per_layer"])
def test_assisted_decoding_agrees_with_plain_decoding(design: str) -> None:
    model, row = adapt("llama", landmark_design=design), tokens(batch=1, time=8)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    options["attention_mask"] = torch.ones_like(row)
    plain = model.generate(input_ids=row, **options)
    assisted = model.generate(input_ids=row, assistant_model=build("llama"), **options)
    assert torch.equal(assisted, plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_matter(family: str) -> None:
    """Without this the agreement of all the ways above would prove nothing."""
    model, rows = adapt(family), tokens(time=12)
    here = torch.arange(12)[None]
    if family == "bloom":
        bias = model.base_model.shared_state("default").position_bias
        assert not torch.allclose(bias(here, 1, 1), bias(here + 40, 1, 1), atol=1e-2)
        return
    near = logits(model, rows, position_ids=here)
    far = logits(model, rows, position_ids=here + 40)
    base_near = logits(build(family), rows, position_ids=here)
    base_far = logits(build(family), rows, position_ids=here + 40)
    assert (near - far).abs().max() > (base_near - base_far).abs().max() + 1e-2


def test_positions_beyond_the_trained_context_use_the_last_bucket() -> None:
    model, rows = adapt("llama", max_positions=16), tokens(time=40)
    torch.testing.assert_close(in_pieces(model, rows, [30, 10]), logits(model, rows), **TOLERANCE)


def test_a_cached_left_padded_batch_agrees_in_pieces() -> None:
    model = adapt("llama", landmark_design="original")
    padded, mask = left_padded(tokens())
    whole = logits(model, padded, attention_mask=mask)
    pieces = in_pieces(model, padded, [9, 1, 10], attention_mask=mask)
    torch.testing.assert_close(pieces[0], whole[0], **TOLERANCE)
    torch.testing.assert_close(pieces[1, PADDING:], whole[1, PADDING:], **TOLERANCE)


@pytest.mark.parametrize(
    "model",
    [
        MambaForCausalLM(
            MambaConfig(
                vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, state_size=4
            )
        ),
        RwkvForCausalLM(
            RwkvConfig(vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS)
        ),
    ],
    ids=["mamba", "rwkv"],
)
@pytest.mark.parametrize("targets", [["in_proj", "key"], None], ids=["named", "default"])
def test_a_recurrent_model_is_refused_in_one_line(
    model: nn.Module, targets: list[str] | None
) -> None:
    with pytest.raises(UnsupportedModelError, match="recurrent") as refusal:
        adapt("", base=model, target_modules=targets)
    assert "\n" not in str(refusal.value)


def test_a_norm_used_twice_is_refused() -> None:
    base = NanoChatForCausalLM(
        NanoChatConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
        )
    )
    model = adapt("", base=base, target_modules=["q_proj"])
    with pytest.raises(UnsupportedModelError, match="more than once"):
        logits(model, tokens())


def test_going_around_the_model_is_refused() -> None:
    model = adapt("llama")
    decoder = model.base_model.model.model
    with pytest.raises(UnsupportedModelError, match="positions are unknown"):
        decoder.forward(input_ids=tokens())


@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_may_know_positions(family: str, use_dora: bool) -> None:
    """OPT's MLP gets the tokens of all sequences as one matrix."""
    model = adapt(family, target_modules="all-linear", use_dora=use_dora)
    batch = tokens(batch=3)
    whole = logits(model, batch)
    alone = torch.cat([logits(model, row[None]) for row in batch])
    torch.testing.assert_close(whole, alone, atol=2e-5, rtol=2e-4)
    steps, cache = [], None
    with torch.no_grad():
        for token in batch.split(1, dim=1):
            output = model(input_ids=token, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=2e-5, rtol=2e-4)


def test_two_threads_at_once_are_refused_and_the_first_is_not_disturbed() -> None:
    model, batch = adapt("llama"), tokens()
    expected, refused = logits(model, batch), []

    def another(module: nn.Module, args: Any) -> None:
        thread = Thread(target=lambda: refused.append(attempt(model, batch)))
        thread.start()
        thread.join()

    model.base_model.model.model.layers[1].register_forward_pre_hook(another)
    assert torch.equal(logits(model, batch), expected)
    assert len(refused) == 1
    assert "one forward pass at a time" in refused[0]


def attempt(model: nn.Module, batch: Tensor) -> str:
    """Return what a pass is refused with."""
    with pytest.raises(UnsupportedModelError) as refusal:
        logits(model, batch)
    return str(refusal.value)


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.up_proj", "model.layers.0.self_attn"], ids=["wide", "tuple"]
)
def test_a_landmark_module_that_returns_no_hidden_states_is_refused(name: str) -> None:
    model = adapt("llama", landmark_module=name)
    with pytest.raises(UnsupportedModelError, match="must return hidden states 32 wide"):
        logits(model, tokens())


def test_positions_of_another_length_are_refused() -> None:
    model = adapt("gpt2")
    with pytest.raises(UnsupportedModelError, match="got 1 positions for 20 tokens"):
        logits(model, tokens(), position_ids=torch.zeros(1, 1, dtype=torch.long))
