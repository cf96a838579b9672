"""Studies: what each compares, how it is run and judged, and what is said of it.

A study of your own is a `Definition`, registered with `STUDIES.add`.
"""

from hylorada.specs.study import StudyOptions, StudyPlace
from hylorada.studies.definitions import STUDIES, Definition, Parts, plan_of
from hylorada.studies.plan import ArmPlan, Contrast, arm

__all__ = [
    "STUDIES",
    "ArmPlan",
    "Contrast",
    "Definition",
    "Parts",
    "StudyOptions",
    "StudyPlace",
    "arm",
    "plan_of",
]
