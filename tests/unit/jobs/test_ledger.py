"""A ledger gives each job to one process at a time, in a folder or on storage alike."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hylorada.errors import RunError, SpecError
from hylorada.jobs.ledger import Address, FolderLedger, Ledger, open_ledger
from hylorada.jobs.storage_ledger import StorageLedger

JOB = Address(folder="abc", files=("result.json", "evaluation-1.json"))
LIFETIME_S = 0.2


@pytest.fixture(params=["folder", "memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "folder":
        return FolderLedger(tmp_path / "runs")
    place = f"memory://{tmp_path}" if request.param == "memory" else f"file://{tmp_path}/runs"
    return StorageLedger(place)


def finish(folder: Path | None) -> None:
    assert folder is not None
    for name in JOB.files:
        (folder / name).write_text(json.dumps({"name": name}))


def test_a_job_is_absent_then_running_then_finished(ledger: Ledger) -> None:
    states = [ledger.state(JOB)]
    with ledger.claim(JOB) as folder:
        states.append(ledger.state(JOB))
        finish(folder)
    states.append(ledger.state(JOB))
    assert states == ["absent", "running", "finished"]


def test_a_claim_is_refused_while_another_holds_it(ledger: Ledger) -> None:
    with ledger.claim(JOB) as first, ledger.claim(JOB) as second:
        assert first is not None
        assert second is None


def test_a_claim_is_free_again_after_it_ended(ledger: Ledger) -> None:
    with ledger.claim(JOB) as first:
        assert first is not None
    with ledger.claim(JOB) as second:
        assert second is not None


def test_work_that_broke_off_is_interrupted_and_can_be_claimed(ledger: Ledger) -> None:
    with pytest.raises(KeyError), ledger.claim(JOB):
        raise KeyError
    assert ledger.state(JOB) == "interrupted"
    with ledger.claim(JOB) as folder:
        assert folder is not None


def test_a_half_finished_job_is_not_finished(ledger: Ledger) -> None:
    with ledger.claim(JOB) as folder:
        assert folder is not None
        (folder / "result.json").write_text("{}")
    assert ledger.state(JOB) == "interrupted"


def test_a_finished_file_is_there_for_the_next_claim(ledger: Ledger) -> None:
    with ledger.claim(JOB) as folder:
        assert folder is not None
        (folder / "adapter").mkdir()
        (folder / "adapter" / "weights").write_text("numbers")
    with ledger.claim(JOB) as folder:
        assert folder is not None
        assert (folder / "adapter" / "weights").read_text() == "numbers"


def test_failures_are_kept_with_their_texts(ledger: Ledger) -> None:
    assert ledger.failures(JOB) == []
    ledger.fail(JOB, "first")
    ledger.fail(JOB, "second")
    assert ledger.failures(JOB) == ["first", "second"]
    assert ledger.state(JOB) == "failed"


def test_a_failed_job_can_be_claimed_and_finished(ledger: Ledger) -> None:
    ledger.fail(JOB, "first")
    with ledger.claim(JOB) as folder:
        finish(folder)
    assert ledger.state(JOB) == "finished"
    assert ledger.failures(JOB) == ["first"]


def test_text_is_read_by_name(ledger: Ledger) -> None:
    assert ledger.text(JOB, "result.json") is None
    with ledger.claim(JOB) as folder:
        finish(folder)
    assert json.loads(ledger.text(JOB, "result.json") or "") == {"name": "result.json"}


def test_of_many_that_race_for_a_job_each_works_alone_and_all_find_it_finished(
    ledger: Ledger,
) -> None:
    working, most, done = [0], [0], []

    def work() -> None:
        while ledger.state(JOB) != "finished":
            with ledger.claim(JOB) as folder:
                if folder is None or ledger.state(JOB) == "finished":
                    continue
                working[0] += 1
                most[0] = max(most[0], working[0])
                finish(folder)
                done.append(1)
                working[0] -= 1

    together(work, 8)
    assert (most, len(done), ledger.state(JOB)) == ([1], 1, "finished")


def together(work: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


# Places


def test_a_plain_path_is_a_folder_and_a_url_is_storage(tmp_path: Path) -> None:
    assert isinstance(open_ledger(str(tmp_path)), FolderLedger)
    assert isinstance(open_ledger(f"file://{tmp_path}"), FolderLedger)
    assert isinstance(open_ledger("memory://runs"), StorageLedger)


def test_a_file_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="must be a folder"):
        open_ledger(str(tmp_path / "file"))


def test_storage_that_fsspec_does_not_know_is_refused() -> None:
    with pytest.raises(SpecError, match="nowhere"):
        open_ledger("nowhere://runs")


# Leases


@pytest.fixture
def storage(tmp_path: Path) -> StorageLedger:
    return StorageLedger(f"memory://{tmp_path}", lifetime_s=LIFETIME_S)


def silent(ledger: StorageLedger) -> None:
    """Leave a lease whose holder was killed."""
    lease = ledger._take(JOB)
    assert lease is not None
    assert ledger._take(JOB) is None


def test_the_lease_of_a_killed_holder_expires(storage: StorageLedger) -> None:
    silent(storage)
    assert storage.state(JOB) == "running"
    threading.Event().wait(1.2 * LIFETIME_S)
    assert storage.state(JOB) == "interrupted"
    with storage.claim(JOB) as folder:
        assert folder is not None


def test_a_heartbeat_keeps_a_lease_beyond_its_lifetime(storage: StorageLedger) -> None:
    with storage.claim(JOB) as folder:
        assert folder is not None
        threading.Event().wait(2 * LIFETIME_S)
        assert storage.state(JOB) == "running"


def lose_the_lease(ledger: StorageLedger) -> None:
    """Finish a job after another process has taken it over."""
    with ledger.claim(JOB) as folder:
        finish(folder)
        number = ledger._newest_lease(JOB)
        assert number is not None
        taken = ledger._path(JOB, f"lease-{number + 1}.json")
        ledger._write(taken, b'{"owner": "another", "alive": 0}')


def test_who_lost_the_lease_stores_nothing(storage: StorageLedger) -> None:
    with pytest.raises(RunError, match="was lost to another process"):
        lose_the_lease(storage)
    assert storage.text(JOB, "result.json") is None


def test_only_one_of_many_takes_over_an_expired_lease(storage: StorageLedger) -> None:
    silent(storage)
    threading.Event().wait(1.2 * LIFETIME_S)
    taken = []

    def take() -> None:
        if (lease := storage._take(JOB)) is not None:
            taken.append(lease)

    together(take, 8)
    assert len(taken) == 1


def test_a_lease_half_written_is_alive_for_its_lifetime_only(storage: StorageLedger) -> None:
    storage._write(storage._path(JOB, "lease-0.json"), b"")
    assert storage._take(JOB) is None
    threading.Event().wait(1.2 * LIFETIME_S)
    assert storage._take(JOB) is not None


def test_a_storage_that_fails_for_a_moment_does_not_end_the_heartbeat(
    storage: StorageLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = storage._write, [OSError("away")]

    def failing(path: str, content: bytes, *, new: bool = False) -> None:
        if failures:
            raise failures.pop()
        write(path, content, new=new)

    with storage.claim(JOB) as folder:
        assert folder is not None
        monkeypatch.setattr(storage, "_write", failing)
        threading.Event().wait(2 * LIFETIME_S)
        assert failures == []
        assert storage.state(JOB) == "running"


def test_results_are_uploaded_last(storage: StorageLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = storage.files.pipe_file

    def noting(path: str, *args: object, **kwargs: object) -> None:
        written.append(path.rpartition("/")[2])
        write(path, *args, **kwargs)

    monkeypatch.setattr(storage.files, "pipe_file", noting)
    with storage.claim(JOB) as folder:
        finish(folder)
        assert folder is not None
        (folder / "a").write_text("")
        (folder / "z").write_text("")
    uploaded = [name for name in written if not name.startswith("lease")]
    assert set(uploaded[:2]) == {"a", "z"}
    assert set(uploaded[2:]) == set(JOB.files)


def test_the_lifetime_of_leases_can_be_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYLORADA_LEASE_SECONDS", "2.5")
    assert StorageLedger("memory://runs").lifetime_s == 2.5


@pytest.mark.parametrize("given", ["soon", "0", "-1", "inf", ""])
def test_a_lifetime_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYLORADA_LEASE_SECONDS", given)
    with pytest.raises(SpecError, match=f"must be a positive number; got '{given}'"):
        StorageLedger("memory://runs")
