"""Score rows of different lengths in batches: padding is added, masked and never counted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood
from hylorada.evaluation.progress import track
from hylorada.text.batches import IGNORED, pad_documents


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens for one forward pass; those before index `first_scored` are context only."""

    tokens: NDArray[np.int64]
    first_scored: int

    def __post_init__(self) -> None:
        if not 1 <= self.first_scored < self.tokens.size:
            raise SpecError(
                "a row needs a token to predict and one before it: first_scored must lie in "
                f"1..{self.tokens.size - 1}; got {self.first_scored}"
            )

    @property
    def targets(self) -> int:
        """Return the number of scored tokens."""
        return self.tokens.size - self.first_scored


@dataclass(frozen=True, slots=True)
class RowScores:
    """Losses in nats of one row's targets, and whether each is the model's first choice."""

    losses: NDArray[np.float32]
    hits: NDArray[np.bool_] | None = None


def score_rows(
    likelihood: Likelihood,
    rows: Sequence[Row],
    *,
    hits: bool = False,
    description: str = "rows",
    progress: bool = False,
) -> list[RowScores]:
    """Return the scores of every row, in the order given; similar lengths share a batch."""
    order = sorted(range(len(rows)), key=lambda index: rows[index].tokens.size)
    losses, found = [], []
    batches = list(_batches([rows[index] for index in order], likelihood))
    for batch in track(batches, description, enabled=progress):
        result = likelihood.token_losses(**_padded(batch), hits=hits)
        losses.append(result.losses[result.scored])
        if result.hits is not None:
            found.append(result.hits[result.scored])
    # One transfer at the end: a copy in every step would make an accelerator wait.
    ends = np.cumsum([rows[index].targets for index in order])[:-1]
    loss_parts = np.split(torch.cat(losses).cpu().numpy(), ends) if losses else []
    hit_parts = np.split(torch.cat(found).cpu().numpy(), ends) if found else None
    scores: dict[int, RowScores] = {}
    for rank, index in enumerate(order):
        scores[index] = RowScores(
            loss_parts[rank], None if hit_parts is None else hit_parts[rank].astype(np.bool_)
        )
    return [scores[index] for index in range(len(rows))]


def _batches(rows: list[Row], likelihood: Likelihood) -> Iterator[list[Row]]:
    """Yield runs of the sorted rows whose padded size stays within a batch's tokens."""
    batch: list[Row] = []
    for row in rows:
        if batch and len(batch) >= likelihood.rows_of(row.tokens.size):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _padded(rows: list[Row]) -> dict[str, Tensor]:
    """Return input ids, labels and attention mask; the pad token's value is never seen."""
    items = []
    for row in rows:
        tokens = torch.from_numpy(row.tokens)
        labels = tokens.clone()
        labels[: row.first_scored] = IGNORED
        items.append({"input_ids": tokens, "labels": labels})
    return pad_documents(items, pad_token_id=0)
