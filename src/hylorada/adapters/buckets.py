"""Position buckets: which row of a table a token's position reads.

Every bucket is reachable within `max_positions`, because a row that no position reads never trains.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from hylorada.names import require_one_of, whole_number

SPACINGS = ("log", "uniform")


def bucket_table(spacing: str, buckets: int, max_positions: int) -> Int[Tensor, " positions"]:
    """Return the bucket of each position 0 .. max_positions - 1.

    `uniform` cuts the positions into equal parts. `log` is exact for the first half of the
    buckets and logarithmic after it. Where the logarithm would leap over a bucket (short contexts)
    the spacing is uniform; where there are fewer positions than buckets each position is its own.
    """
    require_one_of("bucket spacing", spacing, SPACINGS)
    buckets = whole_number("the number of buckets", buckets)
    max_positions = whole_number("max_positions", max_positions, "give the context length")
    positions = torch.arange(max_positions)
    uniform = positions * min(buckets, max_positions) // max_positions
    if spacing == "uniform" or max_positions <= buckets:
        return uniform
    exact = max(buckets // 2, 1)
    growth = torch.log(positions.clamp(min=exact).double() / exact)
    scale = (buckets - exact) / torch.log(torch.tensor(max_positions / exact, dtype=torch.float64))
    logarithmic = (exact + (growth * scale).long()).clamp(max=buckets - 1)
    table = torch.where(positions < exact, positions, logarithmic)
    reaches_every_bucket = table.unique().numel() == buckets
    return table if reaches_every_bucket else uniform


def read_bucket(
    table: Int[Tensor, " positions"], positions: Int[Tensor, "*shape"]
) -> Int[Tensor, "*shape"]:
    """Return the bucket of each position; positions beyond the table share its last bucket."""
    return table[positions.clamp(0, table.numel() - 1)]
