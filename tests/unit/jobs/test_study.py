"""A whole study in one process: its file, its table, its checks, and what is done only once."""

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from hylorada.cli.tables import show
from hylorada.errors import RunError, SpecError
from hylorada.files import alone_in, read_record
from hylorada.jobs.ledger import open_ledger
from hylorada.records.runs import RunEvaluation
from hylorada.records.studies import Arm, Check, Study
from hylorada.specs.study import StudyPlace
from hylorada.studies import STUDIES, Definition, plan_of
from hylorada.studies import study as module
from hylorada.studies.components import single_components
from hylorada.studies.plan import Plans
from hylorada.studies.results import ArmRuns
from hylorada.studies.study import compare
from tests.small_study import Here, small_options


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    engine = Here()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_engine", lambda name, workers: engine)
        yield engine


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(folder / "cache"))
        yield folder


def place(root: Path, name: str = "landmarks") -> StudyPlace:
    return StudyPlace(
        out=root / name, ledger=str(root / "runs"), command="hylorada compare landmarks"
    )


def quiet() -> Console:
    return Console(file=io.StringIO(), width=160)


def said(study: Study) -> str:
    text = io.StringIO()
    show(study, Console(file=text, width=160))
    return text.getvalue()


@pytest.fixture(scope="module")
def study(root: Path, here: Here) -> Study:
    return compare("landmarks", small_options(root / "source"), place(root), quiet())


def arm(study: Study, name: str) -> Arm:
    return next(found for found in study.arms if found.name == name)


def test_the_study_is_in_its_file(study: Study, root: Path) -> None:
    assert read_record(root / "landmarks" / "study.json", Study) == study
    assert (study.schema, study.study) == (1, "landmarks")
    assert study.command == "hylorada compare landmarks"


def test_every_arm_has_a_run_for_each_seed(study: Study) -> None:
    assert [found.name for found in study.arms] == ["rsLoRA", "learnable", "bias", "A/A"]
    for found in study.arms:
        assert [run.seed for run in found.runs] == [1, 2]
        assert found.training_curve.keys() == {"1", "2"}
        assert len(found.perplexity.by_seed) == 2


def test_a_gain_is_that_of_the_paired_perplexities(study: Study) -> None:
    base, other = (arm(study, name).perplexity.by_seed for name in ("rsLoRA", "bias"))
    differences = [math.log(a) - math.log(b) for a, b in zip(base, other, strict=True)]
    gain = 100 * -math.expm1(-sum(differences) / 2)
    assert arm(study, "bias").gain.value == pytest.approx(gain, rel=1e-6)
    assert arm(study, "rsLoRA").gain is None


def test_parameters_are_counted_against_the_baseline(study: Study) -> None:
    base = arm(study, "rsLoRA")
    assert base.added_parameters is None
    assert arm(study, "bias").added_parameters == 16
    assert arm(study, "A/A").added_parameters == 0
    total = arm(study, "bias").trainable_parameters
    assert total == base.trainable_parameters + 16


def test_learned_boundaries_stand_beside_uniform_ones(study: Study) -> None:
    found = arm(study, "learnable").boundaries
    assert (found.context, len(found.learned)) == (24, 2)
    assert found.uniform == pytest.approx([float(place) for place in range(1, 24)])
    assert arm(study, "bias").boundaries is None
    assert arm(study, "learnable").gates.columns == ["landmark 1", "landmark 2"]


def test_curves_are_averaged_over_seeds(study: Study, root: Path) -> None:
    found = arm(study, "rsLoRA")
    single = []
    for run in found.runs:
        (path,) = (root / "runs" / run.id).glob("evaluation-*.json")
        single.append(read_record(path, RunEvaluation).position_curve.curve[0])
    first = found.position_curve[0]
    mean = (single[0].value + single[1].value) / 2
    assert first.value == pytest.approx(mean)
    assert first.interval[0] < mean < first.interval[1]
    assert found.depth_curve is None  # 24 tokens are too few for questions


def test_the_plan_was_registered_first(study: Study, root: Path) -> None:
    stored = read_record(root / "landmarks" / "plan.json", Plans)
    assert study.plan.hash == stored.current.hash
    assert study.plan.registered <= study.provenance.started
    assert (study.plan.changes, study.plan.tuning) == ([], None)


def test_the_setting_counts_what_was_scored(study: Study) -> None:
    setting = study.setting
    assert (setting.test_tokens, setting.valid_tokens) == (12 * 23, 4 * 23)
    assert (setting.length, setting.steps, setting.test_documents) == (24, 4, 1)
    assert study.frozen.perplexity > arm(study, "rsLoRA").perplexity.value


def test_every_check_passes_on_a_sound_study(study: Study) -> None:
    assert len(study.checks) == 6
    assert [check for check in study.checks if not check.passed] == []
    exact = next(check for check in study.checks if "twice" in check.name)
    assert exact.detail.endswith("agrees exactly")


def test_candidates_are_compared_with_controls(study: Study) -> None:
    pairs = [(found.arm, found.against) for found in study.comparisons]
    assert pairs == [("learnable", "bias")]


def test_provenance_counts_runs(study: Study) -> None:
    found = study.provenance
    assert (found.runs, found.reused) == (4 * 2 + 2, 0)
    assert (found.failed, found.repeated) == (0, 0)
    assert found.engine == "local, in this process"
    assert found.packages["hylorada"]


def test_the_same_study_again_runs_nothing(study: Study, root: Path, here: Here) -> None:
    before = len(here.done)
    again = compare("landmarks", small_options(root / "source"), place(root), quiet())
    assert {outcome.state for outcome in here.done[before:]} == {"reused"}
    assert again.provenance.reused == 10
    assert again.arms == study.arms


def test_another_study_reuses_the_runs_it_shares(study: Study, root: Path, here: Here) -> None:
    before = len(here.done)
    options = small_options(root / "source", designs=("uniform",))
    compare("bucketing", options, place(root, "bucketing"), quiet())
    fresh = [o.task.label for o in here.done[before:] if o.state == "finished"]
    assert fresh == ["uniform, seed 1", "uniform, seed 2"]


def test_a_study_from_another_package_is_carried_out_judged_and_shown_like_ours(
    study: Study, root: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude(found: Study, runs: Mapping[str, ArmRuns], ledger: str) -> Study:
        sentence = f"{len(runs)} arms lie in {Path(ledger).name}."
        return msgspec.structs.replace(found, sentences=[sentence, *found.sentences])

    monkeypatch.setattr(STUDIES, "_entries", dict(STUDIES._entries))
    mine = single_components("bias", "uniform")
    STUDIES.add(Definition(name="mine", title="A bias?", parts=mine, conclude=conclude))
    options = small_options(root / "source", designs=None)
    found = compare("mine", options, place(root, "mine"), quiet())
    assert (found.study, found.title) == ("mine", "A bias?")
    assert found.sentences[0] == "4 arms lie in runs."
    assert [one.label is None for one in found.arms] == [True, False, False, False]
    assert "4 arms lie in runs." in said(found)


def test_an_adapter_that_cannot_be_is_refused_before_anything_is_written(
    root: Path, tmp_path: Path
) -> None:
    options = small_options(root / "source", num_landmarks=1)
    with pytest.raises(SpecError, match="num_landmarks must be at least"):
        compare("landmarks", options, StudyPlace(out=tmp_path / "out"), quiet())
    assert not (tmp_path / "out").exists()


def test_a_changed_plan_shows_in_the_result(
    study: Study, root: Path, tmp_path: Path, here: Here
) -> None:
    elsewhere = replace(place(root), out=tmp_path / "changing")
    for seeds in ((1, 2), (2, 1)):
        found = compare(
            "landmarks", small_options(root / "source", seeds=seeds), elsewhere, quiet()
        )
    (change,) = found.plan.changes
    assert change.endswith("seeds from [1, 2] to [2, 1]")


def test_tuning_chooses_a_rate_for_every_arm_and_keeps_the_curve(
    root: Path, tmp_path: Path, here: Here
) -> None:
    options = small_options(root / "source", designs=("bias",), tune=True, seeds=(1,))
    found = compare("landmarks", options, replace(place(root), out=tmp_path), quiet())
    for name in ("rsLoRA", "bias"):
        curve = arm(found, name).tuning
        assert len(curve) == 5
        assert sum(point.chosen for point in curve) == 1
        assert min(curve, key=lambda point: point.loss).chosen
    assert arm(found, "A/A").tuning is None
    rates = [arm(found, name).optimisation["learning_rate"] for name in ("rsLoRA", "A/A")]
    assert rates[0] == rates[1]
    assert found.plan.tuning.seed == 7


def test_a_frozen_reference_and_contrasts_are_in_an_ablation(
    root: Path, tmp_path: Path, here: Here
) -> None:
    chosen = ("+DoRA", "+position bias")
    options = small_options(root / "source", designs=chosen, seeds=(1,))
    found = compare("ablation", options, replace(place(root), out=tmp_path), quiet())
    none = arm(found, "none")
    assert (none.role, none.gain, none.trainable_parameters) == ("reference", None, 0)
    assert none.perplexity.value == pytest.approx(found.frozen.perplexity)
    pairs = [(one.arm, one.against) for one in found.comparisons]
    assert pairs == [("+position bias", "+DoRA")]


def test_every_length_has_a_verdict_of_its_own(root: Path, tmp_path: Path, here: Here) -> None:
    options = small_options(root / "source", designs=("bias",), max_length=24, seeds=(1,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hylorada.studies.length.SHORTEST_CONTEXT", 12)
        found = compare("length", options, replace(place(root), out=tmp_path), quiet())
    assert [one.name for one in found.arms] == [
        *("rsLoRA @ 12", "bias @ 12", "rsLoRA @ 24", "bias @ 24", "A/A")
    ]
    assert all(arm(found, name).label for name in ("bias @ 12", "bias @ 24"))
    curve, *others = found.figures_data.gain_curves.curves
    assert (curve.name, [point.x for point in curve.points]) == ("bias", [12, 24])
    assert others == []
    assert len(found.sentences) == 2


def test_the_table_has_perplexity_change_parameters_time_and_verdict(
    study: Study,
) -> None:
    text = said(study)
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert all(heading in text for heading in ("PPL", "change", "trained", "time", "per 1 %"))
    assert "+16" in lines["bias"]
    assert f"{arm(study, 'bias').perplexity.value:.3f}" in lines["bias"]
    assert text.count("learnable, boundaries of seed") == 2
    assert study.sentences[0].split(";")[0][:40] in " ".join(text.split())


def test_a_verdict_is_shown_with_its_meaning_and_what_explains_it(study: Study) -> None:
    judged = msgspec.structs.replace(
        arm(study, "bias"), label="B", meaning="helps", explained_by=["low_rank"]
    )
    words = " ".join(said(msgspec.structs.replace(study, arms=[judged])).split())
    assert "B helps (explained by low_rank)" in words


def test_a_failed_check_is_shouted(study: Study) -> None:
    failed = Check(name="sums", passed=False, detail="off")
    shown = said(msgspec.structs.replace(study, checks=[failed]))
    assert "CHECK FAILED: sums: off" in shown


def test_what_every_run_refuses_is_said_in_one_line(root: Path, tmp_path: Path, here: Here) -> None:
    options = small_options(root / "source", max_length=65, num_train=4, num_val=1, num_test=1)
    with pytest.raises(SpecError, match="must not exceed the model's context, 64; got 65"):
        compare("landmarks", options, replace(place(root), out=tmp_path), quiet())


def test_failed_runs_end_the_study_with_their_reason_and_are_tried_again(
    root: Path, tmp_path: Path, here: Here
) -> None:
    spoilt = replace(place(root), out=tmp_path / "study", ledger=str(tmp_path / "runs"))
    options = small_options(root / "source", designs=("bias",), seeds=(1,))
    ledger = open_ledger(spoilt.runs)
    carried = module.StudyInProgress(plan_of("landmarks", options), ledger, spoilt, quiet())
    task = carried._arm_task(carried.plan.arm("bias"), 1)
    folder = tmp_path / "runs" / task.address.folder
    folder.mkdir(parents=True)
    (folder / "adapter").write_text("in the way")
    with pytest.raises(
        RunError, match=r"1 of 5 runs failed, first bias, seed 1: .*tries them again"
    ):
        compare("landmarks", options, spoilt, quiet())
    assert not (tmp_path / "study" / "study.json").exists()
    (folder / "adapter").unlink()
    found = compare("landmarks", options, spoilt, quiet()).provenance
    assert (found.failed, found.repeated) == (0, 1)


def test_text_that_is_missing_is_said_before_anything_is_written(
    root: Path, tmp_path: Path, here: Here
) -> None:
    options = replace(small_options(root / "source"), data=str(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match="nowhere"):
        compare("landmarks", options, replace(place(root), out=tmp_path / "out"), quiet())
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder_is_refused_before_any_text_is_tokenised(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "taken").write_text("a letter")
    with pytest.raises(FileExistsError, match="taken"):
        compare(
            "landmarks", small_options(root / "source"), StudyPlace(out=tmp_path / "taken"), quiet()
        )
    assert not (tmp_path / "cache").exists()


def test_a_folder_in_use_is_refused(root: Path, tmp_path: Path, here: Here) -> None:
    with alone_in(tmp_path, "a study"), pytest.raises(SpecError, match="in use by another process"):
        compare("landmarks", small_options(root / "source"), StudyPlace(out=tmp_path), quiet())


def test_a_ledger_is_named_so_that_every_process_finds_it() -> None:
    assert Path(StudyPlace(out=Path("x")).runs).is_absolute()
    assert StudyPlace(out=Path("x"), ledger="s3://bucket/runs").runs == "s3://bucket/runs"
