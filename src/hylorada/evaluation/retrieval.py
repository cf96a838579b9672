"""Can the model use evidence wherever it stands? Answer loss and exact match by depth."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood
from hylorada.evaluation.rows import Row, RowScores, score_rows
from hylorada.evaluation.statistics import (
    Estimate,
    Floats,
    mean_estimate,
    proportion_estimate,
    ratio_estimate,
)
from hylorada.text.key_values import (
    KeyValueRecord,
    generate_key_values,
    key_value_probes,
    read_key_values,
)
from hylorada.text.probes import DEPTHS, EvidenceItem, Probe, evidence_items, passkey_items

MIDDLE = (0.25, 0.75)
EDGE = (0.1, 0.9)
RETRIEVAL_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TASKS = ("passkey", "key_value")
# A pair of UUIDs takes at least this many tokens with any common tokenizer.
TOKENS_PER_PAIR = 24


def evidence_position(
    likelihood: Likelihood,
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    items: int = 16,
    filler: NDArray[np.integer] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, object]:
    """Return the answer loss a(d) in nats by depth of the evidence, and what follows from it.

    The answer is teacher-forced. `value` is `exp(mean a over depths in [.25, .75])`; the gap is the
    middle less the edge (depths up to .1 and from .9), in nats, positive if the middle is lost.
    `utilisation` is the share of what the evidence is worth when it stands alone (oracle) against
    when it is absent (closed); it is `None` if the evidence is worth nothing even alone.
    """
    probes = evidence_items(
        tokenizer, length=length, count=items, seed=seed, depths=DEPTHS, filler=filler
    )
    rows = [_row(probe) for item in probes for probe in (*item.at_depth, item.closed, item.oracle)]
    scores = score_rows(likelihood, rows, description="evidence", progress=progress)
    means = np.array([score.losses.mean(dtype=np.float64) for score in scores])
    table = means.reshape(len(probes), len(DEPTHS) + 2)
    return {**summarise_evidence(table, _answer_sizes(probes), DEPTHS), "length": length}


def summarise_evidence(table: Floats, tokens: Floats, depths: Sequence[float]) -> dict[str, object]:
    """Return the evidence-position summary of mean answer losses, in nats.

    `table` has one row an item and one column a depth, then closed, then oracle; `tokens` counts
    each item's answer tokens, by which items are weighted.
    """
    at_depth, closed, oracle = table[:, :-2], table[:, -2], table[:, -1]
    places = np.array(depths)
    middle = (places >= MIDDLE[0]) & (places <= MIDDLE[1])
    edge = (places <= EDGE[0]) | (places >= EDGE[1])
    if not middle.any() or not edge.any():
        raise SpecError(
            f"depths must reach both the middle {MIDDLE} and the edge (outside {EDGE}); "
            f"got {list(depths)}"
        )
    in_middle, at_edge = at_depth[:, middle].mean(axis=1), at_depth[:, edge].mean(axis=1)
    used = [_utilisation(column, closed, oracle, tokens) for column in at_depth.T]
    known = [share.value for share in used if share is not None]
    return {
        **mean_estimate(in_middle, tokens).exponential().as_dict(),
        "unit": "perplexity of the answer",
        "cluster": "item",
        "scoring": "teacher-forced",
        "lim_gap": {**mean_estimate(in_middle - at_edge, tokens).as_dict(), "unit": "nats/token"},
        "utilisation": _plain(_utilisation(in_middle, closed, oracle, tokens)),
        "worst_utilisation": min(known) if known else None,
        "closed": {**mean_estimate(closed, tokens).as_dict(), "unit": "nats/token"},
        "oracle": {**mean_estimate(oracle, tokens).as_dict(), "unit": "nats/token"},
        "curve": [
            {
                "depth": depth,
                **mean_estimate(column, tokens).as_dict(),
                "unit": "nats/token",
                "utilisation": _plain(share),
            }
            for depth, column, share in zip(depths, at_depth.T, used, strict=True)
        ],
        "items": len(table),
        "tokens": int(tokens.sum()) * len(depths),
    }


def retrieval(
    likelihood: Likelihood,
    tokenizer: PreTrainedTokenizerBase,
    *,
    lengths: Sequence[int],
    items: int = 8,
    key_values: Path | None = None,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, object]:
    """Return exact match by task, length and depth, and how often single answer tokens match.

    An answer matches if every one of its tokens is the model's first choice after the tokens before
    it. That is greedy decoding: it writes the answer exactly when no token differs.
    `key_values` is a file in the lost-in-the-middle format; without it pairs are generated.
    """
    records = None if key_values is None else read_key_values(key_values, count=items)
    results: list[dict[str, object]] = []
    for task in TASKS:
        for length in lengths:
            try:
                probes = _task_probes(task, tokenizer, length, items, records, seed)
            except SpecError as error:
                # Too short for this task alone: the result says so, the others are still measured.
                results.append({"task": task, "length": length, "skipped": str(error)})
                continue
            rows = [_row(probe) for item in probes for probe in item]
            scores = score_rows(likelihood, rows, hits=True, description=task, progress=progress)
            found = summarise_matches(scores, RETRIEVAL_DEPTHS, len(probes))
            results.append({"task": task, "length": length, **found})
    return {
        "unit": "share of answers",
        "scoring": "greedy, by teacher-forced first choices",
        "cluster": "item",
        "results": results,
    }


def summarise_matches(
    scores: Sequence[RowScores], depths: Sequence[float], items: int
) -> dict[str, object]:
    """Return exact match by depth of scores ordered by item, then depth, with Wilson intervals.

    Items, not prompts, are the independent draws, so the overall interval counts items.
    """
    token_share = np.array([_hits(score).mean() for score in scores]).reshape(items, len(depths))
    matched = np.array([_hits(score).all() for score in scores]).reshape(items, len(depths))
    by_item = matched.mean(axis=1)
    curve = [
        {"depth": depth, **proportion_estimate(float(column.sum()), items).as_dict()}
        for depth, column in zip(depths, matched.T, strict=True)
    ]
    return {
        **proportion_estimate(float(by_item.sum()), items).as_dict(),
        "worst_depth": float(matched.mean(axis=0).min()),
        "matching_tokens": mean_estimate(token_share.mean(axis=1)).as_dict(),
        "items": items,
        "prompts": len(scores),
        "curve": curve,
    }


def _task_probes(
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    items: int,
    records: list[KeyValueRecord] | None,
    seed: int,
) -> list[list[Probe]]:
    depths = RETRIEVAL_DEPTHS
    if task == "passkey":
        hidden = passkey_items(tokenizer, length=length, count=items, seed=seed, depths=depths)
        return [list(item.at_depth) for item in hidden]
    if records is None:
        pairs = max(2, length // TOKENS_PER_PAIR)
        records = generate_key_values(count=items, pairs=pairs, seed=seed)
    return key_value_probes(tokenizer, records, length=length, depths=depths)


def _utilisation(losses: Floats, closed: Floats, oracle: Floats, tokens: Floats) -> Estimate | None:
    """Return `(closed - losses) / (closed - oracle)`, or `None` if the oracle gains nothing."""
    worth = (closed - oracle) * tokens
    if worth.sum() <= 0:
        return None
    return ratio_estimate((closed - losses) * tokens, worth)


def _plain(estimate: Estimate | None) -> dict[str, object] | None:
    return None if estimate is None else estimate.as_dict()


def _row(probe: Probe) -> Row:
    return Row(np.concatenate([probe.prompt, probe.answer]), probe.prompt.size)


def _answer_sizes(items: list[EvidenceItem]) -> Floats:
    return np.array([item.closed.answer.size for item in items], dtype=np.float64)


def _hits(score: RowScores) -> NDArray[np.bool_]:
    assert score.hits is not None
    return score.hits
