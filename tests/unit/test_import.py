"""`import hylorada` is quick, and both methods are PEFT's as soon as PEFT is there too."""

import builtins
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import hylorada
from hylorada.after_import import after_import
from hylorada.cli import COMMANDS

HEAVY = {"accelerate", "datasets", "matplotlib", "peft", "scipy", "torch", "transformers"}
# Each order is tried in a child of a process that has read what PEFT needs, and forgotten PEFT.
ORDERS = """
import os, sys
from transformers import BloomPreTrainedModel, Trainer
for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
    del sys.modules[name]

def registered():
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
    return {"HYLORADA", "SUBLORA"} <= {method.value for method in PEFT_TYPE_TO_CONFIG_MAPPING}

for order in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        assert "peft" not in sys.modules
        exec(order)
        os._exit(0 if registered() else 1)
    assert os.waitpid(child, 0)[1] == 0, order
"""


def run(script: str, *words: str) -> str:
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_help_version_and_mistakes_import_nothing_heavy() -> None:
    jobs = [[], ["--help"], ["--version"], ["xyzzy"], *([name, "--help"] for name in COMMANDS)]
    script = f"""
import sys
from hylorada.cli import main
for words in {jobs!r}:
    try:
        main(words)
    except SystemExit:
        pass
    print("heavy:", sorted({HEAVY!r} & set(sys.modules)), words)
"""
    told = [line for line in run(script).splitlines() if line.startswith("heavy:")]
    assert told == [f"heavy: [] {words}" for words in jobs]


def test_rooms_that_need_no_deep_learning_import_none() -> None:
    rooms = ("bounds", "evaluation.statistics", "report.page", "verdicts")
    imports = "".join(f"import hylorada.{room}\n" for room in rooms)
    missing = "import sys\nassert not {'torch', 'transformers', 'peft'} & {*sys.modules}"
    run(imports + missing)


def test_both_methods_are_registered_whoever_imports_peft() -> None:
    orders = (
        "import hylorada; import peft",
        "import peft; import hylorada",
        "from hylorada import LandmarkLoRA",
        "import hylorada.adapters.config",
        "import hylorada.subspace.model",
        "import hylorada.models.anatomy",
        "import hylorada.training.loop",
    )
    run(ORDERS, *orders)


@pytest.mark.parametrize("name", hylorada.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(hylorada, name).__name__ in (name, "PositionAdaptiveLandmark")
    assert name in dir(hylorada)


def test_rooms_are_attributes() -> None:
    assert hylorada.subspace.IDModule.__name__ == "IDModule"
    with pytest.raises(AttributeError, match="'hylorada' has no attribute 'bound'"):
        _ = hylorada.bound


# Following a package


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what modules of the names `leader` and `follower` tell when they are imported."""
    told: list[str] = []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(builtins, "tell", told.append, raising=False)
    (tmp_path / "leader.py").write_text("tell('leader')\n")
    (tmp_path / "follower.py").write_text("import leader\ntell(leader.__loader__.name)\n")
    yield told
    for name in ("leader", "follower"):
        sys.modules.pop(name, None)


def test_a_module_follows_the_package_when_that_is_imported(told: list[str]) -> None:
    finders = [*sys.meta_path]
    after_import("leader", ["follower"])
    assert told == []
    assert find_spec("leader") is not None  # to look for it is not to import it
    assert told == []
    import_module("leader")
    assert told == ["leader", "leader"]
    assert sys.meta_path == finders


def test_a_module_follows_at_once_a_package_that_is_there(told: list[str]) -> None:
    import_module("leader")
    after_import("leader", ["follower"])
    assert told == ["leader", "leader"]


def test_two_may_wait_for_one_package(told: list[str]) -> None:
    after_import("leader", ["follower"])
    after_import("leader", ["follower"])
    import_module("leader")
    assert told == ["leader", "leader"]


def test_a_package_that_cannot_be_found_is_missing_as_ever(told: list[str]) -> None:
    after_import("no_such_leader", ["follower"])
    with pytest.raises(ModuleNotFoundError, match="no_such_leader"):
        import_module("no_such_leader")
    assert told == []
