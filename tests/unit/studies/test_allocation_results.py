"""An allocation study from its plan to its page: bits, bounds, gates and statements."""

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hylorada.cli.tables import show
from hylorada.errors import RunError
from hylorada.files import read_record, write_record
from hylorada.jobs.certify import verify
from hylorada.jobs.ledger import open_ledger
from hylorada.jobs.pipeline import Job
from hylorada.records.runs import RunResult
from hylorada.records.studies import Allocation, Arm, RunName, SeedMean, Study
from hylorada.report.page import render
from hylorada.specs.study import StudyPlace
from hylorada.studies import plan_of
from hylorada.studies import study as studies
from hylorada.studies.allocation import results as module
from hylorada.studies.study import compare
from tests.small_study import Here, small_allocation

NAMES = ["equal d=12", "learned d=12", "B-heavy d=12"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("allocation")
    engine = Here()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(folder / "cache"))
        patch.setattr(studies, "open_engine", lambda name, workers: engine)
        yield folder


@pytest.fixture(scope="module")
def study(root: Path) -> Study:
    options = small_allocation(root / "source", seeds=(1, 2))
    place = StudyPlace(out=root / "study", ledger=str(root / "runs"), command="hylorada compare …")
    return compare("allocation", options, place, Console(file=io.StringIO()))


def arm(study: Study, name: str) -> Arm:
    return next(found for found in study.arms if found.name == name)


def test_every_run_has_a_certificate_that_is_confirmed(study: Study, root: Path) -> None:
    paths = [path for one in study.arms for path in one.allocation.certificates]
    assert len(paths) == 4 * 2
    assert all(Path(path).is_file() for path in paths)
    data = str(root / "source" / "documents")
    assert verify(Path(paths[-1]), data, progress=False).confirmed


def test_an_arm_says_how_it_divides_and_what_that_costs(study: Study) -> None:
    heavy, learned = (arm(study, f"{n} d=12").allocation for n in ("B-heavy", "learned"))
    assert (heavy.mode, heavy.ratio, heavy.budget) == ("fixed", 0.8, 12)
    assert heavy.share_of_b == SeedMean(value=0.75, by_seed=[0.75, 0.75])
    assert (learned.mode, learned.ratio) == ("learned", None)
    for found in (heavy, learned):
        assert found.bits.value == sum(found.bits.by_seed) / 2
        assert len(found.risk.by_seed) == len(found.bound.by_seed) == 2
        assert found.bound.value > found.risk.value
        assert found.file_bytes > found.bits.value / 8
    assert learned.layers == ["layer 0", "layer 1", "head"]
    assert [len(gates) for gates in learned.gamma] == [3, 3]
    assert (len(learned.gradients.A), len(learned.gradients.B)) == (3, 3)
    assert heavy.gamma is None


def test_the_parts_of_a_bound_add_up_to_it(study: Study) -> None:
    found = {row.name: row.parts for row in study.figures_data.bound_parts}
    for name, parts in found.items():
        total = math.fsum(part.value for part in parts)
        assert total == pytest.approx(arm(study, name).allocation.bound.value)
        names = [part.name for part in parts]
        assert names == ["empirical risk", "quantisation", "complexity"]


def test_the_figures_have_the_data_they_read(study: Study) -> None:
    data = study.figures_data
    assert [row.name for row in data.bits_risk] == NAMES
    (first,) = data.layer_gates
    assert (first.rows, first.columns) == (
        ["layer 0", "layer 1", "head"],
        ["seed 1", "seed 2"],
    )
    gamma = arm(study, "learned d=12").allocation.gamma
    assert first.weights == [[gamma[0][row], gamma[1][row]] for row in range(3)]
    norms = {row.name: row.points for row in data.gradient_norms}
    assert [*norms] == [f"{side}, learned d=12" for side in "AB"]
    assert norms["B, learned d=12"][0][0] == 1


def test_the_first_sentences_answer_the_question(study: Study) -> None:
    first, *statements = study.sentences
    assert first.startswith("With 12 coordinates, means over 2 seeds: the lowest perplexity has ")
    assert "the fewest bits" in first
    assert [one.split(" ")[0] for one in statements[:3]] == ["H1", "H2", "H3"]
    assert len(statements) > 3


def test_statements_come_from_asymmetric_contrasts_and_learned_gates(
    study: Study,
) -> None:
    assert [one.name for one in study.statements] == ["H1", "H2", "H3"]
    pairs = [(one.arm, one.against) for one in study.comparisons]
    assert pairs == [("learned", "equal"), ("B-heavy", "equal")]
    (used,) = module.asymmetric(study.comparisons)
    assert used.arm == "B-heavy"


def test_a_contrast_of_a_question_is_judged_among_its_own(study: Study) -> None:
    # One contrast each, so each has its whole question's error probability for itself.
    heavy = next(one for one in study.comparisons if one.arm == "B-heavy")
    low, high = heavy.gain.interval
    assert low < heavy.gain.value < high


def test_the_page_is_drawn_from_the_file(study: Study, root: Path) -> None:
    stored = read_record(root / "study" / "study.json", Study)
    assert stored == study
    page = render(stored)
    assert "B-heavy d=12" in page
    assert "Learned gate by layer" in page


def test_the_terminal_shows_bits_and_bounds_and_a_line_for_each_answer(
    study: Study,
) -> None:
    text = io.StringIO()
    show(study, Console(file=text, width=80))
    said = text.getvalue()
    assert "Files and certificates" in said
    assert "inconclusive" in said
    assert f"{arm(study, 'learned d=12').allocation.bits.value:,.0f}" in said
    assert "\nH2 (" in said


def example(name: str, perplexity: float, bits: float, bound: float, vacuous: int = 0) -> Arm:
    zero = SeedMean(value=0.0)
    allocation = Allocation(
        mode="fixed",
        ratio=0.5,
        budget=8,
        share_of_b=zero,
        bits=SeedMean(value=bits),
        paid_bits=zero,
        risk=zero,
        risk_unquantised=zero,
        bound=SeedMean(value=bound),
        complexity=zero,
        gain_bound=None,
        vacuous=vacuous,
        file_bytes=10.0,
        documents=3,
        population=3,
        delta=0.05,
        certificates=[],
    )
    return Arm(
        name=name,
        runs=[RunName(seed=seed) for seed in range(3)],
        perplexity=SeedMean(value=perplexity),
        allocation=allocation,
    )


def test_winners_are_named_beside_the_equal_division() -> None:
    arms = [
        example("equal d=8", 20.0, 90.0, 11.0),
        example("B-heavy d=8", 18.0, 95.0, 10.5),
        example("learned d=8", 19.0, 80.0, 10.4, vacuous=1),
        example("A/A", 1.0, 1.0, 1.0),
    ]
    assert module.winners(arms) == [
        "With 8 coordinates, means over 3 seeds: the lowest perplexity has B-heavy (18.00; equal "
        "20.00), the fewest bits learned (80; equal 90), the best certified bound B-heavy (10.500; "
        "equal 11.000) bits per token, each bound with probability 95 %."
    ]


def test_bounds_that_say_nothing_have_no_winner() -> None:
    (found,) = module.winners([example("equal d=8", 20.0, 90.0, 11.0, vacuous=3)])
    assert found.endswith("and no bound is below that of a uniform guess.")
    assert "the lowest perplexity has equal (20.00), the fewest bits equal (90)" in found


def test_groups_are_called_layers_by_number_or_head() -> None:
    assert module.layer_name("transformer.h.11") == "layer 11"
    assert module.layer_name("rest") == "head"


def test_tuning_needs_no_arm_with_a_component(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = small_allocation(root / "source", tune=True, designs=("B-heavy",))
    place = StudyPlace(out=tmp_path / "study", ledger=str(tmp_path / "runs"))
    monkeypatch.setattr("hylorada.jobs.engine.perform", _measured)
    carried = studies.StudyInProgress(
        plan_of("allocation", options), open_ledger(place.runs), place, Console(file=io.StringIO())
    )
    tuned = carried.tune(Here())
    assert {one.config.optimisation.learning_rate for one in tuned.arms} == {4e-3}
    assert [len(curve) for curve in carried.tried.values()] == [4, 4]


def test_two_arms_that_come_to_the_same_run_are_tuned_by_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = small_allocation(root / "source", tune=True, designs=("B-heavy",))
    plan = plan_of("allocation", options)
    twin = replace(plan.arm("B-heavy d=12"), name="twin")
    place = StudyPlace(out=tmp_path / "study", ledger=str(tmp_path / "runs"))
    monkeypatch.setattr("hylorada.jobs.engine.perform", _measured)
    progress = studies.StudyInProgress(
        replace(plan, arms=(*plan.arms, twin)),
        open_ledger(place.runs),
        place,
        Console(file=io.StringIO()),
    )
    progress.tune(Here())
    assert progress.tried["twin"] == progress.tried["B-heavy d=12"]
    assert len(progress.outcomes) == 2 * 4


def _measured(job: Job, folder: Path, *_: Any) -> None:
    """Leave the result of a run whose best rate is 4e-3."""
    loss = abs(math.log(job.config.optimisation.learning_rate / 4e-3))
    write_record(
        folder / "result.json",
        RunResult(
            id="0",
            config="a",
            data="b",
            code="c",
            seed=7,
            steps=1,
            valid_loss=loss,
            trainable_parameters=1,
        ),
    )


def test_rates_that_all_fail_are_reported_with_the_first_reason(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = small_allocation(root / "source", tune=True, designs=("B-heavy",))
    place = StudyPlace(out=tmp_path / "study", ledger=str(tmp_path / "runs"))
    monkeypatch.setattr("hylorada.jobs.engine.perform", _diverging)
    with pytest.raises(
        RunError, match="every learning rate of equal d=12 failed, the first with RunError: nan; "
    ):
        compare("allocation", replace(options, seeds=(1,)), place, Console(file=io.StringIO()))


def _diverging(*_: Any) -> None:
    raise RunError("nan")
