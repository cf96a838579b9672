"""The page in a real browser: complete, quiet, and as wide as the screen at most."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hylorada.files import write_record
from hylorada.report.figures import in_order
from hylorada.report.page import write
from tests.unit.report.allocation_study import allocation_study
from tests.unit.report.example import allocation, small

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 24, 28)"

# Where everything has to be tested, a missing browser is a failure.
pytestmark = pytest.mark.skipif(
    BROWSER is None and "CI" not in os.environ, reason="needs Chromium or Chrome on the PATH"
)
PICTURES = sum(figure.draw is not None for figure in in_order())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return pages of a study with every section, of two studies, and of one with 12 arms."""
    folder = tmp_path_factory.mktemp("studies")
    studies = {
        "one": allocation(),
        "both/first": small(),
        "both/second": small(study="other"),
        "divided": allocation_study(),
    }
    for name, study in studies.items():
        (folder / name).mkdir(parents=True)
        write_record(folder / name / "study.json", study)
    return {
        "one": write(folder / "one", folder / "one.html"),
        "several": write(folder / "both", folder / "several.html"),
        "divided": write(folder / "divided", folder / "divided.html"),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as starter:
        browser = starter.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield browser
        browser.close()


class Visit:
    """An opened page, and whatever it complained about or asked for."""

    def __init__(self, browser: Any, place: Path, *, width: int = 1100, scheme: str = "light"):
        self.complaints: list[str] = []
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.complaints.append(request.url))
        self.page.goto(place.as_uri())
        self.complaints.remove(place.as_uri())

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        return self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")

    def colour(self, selector: str, name: str) -> str:
        return self.page.eval_on_selector(selector, f"e => getComputedStyle(e).{name}")

    def shown(self, selector: str) -> int:
        script = "all => all.filter(e => e.getBoundingClientRect().width > 0).length"
        return self.page.eval_on_selector_all(selector, script)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 375])
@pytest.mark.parametrize("name", ["one", "several", "divided"])
def test_a_page_is_quiet_and_fits_the_screen(
    browser: Any, places: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    visit = Visit(browser, places[name], width=width, scheme=scheme)
    assert visit.complaints == []
    assert visit.overflow() <= 0


def test_every_section_is_seen(browser: Any, places: dict[str, Path]) -> None:
    page = Visit(browser, places["one"]).page
    headings = page.locator("h2").all_inner_texts()
    figures = [figure.words for figure in in_order()]
    assert headings == ["Verdict", *figures, "Plan", "Provenance", "How to reproduce"]
    assert page.locator("h1").inner_text() == "Where should the coordinates go?"
    assert page.locator(".answer").first.inner_text().startswith("Position-adaptive landmarks")


@pytest.mark.parametrize(("width", "kind"), [(1100, "wide"), (375, "narrow")])
def test_each_figure_is_seen_once_in_the_form_for_the_screen(
    browser: Any, places: dict[str, Path], width: int, kind: str
) -> None:
    visit = Visit(browser, places["one"], width=width)
    assert visit.shown("figure svg") == visit.shown(f"figure svg.{kind}") == PICTURES


@pytest.mark.parametrize("name", ["one", "divided"])
@pytest.mark.parametrize("width", [1100, 375])
def test_words_of_a_figure_stay_inside_it_and_can_be_read(
    browser: Any, places: dict[str, Path], name: str, width: int
) -> None:
    page = Visit(browser, places[name], width=width).page
    outside = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
             const box = svg.getBoundingClientRect();
             return box.width === 0 ? [] : [...svg.querySelectorAll('text')].filter(text => {
               const own = text.getBoundingClientRect();
               return own.left < box.left - 2 || own.right > box.right + 2 || own.height < 10;
             }).map(text => text.textContent);
           })"""
    )
    assert outside == []


@pytest.mark.parametrize("width", [1100, 375])
def test_words_of_a_study_with_twelve_arms_do_not_cover_each_other(
    browser: Any, places: dict[str, Path], width: int
) -> None:
    page = Visit(browser, places["divided"], width=width).page
    covered = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
             const texts = [...svg.querySelectorAll('text')].filter(one => one.textContent.trim());
             const boxes = texts.map(one => one.getBoundingClientRect());
             return boxes.flatMap((a, i) => boxes.slice(i + 1).flatMap((b, j) => {
               const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
               const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
               return across > 2 && down > 6
                 ? [texts[i].textContent + ' over ' + texts[i + 1 + j].textContent] : [];
             }));
           })"""
    )
    assert covered == []


def test_statements_are_read_before_any_table(browser: Any, places: dict[str, Path]) -> None:
    page = Visit(browser, places["divided"], width=375).page
    section = page.locator("section[aria-labelledby=allocation-statements-heading]")
    assert section.locator("li").count() == 3
    assert section.locator("table").count() == 0
    labels = {"supported", "refuted", "inconclusive"}
    assert set(section.locator(".label").all_inner_texts()) <= labels


@pytest.mark.parametrize(("scheme", "paper"), [("light", LIGHT), ("dark", DARK)])
def test_figures_follow_the_theme(
    browser: Any, places: dict[str, Path], scheme: str, paper: str
) -> None:
    visit = Visit(browser, places["one"], scheme=scheme)
    assert visit.colour("body", "backgroundColor") == paper
    assert visit.colour("figure svg.wide text", "fill") != paper
    assert visit.colour("figure svg.wide text", "fill").startswith("rgb(")


def test_paper_is_white_and_has_the_wide_figures(browser: Any, places: dict[str, Path]) -> None:
    visit = Visit(browser, places["one"], width=680, scheme="dark")
    visit.page.emulate_media(media="print")
    assert visit.colour("body", "backgroundColor") == LIGHT
    assert visit.shown("figure svg.wide") == PICTURES
    assert visit.overflow() <= 0


def test_a_wide_table_scrolls_in_its_own_box(browser: Any, places: dict[str, Path]) -> None:
    page = Visit(browser, places["one"], width=375).page
    room = page.eval_on_selector(".scroll", "e => [e.scrollWidth, e.clientWidth]")
    assert room[0] > room[1]
