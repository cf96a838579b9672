"""A figure's SVG follows the theme, brings no id twice and leaves names as they are."""

import re
from html import unescape
from pathlib import Path

import matplotlib
import pytest

from hylorada.errors import SpecError
from hylorada.report.canvas import COLOURS, NARROW, WIDE, Sheet, styled

NAME = 'a <b> & $x$ #0a5ca8 0.12345 id="q" #m0123456789'


def drawn(width: float = WIDE, name: str = NAME) -> Sheet:
    """Return a sheet with two marked lines in theme colours, and a name."""
    sheet = Sheet(width)
    (axes,) = sheet.panels(1, columns=1, height=100)
    axes.plot([1, 2, 3], [1, 2, 1.5], "o-", color=COLOURS["accent"])
    axes.plot([1, 2, 3], [2, 1, 2.5], "s-", color=COLOURS["series-2"])
    axes.text(1, 1, name)
    return sheet


def themed(prefix: str = "one", width: float = WIDE) -> str:
    with styled():
        return drawn(width).svg(prefix, 'says "5 < 6"')


def test_colours_are_variables_of_the_page() -> None:
    svg = themed()
    assert "var(--accent)" in svg
    assert "var(--series-2)" in svg
    tags = "".join(re.findall("<[^>]*>", svg))
    assert not re.search("#[0-9a-f]{6}(?![0-9a-f])", tags.split(">", 1)[1])


def test_every_id_starts_with_the_prefix_and_every_reference_has_one() -> None:
    tags = "".join(re.findall("<[^>]*>", themed("arm-effects")))
    ids = re.findall(r' id="([^"]+)"', tags)
    references = set(re.findall(r'(?:href="|url\()#([^")]+)', tags))
    assert ids
    assert len(set(ids)) == len(ids)
    assert set(ids) == references
    assert all(name.startswith("arm-effects-wide-") for name in ids)


def test_a_name_that_looks_like_markup_stays_a_name() -> None:
    texts = [unescape(text) for text in re.findall("<text[^>]*>([^<]*)</text>", themed())]
    assert NAME in texts


def test_the_description_is_an_attribute_that_cannot_be_left() -> None:
    assert 'role="img" aria-label="says &quot;5 &lt; 6&quot;"' in themed()


def test_equal_figures_have_equal_svg() -> None:
    assert themed() == themed()


def test_a_narrow_sheet_is_for_a_phone() -> None:
    assert themed(width=NARROW).startswith('<svg class="narrow" viewBox="0 0 358 ')
    assert themed().startswith('<svg class="wide" viewBox="0 0 832 ')


def test_style_inside_the_svg_does_not_reach_the_page() -> None:
    assert "<style" not in themed()
    assert "font-family" not in themed()


@pytest.mark.parametrize("form", ["svg", "png", "pdf"])
def test_equal_figures_are_equal_files(tmp_path: Path, form: str) -> None:
    for name in ("a", "b"):
        with styled():
            drawn().save(tmp_path / f"{name}.{form}")
    first, second = ((tmp_path / f"{name}.{form}").read_bytes() for name in ("a", "b"))
    assert first == second
    assert len(first) > 1000


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(matplotlib.rcParams)
    themed()
    assert dict(matplotlib.rcParams) == before


def test_names_in_other_scripts_are_drawn_without_a_warning() -> None:
    with styled():
        assert "学习" in drawn(name="学习").svg("one", "")


def test_panels_fill_a_grid_row_by_row() -> None:
    with styled():
        boxes = [axes.get_position() for axes in Sheet(WIDE).panels(3, columns=2, height=100)]
    assert boxes[0].y0 == pytest.approx(boxes[1].y0)
    assert boxes[0].x0 == pytest.approx(boxes[2].x0)
    assert boxes[2].y1 < boxes[0].y0 < 1


def test_nothing_drawn_cannot_be_saved() -> None:
    with pytest.raises(SpecError, match="drawn before it is saved"):
        Sheet(WIDE).svg("one", "")


def test_no_two_colours_are_equal() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)
