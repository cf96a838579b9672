"""The studies in the repository give the pages that lie beside them."""

import re
from html import unescape
from pathlib import Path

import pytest

from hylorada.report.page import render
from hylorada.report.reading import load

STUDIES = Path(__file__).parents[3] / "benchmarks" / "results" / "studies"


def texts(page: str, element: str) -> list[str]:
    """Return what can be read in every such element, spaces and our version apart."""
    page = re.sub(r"hylorada \d[\d.]*", "hylorada", page)
    found = re.finditer(rf"<({element})[ >].*?</\1>", page, re.DOTALL)
    return [" ".join(unescape(re.sub("<[^>]*>", " ", one[0])).split()) for one in found]


@pytest.mark.parametrize("folder", sorted(STUDIES.iterdir()), ids=lambda folder: folder.name)
def test_a_page_of_the_release_is_drawn_again_with_nothing_lost(folder: Path) -> None:
    page, before = render(*load(folder)), (folder / "report.html").read_text(encoding="utf-8")
    for element in ("h[1-3]", "table", "p|li|dl", "figcaption"):
        assert texts(page, element) == texts(before, element)
    assert page.count("<svg") == before.count("<svg") > 10
