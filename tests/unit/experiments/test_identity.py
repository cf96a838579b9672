"""What decides a number decides a name, and nothing else does."""

from pathlib import Path

import pytest

from hylorada.experiments import certify, identity, job
from hylorada.experiments.config import TrainConfig, parse
from hylorada.experiments.identity import RUN_SOURCE, identify, source_sha256

PACKAGE = Path(identity.__file__).parents[1]
SOURCE = {*RUN_SOURCE, *certify.SOURCE, *job.MEASURING, *job.RECORDING}


def test_the_id_depends_on_configuration_seed_data_and_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TrainConfig()
    ids = {
        identify(config, "text")["id"],
        identify(config, "other text")["id"],
        identify(parse(["--seed=1"]), "text")["id"],
        identify(parse(["--adapter.r=4"]), "text")["id"],
    }
    monkeypatch.setattr(identity, "source_sha256", lambda _: "edited")
    ids.add(identify(config, "text")["id"])
    assert len(ids) == 5


@pytest.mark.parametrize("argument", ["--out=x", "--progress=false", "--workers=2", "--cache=y"])
def test_what_changes_no_number_changes_no_id(argument: str) -> None:
    assert identify(parse([argument]), "text") == identify(TrainConfig(), "text")


@pytest.mark.parametrize("pattern", sorted(SOURCE))
def test_the_source_that_is_hashed_is_there(pattern: str) -> None:
    assert list(PACKAGE.glob(pattern))


def test_other_source_has_another_hash() -> None:
    assert source_sha256(("seeds.py",)) != source_sha256(("units.py",))
    assert len(source_sha256(RUN_SOURCE)) == 64
