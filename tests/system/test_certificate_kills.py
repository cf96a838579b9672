"""An allocation study that is killed while it certifies loses nothing that was finished."""

import io
import json
import multiprocessing
import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from rich.console import Console

from hylorada.cli import main
from hylorada.specs.study import StudyPlace
from hylorada.studies.study import compare
from tests.small_study import small_allocation

PATIENCE_S = 200.0
# Children start from a process that has imported everything, so that kills hit work, not imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["hylorada.studies.study", "tests.small_study"])


def carry_out(source: Path, root: Path) -> None:
    """Carry out a small study; the target of a process of its own."""
    os.environ["HYLORADA_CACHE"] = str(source / "cache")
    place = StudyPlace(out=root / "study", ledger=str(root / "runs"), workers=1)
    options = small_allocation(source, designs=("learned",))
    compare("allocation", options, place, Console(file=io.StringIO()))


def started(source: Path, root: Path) -> ForkServerProcess:
    process = SERVER.Process(target=carry_out, args=(source, root))
    process.start()
    return process


def certifying(root: Path) -> bool:
    """Return whether a run has its file and no record of its certificate yet."""
    files = list((root / "runs").glob("*/adapter.hyl"))
    return any(not list(file.parent.glob("certified-*.json")) for file in files)


def test_a_study_killed_while_certifying_goes_on_and_its_certificate_is_confirmed(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    small_allocation(source)
    process, deadline = started(source, tmp_path), time.monotonic() + PATIENCE_S
    while not certifying(tmp_path):
        assert process.is_alive(), "the study ended before it could be killed"
        assert time.monotonic() < deadline, "the study makes no progress"
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "study" / "study.json").exists()
    files = (tmp_path / "runs").glob("*/adapter.hyl")
    killed = max(files, key=lambda file: file.stat().st_mtime_ns).parent
    trained = (killed / "result.json").stat().st_mtime_ns

    last = started(source, tmp_path)
    last.join(PATIENCE_S)
    assert last.exitcode == 0
    assert (killed / "result.json").stat().st_mtime_ns == trained
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    paths = [path for arm in study["arms"] for path in arm["allocation"]["certificates"]]
    assert str(killed / "certificate.json") in paths
    words = ["verify", str(killed / "certificate.json"), "--data", str(source / "documents")]
    assert main(words) == 0
    assert not list((tmp_path / "runs").glob("*/*.partial*"))
