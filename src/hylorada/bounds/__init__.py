"""Bounds on the loss of unseen text, from the bytes of a model and its measured losses."""

from hylorada.bounds.betting import bet, betting
from hylorada.bounds.certificate import (
    Verification,
    issue,
    measured,
    payment,
    prefix_free,
    recompute,
)
from hylorada.bounds.empirical_bernstein import empirical_bernstein, supermartingale_bernstein
from hylorada.bounds.hoeffding import finite_hypothesis, loss_range
from hylorada.bounds.inequalities import INEQUALITIES, Inequality, LowerBound, Sample, clipped
from hylorada.bounds.kl_inverse import kl_inverse, kl_inverse_finite
from hylorada.bounds.statements import (
    Gain,
    Losses,
    mixture_bits,
    relative_gain,
    relative_gain_of_tokens,
    saved_bits,
    statements,
)
from hylorada.records.certificates import Certificate, Payment, Prior, Statement

__all__ = [
    "INEQUALITIES",
    "Certificate",
    "Gain",
    "Inequality",
    "Losses",
    "LowerBound",
    "Payment",
    "Prior",
    "Sample",
    "Statement",
    "Verification",
    "bet",
    "betting",
    "clipped",
    "empirical_bernstein",
    "finite_hypothesis",
    "issue",
    "kl_inverse",
    "kl_inverse_finite",
    "loss_range",
    "measured",
    "mixture_bits",
    "payment",
    "prefix_free",
    "recompute",
    "relative_gain",
    "relative_gain_of_tokens",
    "saved_bits",
    "statements",
    "supermartingale_bernstein",
]
