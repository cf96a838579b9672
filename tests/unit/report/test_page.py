"""The page: verdicts first, nothing from outside, nothing that runs, equal for equal studies."""

import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hylorada.errors import SpecError
from hylorada.files import write_record
from hylorada.records.studies import Arm, Check, Provenance, RateGrids, RegisteredPlan, Study
from hylorada.report.canvas import COLOURS
from hylorada.report.figures import in_order
from hylorada.report.page import facts, render, write
from tests.unit.report.example import allocation, small

NASTY = '<script>alert("x")</script> & "quoted" \'too\''
STYLE = (files("hylorada.report") / "page.css").read_text(encoding="utf-8")


class Elements(HTMLParser):
    """The tags of a page in order, and its visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return render(allocation())


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def bare(**changes: Any) -> Study:
    return Study(**{"study": "bare", "arms": [Arm(name="only")], **changes})


def nasty(value: Any) -> Any:
    """Return data of the same form in which every text is hostile."""
    if isinstance(value, Study):
        return msgspec.convert(nasty(msgspec.to_builtins(value)), Study)
    if isinstance(value, dict):
        return {key: nasty(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nasty(item) for item in value]
    return NASTY + value if isinstance(value, str) else value


def put(folder: Path, study: Study) -> Path:
    folder.mkdir(parents=True)
    write_record(folder / "study.json", study)
    return folder


def test_the_verdict_comes_before_any_table_or_figure(page: str) -> None:
    order = [
        page.index(part) for part in ("Position-adaptive landmarks lower", "<table", "<figure")
    ]
    assert order == sorted(order)


def test_a_verdict_is_a_word_beside_its_arm(page: str) -> None:
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "E harmful shared perplexity 0.84 % [0.62, 1.06] higher" in text


def test_every_section_is_there_and_in_order(page: str) -> None:
    found = re.findall(r'<h2 id="allocation-([a-z_]+?)(?:-heading)?">', page)
    figures = [figure.name for figure in in_order()]
    assert found == ["verdict", *figures, "plan", "provenance", "command"]
    assert figures[:4] == ["statements", "results", "allocation", "effects"]
    assert figures[-3:] == ["tuning", "cost", "checks"]


def test_sections_without_data_are_left_out() -> None:
    page = render(bare())
    assert re.findall(r'<h2 id="bare-([a-z_]+)-heading">', page) == ["results", "cost"]
    assert "<figure" not in page


def test_headings_descend_one_level_at_a_time(page: str) -> None:
    for text in (page, render(bare(), bare(study="other"))):
        levels = [int(tag[1]) for tag, _ in Elements(text).tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))


def test_no_id_is_there_twice_and_every_link_leads_to_one(elements: Elements) -> None:
    ids = [value for _, attributes in elements.tags if (value := attributes.get("id"))]
    assert len(set(ids)) == len(ids)
    links = [attributes["href"] or "" for attributes in elements.all("a")]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_nothing_is_loaded_and_nothing_runs(elements: Elements) -> None:
    tags = {tag for tag, _ in elements.tags}
    assert not tags & {"script", "iframe", "object", "embed", "img", "form", "base"}
    assert [link["href"] for link in elements.all("link")] == ["data:,"]
    for tag, attributes in elements.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert all(str(attributes.get(name, "#")).startswith(("#", "data:")) for name in ("href",))
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_a_policy_forbids_scripts_and_the_network(page: str) -> None:
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page


def test_figures_tables_and_the_page_are_described(elements: Elements) -> None:
    assert elements.all("html") == [{"lang": "en"}]
    pictures = elements.all("svg")
    assert len(pictures) == 2 * sum(figure.draw is not None for figure in in_order())
    assert all(len(str(picture["aria-label"])) > 60 for picture in pictures)
    assert all(picture["role"] == "img" for picture in pictures)
    tables = len(elements.all("table"))
    assert tables == len(elements.all("caption")) > 5
    assert all(cell.get("scope") in ("col", "row") for cell in elements.all("th"))


def test_text_from_runs_is_escaped_everywhere() -> None:
    study = nasty(small(comparisons=allocation().comparisons[:1]))
    roles = zip(study.arms, ("baseline", "control"), strict=True)
    page = render(
        msgspec.structs.replace(
            study,
            arms=[msgspec.structs.replace(arm, role=role) for arm, role in roles],
            checks=[Check(name=NASTY, passed=False)],
            plan=msgspec.structs.replace(study.plan, changes=[NASTY]),
        )
    )
    elements = Elements(page)
    assert "script" not in {tag for tag, _ in elements.tags}
    assert "<script" not in page
    assert NASTY in "".join(elements.text)


def test_equal_studies_give_equal_pages() -> None:
    assert render(small()) == render(small())


def test_the_page_is_small(page: str) -> None:
    assert len(page.encode()) < 1_000_000


def test_a_failed_check_a_changed_plan_and_a_failed_run_are_told_at_the_top() -> None:
    page = render(
        bare(
            checks=[Check(name="A/A arm", passed=False), Check(name="leak", passed=True)],
            plan=RegisteredPlan(hash="abc", changes=["seeds from 3 to 5"]),
            provenance=Provenance(failed=1),
        )
    )
    top = page[: page.index("<table")]
    assert "<strong>Self-checks failed:</strong> A/A arm." in top
    assert "plan was changed after it was registered" in top
    assert "<strong>1 run failed</strong> and is not" in top
    assert "seeds from 3 to 5" in page


def test_a_plan_shows_thresholds_in_per_cent_and_times_plainly(page: str) -> None:
    assert "minimal from 0.5\u00a0%, moderate from 1\u00a0%, strong from 2\u00a0%" in page
    assert "2026-01-05 09:30 UTC" in page
    assert "<code>9b1f6a0c55d2e7a4</code>" in page
    assert "It was not changed." in page


def test_facts_leave_out_what_is_not_known() -> None:
    values = {"seeds": [1, 2], "engine": None, "batch_size": 8, "tuned": True, "other": {}}
    assert facts(values) == [("seeds", "1, 2"), ("batch size", "8"), ("tuned", "yes")]
    assert facts({"tokens": 32640, "rate": 0.00051}) == [("tokens", "32,640"), ("rate", "0.00051")]
    provenance = Provenance(packages={"torch": "2.13", "numpy": "2.5"}, runs=3)
    assert facts(provenance) == [("packages", "torch 2.13, numpy 2.5"), ("runs", "3")]


def test_lists_of_a_record_are_told_apart() -> None:
    grids = RateGrids(base=[1.0, 2.0], component=[0.3, 10.0], seed=7)
    told = ("tuning", "base 1, 2; component 0.3, 10; seed 7")
    assert told in facts(RegisteredPlan(tuning=grids))


def test_several_studies_share_a_page_with_a_part_for_each(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a", bare(title="First question"))
    put(tmp_path / "in" / "b", bare(title="Second question"))
    page = write(tmp_path / "in", tmp_path / "page.html").read_text()
    assert "<h1>2 studies</h1>" in page
    assert '<a href="#bare">First question</a>' in page
    assert '<h2 class="study" id="bare-2">Second question</h2>' in page
    ids = [value for _, attributes in Elements(page).tags if (value := attributes.get("id"))]
    assert len(set(ids)) == len(ids)


def test_no_two_studies_have_the_same_name_in_links() -> None:
    page = render(*(bare(study=name) for name in ("a", "a-2", "a")))
    assert re.findall(r'<h2 class="study" id="([^"]*)"', page) == ["a", "a-2", "a-3"]


def test_a_page_of_several_begins_with_the_answer_of_each() -> None:
    page = render(bare(sentences=["It helps."], title="One"), bare(study="two", title="Two"))
    assert '<a href="#bare">One</a> It helps.</li>' in page
    assert '<a href="#two">Two</a></li>' in page


def test_figures_and_tables_lie_beside_the_page(tmp_path: Path) -> None:
    study = put(tmp_path / "in", small(study="../../evil"))
    out = write(study, tmp_path / "out" / "page.html", figures="svg pdf", tables="csv tex")
    names = sorted(str(file.relative_to(out.parent)) for file in out.parent.rglob("*.*"))
    assert names == [
        "figures/effects.pdf",
        "figures/effects.svg",
        "figures/frontier.pdf",
        "figures/frontier.svg",
        "page.html",
        *(f"tables/{key}.{form}" for key in sorted(KEYS) for form in ("csv", "tex")),
    ]


KEYS = ("results", "effects", "cost", "checks")


def test_files_of_several_studies_begin_with_the_name_of_theirs(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a", bare(study="Landmarks / 1"))
    put(tmp_path / "in" / "b", bare(study="../x"))
    write(tmp_path / "in", tmp_path / "page.html", tables="csv")
    names = sorted(file.name for file in (tmp_path / "tables").iterdir())
    assert names == [
        "landmarks-1-cost.csv",
        "landmarks-1-results.csv",
        "x-cost.csv",
        "x-results.csv",
    ]


@pytest.mark.parametrize("options", [{"figures": "svg gif"}, {"tables": "xlsx"}])
def test_an_unknown_format_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, str]
) -> None:
    study = put(tmp_path / "in", bare())
    with pytest.raises(SpecError, match="must be one of"):
        write(study, tmp_path / "page.html", **options)
    assert not (tmp_path / "page.html").exists()


def test_a_folder_in_the_place_of_the_page_is_refused_and_left_alone(tmp_path: Path) -> None:
    study = put(tmp_path / "in", bare())
    (tmp_path / "taken").mkdir()
    with pytest.raises(SpecError, match=r"a page is a file; .*taken is a folder"):
        write(study, tmp_path / "taken")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "taken"]


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one study"):
        render()


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def themes() -> list[dict[str, str]]:
    light, dark = STYLE.split("prefers-color-scheme: dark")
    return [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", part)) for part in (light, dark)]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("behind", ["paper", "band"])
def test_text_has_contrast_enough_in_both_themes(theme: int, behind: str) -> None:
    colours = themes()[theme]
    for name in ("ink", "muted", "accent", "warning", *(f"series-{n}" for n in range(2, 7))):
        lights = sorted((luminance(colours[name]), luminance(colours[behind])))
        assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, name


def test_figures_use_the_colours_of_the_page() -> None:
    light, dark = themes()
    assert COLOURS.items() <= light.items()
    assert light.keys() == dark.keys()


def test_figures_leave_the_global_state_of_pyplot_alone() -> None:
    modules = [entry for entry in files("hylorada.report").iterdir() if entry.name.endswith(".py")]
    assert [entry.name for entry in modules if "pyplot" in entry.read_text()] == []
