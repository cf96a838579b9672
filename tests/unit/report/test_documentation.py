"""What docs/report.md shows works as it stands."""

import re
from pathlib import Path
from typing import Any

from hylorada.report.canvas import COLOURS, WIDE, Caption, Sheet, styled
from hylorada.report.plots import FIGURES, Plot, drawing
from hylorada.report.reading import checked
from tests.unit.report.example import allocation, small

TEXT = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_figure_of_the_documentation_can_be_drawn() -> None:
    (snippet,) = re.findall(r"```python\n(def .*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {"Any": Any, "Sheet": Sheet, "Caption": Caption, "COLOURS": COLOURS}
    exec(snippet, names)
    with styled():
        caption = names["seeds"](checked(small()), Sheet(WIDE))
    assert caption.text == "Perplexity of every seed."
    assert drawing(Plot("seeds", "Seeds", names["seeds"]), checked(small()), "x") is not None


def test_every_key_of_figures_data_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", TEXT, re.MULTILINE))
    assert documented == set(allocation()["figures_data"])
    assert documented - {"risk_unit"} <= {plot.key for plot in FIGURES}
