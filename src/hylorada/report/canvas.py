"""A sheet to draw one figure on, and its SVG in colours that follow the page's theme."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hylorada.errors import SpecError

# Each colour is the light theme's value of the CSS variable with the same name; the page swaps
# the value for the variable, so no two may be equal.
COLOURS = {
    "ink": "#1d2329",
    "muted": "#56606b",
    "rule": "#dde2e7",
    "band": "#eef1f4",
    "paper": "#ffffff",
    "accent": "#0a5ca8",
    "series-2": "#b4430f",
    "series-3": "#1a7547",
    "series-4": "#8b3a8e",
    "series-5": "#866000",
    "series-6": "#0f7480",
}
WIDE, NARROW = 832.0, 358.0
TEXT_SIZE = 12.5
FORMATS = ("svg", "png", "pdf")
STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.edgecolor": COLOURS["muted"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.8,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "hylorada",
    "pdf.fonttype": 42,
}
REFERENCE = re.compile(r"#([mpch][0-9a-f]{10})\b")
UNDATED: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


class Caption(NamedTuple):
    """What a figure shows: a sentence or two, and the numbers for those who do not see it."""

    text: str
    numbers: str


@dataclass(slots=True)
class Sheet:
    """A figure of a given width in pixels; its height follows from what is drawn."""

    width: float
    figure: Figure | None = field(default=None, init=False)

    @property
    def narrow(self) -> bool:
        """Return whether the figure is meant for a phone."""
        return self.width < 500

    def panels(
        self,
        count: int,
        *,
        columns: int,
        height: float,
        left: float = 46,
        right: float = 14,
        top: float = 38,
        bottom: float = 42,
        aside: float = 0,
    ) -> list[Axes]:
        """Return axes in a grid, each with these margins in pixels around a plot of `height`.

        `aside` is room for words right of the whole grid.
        """
        rows = -(-count // columns)
        cell_width, cell_height = (self.width - aside) / columns, height + top + bottom
        total = rows * cell_height
        self.figure = Figure(figsize=(self.width / 72, total / 72), dpi=72)
        return [
            self.figure.add_axes(
                (
                    (index % columns * cell_width + left) / self.width,
                    1 - (index // columns * cell_height + top + height) / total,
                    (cell_width - left - right) / self.width,
                    height / total,
                )
            )
            for index in range(count)
        ]

    def save(self, file: Path) -> None:
        """Write the figure for print or a paper: on white, in the format of the file's ending."""
        form = file.suffix.removeprefix(".")
        options: dict[str, Any] = {
            "format": form,
            "facecolor": COLOURS["paper"],
            "metadata": UNDATED[form],
        }
        self._drawn().savefig(file, dpi=200, **options)

    def svg(self, prefix: str, description: str) -> str:
        """Return the figure as SVG for a page, its ids starting with `prefix`.

        Colours follow the page's theme; the description is for those who do not see it.
        """
        text = io.StringIO()
        self._drawn().savefig(text, format="svg", transparent=True, metadata=UNDATED["svg"])
        kind = "narrow" if self.narrow else "wide"
        box, body = _for_page(text.getvalue(), f"{prefix}-{kind}")
        label = escape(description)
        return f'<svg class="{kind}" viewBox="{box}" role="img" aria-label="{label}">{body}</svg>'

    def _drawn(self) -> Figure:
        if self.figure is None:
            raise SpecError("a figure must be drawn before it is saved")
        return self.figure


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in our style, and leave matplotlib's settings as they were."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Fonts only lay text out here; the reader's browser has the glyphs of other scripts.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        yield


def _for_page(svg: str, prefix: str) -> tuple[str, str]:
    """Return the view box and the content, without what a page must not hold twice or at all."""
    opening, body = re.split(r"(?<=>)", svg[svg.index("<svg") :], maxsplit=1)
    box = opening.split('viewBox="')[1].split('"')[0]
    body = re.sub(r"<style.*?</style>", "", body[: body.rindex("</svg>")], flags=re.DOTALL)
    # Only tags are rewritten: what a run is called may look like a colour or an id.
    parts = re.split(r"(<[^>]*>)", body)
    tags = parts[1::2]
    used = [name for tag in tags for name in REFERENCE.findall(tag)]
    names = {old: f"{prefix}-{index}" for index, old in enumerate(dict.fromkeys(used))}
    parts[1::2] = [_themed(_renamed(tag, names)) for tag in tags]
    parts[::2] = [text if text.strip() else "" for text in parts[::2]]
    return box, "".join(parts)


def _renamed(tag: str, names: dict[str, str]) -> str:
    """Return a tag with page-wide names in place of its id and references; unused ids go."""
    tag = REFERENCE.sub(lambda found: f"#{names[found[1]]}", tag).replace("xlink:href", "href")
    return re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", tag)


def _themed(tag: str) -> str:
    """Return a tag with theme colours, the page's font and short coordinates."""
    for name, value in COLOURS.items():
        tag = tag.replace(value, f"var(--{name})")
    tag = re.sub(r"font-family: [^;\"]*(; |(?=\"))|stroke-linejoin: miter; ", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", tag)
    return re.sub(r"\s+", " ", tag)
