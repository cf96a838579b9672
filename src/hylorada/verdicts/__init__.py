"""The verdict on the arms of a study: paired, simultaneous, and honest about what stays open."""

from hylorada.records.studies import Comparison
from hylorada.verdicts.judge import Arm, judge
from hylorada.verdicts.labels import VerdictSpec
from hylorada.verdicts.sentences import Judgement, Verdict

__all__ = ["Arm", "Comparison", "Judgement", "Verdict", "VerdictSpec", "judge"]
