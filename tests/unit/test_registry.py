"""A registry imports what registers itself, here and in other packages, at the first look-up."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hylorada.errors import SpecError
from hylorada.registry import Registry

GROUP = "hylorada.testing"


@dataclass(frozen=True)
class Thing:
    name: str
    words: str = "a thing"


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on the path, in which a package names a module for the group."""
    monkeypatch.syspath_prepend(str(tmp_path))
    about = tmp_path / "foreign-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nthings = foreign_things\n")
    yield tmp_path
    sys.modules.pop("foreign_things", None)


def registry() -> Registry[Thing]:
    return Registry("thing", GROUP)


def test_entries_keep_their_order_and_are_found_by_name() -> None:
    things = registry()
    added = [things.add(Thing(name)) for name in ("b", "a")]
    assert list(things) == ["b", "a"]
    assert [things[name] for name in things] == added
    assert len(things) == 2
    assert "c" not in things
    assert things.origin("a") is None


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    things = registry()
    things.add(Thing("betting"))
    with pytest.raises(SpecError, match="unknown thing 'beting'; did you mean 'betting'"):
        things["beting"]


def test_a_name_is_taken_once() -> None:
    things = registry()
    first = things.add(Thing("a"))
    assert things.add(first) is first
    with pytest.raises(SpecError, match="every thing needs a name of its own; 'a' is taken"):
        things.add(Thing("a", "another"))


def test_another_package_adds_entries(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    things = registry()
    things.add(Thing("a"))
    monkeypatch.setitem(sys.modules, "things_of_a_test", type(sys)("things_of_a_test"))
    sys.modules["things_of_a_test"].__dict__.update(THINGS=things, Thing=Thing)
    (plugins / "foreign_things.py").write_text(
        "from things_of_a_test import THINGS, Thing\nTHINGS.add(Thing('z'))\n"
    )
    assert list(things) == ["a", "z"]
    assert (things.origin("a"), things.origin("z")) == (None, "foreign")


def test_a_package_that_cannot_be_imported_is_named(plugins: Path) -> None:
    (plugins / "foreign_things.py").write_text("import no_such_module\n")
    line = "plugin 'things' of package 'foreign' must be importable; .* repair or uninstall it"
    with pytest.raises(SpecError, match=line):
        list(registry())
