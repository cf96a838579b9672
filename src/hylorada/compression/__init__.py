"""From trained coordinates to the bytes of a message and back."""

from hylorada.compression.coder import decode, encode
from hylorada.compression.message import Message, parse
from hylorada.compression.quantise import Candidate, Quantised, candidates
from hylorada.compression.training import QuantizingWrapper, settle_gates

__all__ = [
    "Candidate",
    "Message",
    "Quantised",
    "QuantizingWrapper",
    "candidates",
    "decode",
    "encode",
    "parse",
    "settle_gates",
]
