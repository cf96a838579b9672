"""The metric `hard_share`: the share of tokens that cost more than ten bits."""

import math
from dataclasses import replace

import numpy as np
from msgspec.structs import asdict

from hylorada.evaluation.metrics import METRICS, Case, Metric
from hylorada.records.evaluations import Quantity

LIMIT_BITS = 10


def hard_share(case: Case) -> Quantity:
    """Return the share of hard tokens, its interval clustered by document.

    `case.corpus` holds the losses of one pass over the text, which all metrics share.
    """
    hard = case.corpus.losses > LIMIT_BITS * math.log(2)
    share = replace(case.corpus, losses=hard.astype(np.float32)).mean_loss()
    return Quantity(**asdict(share), unit="share of tokens", cluster=case.corpus.cluster_unit)


METRICS.add(Metric("hard_share", f"Share of tokens above {LIMIT_BITS} bits.", hard_share))
