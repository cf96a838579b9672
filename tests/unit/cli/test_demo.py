"""The demonstration: a study of landmarks on what is embedded, said plainly at its end."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from hylorada.cli.study import DEMONSTRATION, demo
from hylorada.files import read_record
from hylorada.records.studies import Study
from hylorada.studies import plan_of
from hylorada.studies import study as module
from tests.small_study import Here, small_options


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(folder / "cache"))
        patch.setattr(module, "open_engine", lambda name, workers: Here())
        yield folder


@pytest.fixture(scope="module")
def spoken(root: Path) -> tuple[Study, str]:
    """Return the study of a demonstration and what it printed."""
    text = io.StringIO()
    console = Console(file=text, width=200)
    options = small_options(root / "source", designs=("learnable",), seeds=(1,))
    study = demo(root / "out", console, options)
    return study, text.getvalue()


def test_the_demonstration_needs_nothing_but_the_package() -> None:
    plan = plan_of("landmarks", DEMONSTRATION)
    sources = {(arm.config.model.source, arm.config.data.source) for arm in plan.arms}
    assert sources == {("tiny", "sotu")}
    assert all(arm.config.training.cpu for arm in plan.arms)
    assert plan.seeds == (42, 123, 456)


def test_its_arms_fill_every_figure_of_the_page() -> None:
    arms = {arm.name: arm for arm in plan_of("landmarks", DEMONSTRATION).arms}
    assert arms["learnable"].config.adapter.landmark_design == "learnable"  # boundaries
    assert arms["position_adaptive"].role == "candidate"  # gates
    assert (arms["low_rank"].role, arms["bias"].role) == ("control", "control")
    assert arms["A/A"].role == "self_check"
    assert arms["rsLoRA"].evaluation.evidence_items > 1  # evidence depth


def test_a_study_lies_in_the_folder_with_its_runs(spoken: tuple[Study, str], root: Path) -> None:
    stored = read_record(root / "out" / "study.json", Study)
    assert stored == spoken[0]
    assert stored.command == f"hylorada demo --out {root / 'out'}"
    assert len(list((root / "out" / "runs").iterdir())) == 5


def test_it_starts_with_what_it_does(spoken: tuple[Study, str]) -> None:
    assert spoken[1].startswith(
        "Adapting the embedded model to State of the Union addresses: 3 arms"
    )


def test_it_ends_with_what_it_found_and_where_the_page_lies(
    spoken: tuple[Study, str], root: Path
) -> None:
    study, text = spoken
    *_, last = text.rstrip().splitlines()
    page = root / "out" / "report.html"
    assert last == f"The page lies in {page}."
    assert page.is_file()
    words = " ".join(text.split())
    assert len(study.sentences) == 2
    assert all(" ".join(sentence.split()) in words for sentence in study.sentences)


def test_a_second_demonstration_reuses_the_runs(spoken: tuple[Study, str], root: Path) -> None:
    options = small_options(root / "source", designs=("learnable",), seeds=(1,))
    again = demo(root / "out", Console(file=io.StringIO()), options)
    assert again.provenance.reused == again.provenance.runs == 5
