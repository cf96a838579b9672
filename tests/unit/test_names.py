from pathlib import Path

import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.names import (
    hint,
    known,
    nearest,
    plain,
    real_number,
    require_no_path,
    require_one_of,
    whole_number,
)

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


@pytest.mark.parametrize(
    ("value", "kind", "own"),
    [
        (np.int64(3), int, 3),
        (np.float32(0.5), float, 0.5),
        (np.int8(3), float, 3),
        (np.bool_(False), bool, False),
        (np.str_("log"), str, "log"),
    ],
)
def test_a_value_of_numpy_becomes_one_of_python(value: object, kind: type, own: object) -> None:
    found = plain("setting", value, kind)
    assert found == own
    assert type(found) is type(own)


def test_a_whole_number_is_refused_with_its_rule_and_its_repair() -> None:
    assert whole_number("rounds", 1) == 1
    with pytest.raises(SpecError, match=r"^rounds must be at least 1; got 0$"):
        whole_number("rounds", 0)
    with pytest.raises(SpecError, match=r"^rounds must be at least 1; got -1; take 3$"):
        whole_number("rounds", -1, "take 3")
    with pytest.raises(SpecError, match=r"^rounds must be a whole number of at least 1; got 1\.0$"):
        whole_number("rounds", 1.0)


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("positive and finite", [5e-324, 7], [0, -1, float("inf")]),
        ("finite and not negative", [0, 7.5], [-1e-9, float("inf")]),
        ("in [0, 1)", [0, 0.999], [1, -0.1, float("inf")]),
    ],
)
def test_a_number_keeps_to_its_range(rule: str, inside: list[float], outside: list[float]) -> None:
    assert [real_number("share", value, rule) for value in inside] == inside
    for value in outside:
        with pytest.raises(SpecError) as caught:
            real_number("share", value, rule, "take 0.5")
        assert str(caught.value) == f"share must be {rule}; got {value}; take 0.5"


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
