"""The study `halves`: the design beside the closest ones of hylorada, and a control."""

from hylorada.studies import STUDIES, Definition
from hylorada.studies.components import single_components

STUDIES.add(
    Definition(
        name="halves",
        title="Is the half of the context all that a landmark's gate needs to know?",
        parts=single_components("halves", "position_adaptive", "static"),
    )
)
