"""From trained coordinates to the bytes of a message and back."""

from hylorada.compression.codebooks import Codebook, Quantised
from hylorada.compression.coder import decode, encode, ideal_bits
from hylorada.compression.estimates import (
    adaptive_bits,
    coded_bits,
    entropy_bits,
    prefix_free_bits,
    published_bits,
)
from hylorada.compression.gates import QuantisedGates, quantise_gates
from hylorada.compression.message import Message, parse
from hylorada.compression.probabilities import AdaptiveModel, StaticModel, static_model
from hylorada.compression.quantise import exact, fitted, kmeans, symmetric, uniform
from hylorada.compression.search import Candidate, candidates, least_bits
from hylorada.compression.training import QuantizingWrapper, settle_gates

__all__ = [
    "AdaptiveModel",
    "Candidate",
    "Codebook",
    "Message",
    "Quantised",
    "QuantisedGates",
    "QuantizingWrapper",
    "StaticModel",
    "adaptive_bits",
    "candidates",
    "coded_bits",
    "decode",
    "encode",
    "entropy_bits",
    "exact",
    "fitted",
    "ideal_bits",
    "kmeans",
    "least_bits",
    "parse",
    "prefix_free_bits",
    "published_bits",
    "quantise_gates",
    "settle_gates",
    "static_model",
    "symmetric",
    "uniform",
]
