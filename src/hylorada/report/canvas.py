"""A sheet to draw one figure on, and its SVG in colours that follow the page's theme."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hylorada.errors import SpecError

STYLE_SHEET = (files("hylorada.report") / "page.css").read_text(encoding="utf-8")
# The light theme's variables; the page swaps values for variables, so no two may be equal.
COLOURS: dict[str, str] = dict(re.findall(r"--([\w-]+): (#\w+);", STYLE_SHEET.partition("}")[0]))
WIDE, NARROW = 832.0, 358.0
TEXT_SIZE = 12.5
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
UNDATED: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
FORMATS = tuple(UNDATED)


class Caption(NamedTuple):
    """What a figure shows: a sentence or two, and the numbers for those who do not see it."""

    text: str
    numbers: str = ""


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
        height: float,
        columns: int = 0,
        left: float = 46,
        right: float = 14,
        top: float = 38,
        bottom: float = 42,
        aside: float = 0,
    ) -> list[Axes]:
        """Return axes in a grid, each with these margins in pixels around a plot of `height`.

        `aside` is room for words right of the whole grid. Without `columns` there are two, and one
        on a phone.
        """
        columns = columns or min(count, 1 if self.narrow else 2)
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
        paper = COLOURS["paper"]
        self._drawn().savefig(file, dpi=200, format=form, facecolor=paper, metadata=UNDATED[form])

    def svg(self, prefix: str, description: str) -> str:
        """Return the figure as SVG for a page, its ids starting with `prefix`.

        Colours follow the page's theme; the description is for those who do not see it.
        """
        text = io.StringIO()
        self._drawn().savefig(text, format="svg", transparent=True, metadata=UNDATED["svg"])
        svg, kind = text.getvalue(), "narrow" if self.narrow else "wide"
        opening, body = re.split(r"(?<=>)", svg[svg.index("<svg") :], maxsplit=1)
        box = opening.split('viewBox="')[1].split('"')[0]
        body = re.sub(r"<style.*?</style>", "", body[: body.rindex("</svg>")], flags=re.DOTALL)
        # Only tags are rewritten: what a run is called may look like a colour or an id.
        parts = re.split(r"(<[^>]*>)", body)
        used = dict.fromkeys(name for tag in parts[1::2] for name in REFERENCE.findall(tag))
        names = {old: f"{prefix}-{kind}-{index}" for index, old in enumerate(used)}
        parts[1::2] = [_for_page(tag, names) for tag in parts[1::2]]
        body = "".join(part for part in parts if part.strip())
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


def _for_page(tag: str, names: dict[str, str]) -> str:
    """Return a tag with page-wide ids, the page's colours and font, and short coordinates."""
    tag = REFERENCE.sub(lambda found: f"#{names[found[1]]}", tag).replace("xlink:href", "href")
    # An id that nothing refers to goes.
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", tag)
    for name, value in COLOURS.items():
        tag = tag.replace(value, f"var(--{name})")
    tag = re.sub(r"font-family: [^;\"]*(; |(?=\"))|stroke-linejoin: miter; ", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", tag)
    return re.sub(r"\s+", " ", tag)
