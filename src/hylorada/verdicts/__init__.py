"""The verdict on the arms of a study: paired, simultaneous, and honest about what stays open."""

from hylorada.verdicts.allocation import hypotheses
from hylorada.verdicts.arms import Arm
from hylorada.verdicts.judge import judge
from hylorada.verdicts.judgements import Comparison, Judgement, Verdict
from hylorada.verdicts.labels import VerdictSpec

__all__ = ["Arm", "Comparison", "Judgement", "Verdict", "VerdictSpec", "hypotheses", "judge"]
