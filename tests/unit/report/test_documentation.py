"""What docs/report.md shows works as it stands."""

import re
from pathlib import Path
from typing import Any

import msgspec

from hylorada.records.studies import FiguresData
from hylorada.report.canvas import WIDE, Sheet, styled
from hylorada.report.figures import FIGURES, Figure, drawing
from tests.unit.report.example import small

TEXT = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_figure_of_the_documentation_can_be_drawn() -> None:
    (snippet,) = (
        code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "def " in code
    )
    names: dict[str, Any] = {"__name__": "mine"}
    exec(snippet, names)
    with styled():
        caption = names["seeds"](small(), Sheet(WIDE))
    assert caption.text == "Perplexity of every seed."
    assert drawing(Figure("seeds", "Seeds", names["seeds"]), small(), "x") is not None


def test_every_key_of_figures_data_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", TEXT, re.MULTILINE))
    assert documented == {field.name for field in msgspec.structs.fields(FiguresData)}
    assert documented - {"risk_unit"} <= set(FIGURES)
