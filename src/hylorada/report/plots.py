"""Every figure of the page, in its order. A new one is a function and a line in `FIGURES`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hylorada.report import allocation, curves, effects, frontiers, gains, gating, landmarks
from hylorada.report.canvas import NARROW, WIDE, Caption, Sheet, styled

Draw = Callable[[dict[str, Any], Sheet], Caption | None]


class Plot(NamedTuple):
    """A figure: its key, its heading, and what draws it.

    `draw(study, sheet)` returns what the figure shows in words and numbers, or None for a study
    without the data.
    """

    key: str
    heading: str
    draw: Draw


class Drawing(NamedTuple):
    """A figure for the page: its SVG for a desk and for a phone, and the caption of both."""

    wide: str
    narrow: str
    caption: str


FIGURES = (
    Plot("effects", "Effects", effects.forest),
    Plot("comparisons", "Candidates against controls", effects.comparisons),
    Plot("gain_curves", "Gain by length", gains.gain_curves),
    Plot("training", "Training", curves.training),
    Plot("positions", "Loss by position", curves.positions),
    Plot("depths", "Loss by depth of the evidence", curves.depths),
    Plot("boundaries", "Learned boundaries", landmarks.boundaries),
    Plot("gates", "Gates", landmarks.gates),
    Plot("frontier", "Parameters against perplexity", frontiers.parameters),
    Plot("bits_risk", "Bits against risk", allocation.bits_against_risk),
    Plot("compression", "Compression", allocation.compression),
    Plot("bound_parts", "What the bounds are made of", allocation.bound_parts),
    Plot("layer_gates", "Gates by layer and seed", gating.layer_gates),
    Plot("gate_trend", "Gates by depth", gating.gate_trend),
    Plot("gradient_norms", "Gradient norms", gating.gradient_norms),
    Plot("gradient_gates", "Gradients against gates", gating.gradient_gates),
    Plot("tuning", "Tuning", curves.tuning),
)


def drawing(plot: Plot, study: dict[str, Any], prefix: str) -> Drawing | None:
    """Return a figure for the page, or None where the study has no data for it."""
    with styled():
        wide, narrow = Sheet(WIDE), Sheet(NARROW)
        caption = plot.draw(study, wide)
        if caption is None or plot.draw(study, narrow) is None:
            return None
        described = f"{plot.heading}. {caption.text} {caption.numbers}"
        return Drawing(wide.svg(prefix, described), narrow.svg(prefix, described), caption.text)


def save(study: dict[str, Any], folder: Path, formats: list[str], stem: str = "") -> list[Path]:
    """Write every figure that the study has data for, once a format, and return the files."""
    files = []
    for plot in FIGURES if formats else ():
        with styled():
            sheet = Sheet(WIDE)
            if plot.draw(study, sheet) is None:
                continue
            for form in formats:
                files.append(folder / f"{stem}{plot.key}.{form}")
                sheet.save(files[-1])
    return files
