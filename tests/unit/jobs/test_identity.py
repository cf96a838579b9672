"""What decides a number decides a name, and nothing else does."""

from importlib.util import find_spec

import pytest

from hylorada.cli.train import parse
from hylorada.identity import import_closure, source_sha256
from hylorada.jobs import run
from hylorada.jobs.run import identify
from hylorada.specs.run import RunConfig


def test_the_id_depends_on_configuration_seed_data_and_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = RunConfig()
    ids = {
        identify(config, "text").id,
        identify(config, "other text").id,
        identify(parse(["--seed=1"]), "text").id,
        identify(parse(["--adapter.r=4"]), "text").id,
        identify(config, "text", repetition=1).id,
    }
    monkeypatch.setattr(run, "source_sha256", lambda _: "edited")
    ids.add(identify(config, "text").id)
    assert len(ids) == 6


@pytest.mark.parametrize("argument", ["--out=x", "--progress=false", "--workers=2", "--cache=y"])
def test_what_changes_no_number_changes_no_id(argument: str) -> None:
    assert identify(parse([argument]), "text") == identify(RunConfig(), "text")


@pytest.mark.parametrize("name", ["hylorada.jobs.run", "hylorada.jobs.evaluate"])
def test_the_closure_holds_what_is_imported_on_the_way(name: str) -> None:
    closure = import_closure([name])
    assert closure.keys() >= {name, "hylorada.seeds", "hylorada.units", "hylorada.text.tokens"}


def test_the_closure_holds_what_registries_name_in_strings() -> None:
    closure = import_closure(["hylorada.evaluation.metrics"])
    assert "hylorada.evaluation.retrieval" in closure


def test_a_run_does_not_depend_on_what_only_studies_and_pages_need() -> None:
    rooms = {name.split(".")[1] for name in import_closure(["hylorada.jobs.run"])}
    assert not rooms & {"studies", "report", "cli", "verdicts", "bounds"}


def test_a_module_from_outside_counts_as_its_file() -> None:
    spec = find_spec("msgspec")
    assert spec is not None
    assert str(import_closure(["msgspec"])["msgspec"]) == spec.origin


def test_other_source_has_another_hash() -> None:
    assert source_sha256("hylorada.seeds") != source_sha256("hylorada.units")
    assert len(source_sha256("hylorada.seeds")) == 64
