from pathlib import Path

import pytest

from hylorada.errors import SpecError
from hylorada.names import hint, known, nearest, require_no_path, require_one_of

NAMES = {"uniform": 1, "fixed": 2, "learned": 3}


def test_a_known_name_is_returned() -> None:
    assert known("fixed", NAMES, "mode") == "fixed"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unifrom", "unknown mode 'unifrom'; did you mean 'uniform'?"),
        ("xyz", "unknown mode 'xyz'; known are uniform, fixed, learned"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_all(name: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        known(name, NAMES, "mode")
    assert str(caught.value) == message


def test_nothing_is_known_where_there_is_nothing() -> None:
    with pytest.raises(SpecError, match="unknown adapter 'default'; known are none"):
        known("default", [], "adapter")


@pytest.mark.parametrize(
    ("value", "end"), [("learn", "; did you mean 'learned'?"), ("xyz", ""), ("", "")]
)
def test_a_setting_must_have_one_of_its_values(value: str, end: str) -> None:
    require_one_of("mode", "fixed", NAMES)
    with pytest.raises(SpecError) as caught:
        require_one_of("mode", value, NAMES)
    rule = f"mode must be one of uniform, fixed, learned; got {value!r}"
    assert str(caught.value) == rule + end


def test_a_hint_leaves_room_for_what_follows() -> None:
    assert hint("lerned", NAMES) == "did you mean 'learned'? "
    assert hint("xyz", NAMES) == ""


def test_no_name_is_near_to_nothing() -> None:
    assert nearest("fixed", []) is None


def test_a_name_in_a_folder_that_exists_is_a_mistyped_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts" / "books").mkdir(parents=True)
    require_no_path("owner/name", "a folder")
    require_no_path("name", "a folder")
    require_no_path("texts/books", "a folder")
    with pytest.raises(SpecError) as caught:
        require_no_path("texts/boks", "a folder")
    assert str(caught.value) == (
        "folder 'texts' exists and holds no 'texts/boks'; did you mean 'texts/books'? give a folder"
    )
