"""Every command and snippet of the documentation works, and every link leads somewhere."""

import io
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

import hylorada
from hylorada.cli import COMMANDS, main
from tests.newcomer import GIVEN, in_small, make_everything_small, write_world
from tests.pages import (
    PAGES,
    ROOT,
    Block,
    anchors,
    blocks,
    job_of,
    links,
    name_of,
    rows_under,
)
from tests.settings import settings

# Its commands need a package that is installed beside; test_plugin.py carries them out.
PLUGINS = ROOT / "docs" / "plugins.md"
READ = [
    page
    for page in PAGES
    if page != PLUGINS and any(b.commands or b.language == "python" for b in blocks(page))
]
WIDEST_TEXT, WIDEST_TABLE = 100, 140


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what pages take for granted: a model, texts, runs, a study."""
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of it for one page, which is where commands are typed."""
    folder = Path(shutil.copytree(world / "files", tmp_path / "here"))
    monkeypatch.setenv("HYLORADA_CACHE", str(world / "cache"))
    monkeypatch.chdir(folder)
    make_everything_small(monkeypatch)
    return folder


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_a_page_works_from_top_to_bottom(page: Path, here: Path) -> None:
    names: dict[str, Any] = GIVEN.get(name_of(page), dict)()
    said = ""
    for block in blocks(page):
        if block.language == "python":
            said = executed(page, block, names)
        elif block.commands:
            for words in block.commands:
                carry_out(words)
        elif said:
            assert said == block.text, f"{name_of(page)}:{block.line}"
            said = ""


def executed(page: Path, block: Block, names: dict[str, Any]) -> str:
    """Carry out a snippet after those before it and return what it printed."""
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(block.text, f"{name_of(page)}:{block.line}", "exec"), names)
    return said.getvalue()


def carry_out(words: list[str]) -> None:
    """Carry out a command in small; of the Makefile's, whether they can be."""
    if words[0] == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    else:
        assert main(in_small(*job_of(words))) == 0, words


def test_every_given_name_is_of_a_page() -> None:
    assert {name_of(page) for page in READ} >= set(GIVEN)


def test_the_page_of_plugins_shows_the_files_of_the_example() -> None:
    folder = ROOT / "examples" / "plugin"
    files = {
        path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.suffix in (".py", ".toml")
    }
    shown = [block.text for block in blocks(PLUGINS) if block.language in ("python", "toml")]
    assert len(shown) == 4
    assert [text for text in shown if text not in files] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short_enough_to_be_read_as_text(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    widest = [WIDEST_TABLE if line.startswith(("|", "![")) else WIDEST_TEXT for line in lines]
    assert [line for line, most in zip(lines, widest, strict=True) if len(line) > most] == []


# Links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_pages_of_the_site_link_to_pages_of_the_site() -> None:
    site = ROOT / "docs"
    for page in site.rglob("*.md"):
        for target in links(page):
            assert (page.parent / target.partition("#")[0]).resolve().is_relative_to(site), target


# The site


def leaves(tree: Any) -> Iterator[str]:
    """Yield the pages that a navigation names."""
    if isinstance(tree, str):
        yield tree
    else:
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    written = sorted(p.relative_to(ROOT / "docs").as_posix() for p in PAGES if "docs" in p.parts)
    assert sorted(leaves(site["nav"])) == written


def test_every_room_has_its_reference() -> None:
    package = Path(hylorada.__file__).parent
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} - {"cli"}
    reference = ROOT / "docs" / "reference"
    assert {path.stem for path in reference.glob("*.md")} == {"index", *rooms}
    for room in rooms:
        assert f"::: hylorada.{room}\n" in (reference / f"{room}.md").read_text(encoding="utf-8")
    front = (reference / "index.md").read_text(encoding="utf-8")
    assert [name for name in hylorada.__all__ if f"`{name}`" not in front] == []


def test_every_command_is_on_the_first_page() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`hylorada {name}`" not in text] == []


# Settings


@pytest.mark.parametrize("part", list(settings()))
def test_the_settings_of_a_page_are_those_of_the_code(part: str) -> None:
    rows = rows_under(ROOT / "docs" / "configuration.md", part)
    wanted = [[f"`{one.name}`", one.type, one.default] for one in settings()[part]]
    assert [row[:3] for row in rows] == wanted
    assert [row[0] for row in rows if len(row) != 4 or not row[3].strip()] == []
