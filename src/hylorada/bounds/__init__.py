"""Bounds on the loss of unseen text, from the bytes of a model and its measured losses."""

from hylorada.bounds.bernstein import (
    Spread,
    empirical_bernstein,
    empirical_bernstein_subsampled,
    supermartingale_bernstein,
)
from hylorada.bounds.betting import bet, bet_on_draws, betting, betting_subsampled
from hylorada.bounds.certificate import Certificate, Prior, issue
from hylorada.bounds.classical import (
    finite_hypothesis,
    kl_inverse,
    kl_inverse_finite,
    kl_inverse_subsampled,
    loss_range,
    subsampled,
    token_level,
)
from hylorada.bounds.complexity import Choice, Ledger, prefix_free
from hylorada.bounds.evidence import Evidence
from hylorada.bounds.relative import (
    Gain,
    mixture_bits,
    relative_gain,
    relative_gain_of_tokens,
    saved_bits,
)
from hylorada.bounds.statements import Statement, statements
from hylorada.bounds.verification import Verdict, recompute

__all__ = [
    "Certificate",
    "Choice",
    "Evidence",
    "Gain",
    "Ledger",
    "Prior",
    "Spread",
    "Statement",
    "Verdict",
    "bet",
    "bet_on_draws",
    "betting",
    "betting_subsampled",
    "empirical_bernstein",
    "empirical_bernstein_subsampled",
    "finite_hypothesis",
    "issue",
    "kl_inverse",
    "kl_inverse_finite",
    "kl_inverse_subsampled",
    "loss_range",
    "mixture_bits",
    "prefix_free",
    "recompute",
    "relative_gain",
    "relative_gain_of_tokens",
    "saved_bits",
    "statements",
    "subsampled",
    "supermartingale_bernstein",
    "token_level",
]
