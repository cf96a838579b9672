"""Axes that are easy to read: few ticks, plain numbers, a heading in place of a turned label."""

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from hylorada.report.canvas import COLOURS

STEPS = [1, 2, 2.5, 5, 10]


def extent(axes: Axes) -> tuple[float, float]:
    """Return the width and height of a plot in pixels."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    box = axes.get_position()
    return float(width) * 72 * box.width, float(height) * 72 * box.height


def title(axes: Axes, text: str, *, left: float = 40) -> None:
    """Write what a plot shows above it, starting `left` pixels left of it."""
    width, height = extent(axes)
    place = (-left / width, 1 + 13 / height)
    axes.text(*place, text, transform=axes.transAxes, va="bottom", ha="left")


def few_ticks(
    axes: Axes, *, x: int = 6, y: int = 5, x_label: str = "", whole: bool = False
) -> None:
    """Give both axes a handful of ticks and thin lines to read values off; steps are `whole`."""
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label, color=COLOURS["muted"], labelpad=5)
    for axis, count in ((axes.xaxis, x), (axes.yaxis, y)):
        integer = whole and axis is axes.xaxis
        axis.set_major_locator(MaxNLocator(count, steps=STEPS, integer=integer))
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def logarithmic(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with few ticks."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    steps = (1.0,) if decades > 4 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """Return a tick's number without needless digits."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return power(value)
    return f"{value:,.10g}".replace("-", "\u2212")


def power(value: float) -> str:
    """Return a tick's number as a digit and a power of ten: 3e−4."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "\u2212")
