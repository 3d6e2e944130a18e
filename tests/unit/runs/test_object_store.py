"""A run in a store: what counts as finished, who may work on it, and what is refused."""

import json
import os
import socket
import time

import pytest

from clozify.errors import RunError
from clozify.runs.folder import RunFolder
from clozify.runs.object_store import ObjectStore
from clozify.runs.object_store_lock import LOCK_FILE, ObjectStoreLock
from clozify.runs.stored_folder import StoredRunFolder, local_copy, open_run

KEY = "0123456789abcdef"


@pytest.fixture
def address(tmp_path):
    return f"file://{tmp_path}/store/run"


def job_in(folder, text="scores"):
    with folder.writing("members", KEY) as written:
        (written / "member.json").write_text(text)
        (written / "model").mkdir()
        (written / "model" / "weights").write_text("heavy")


def test_a_job_is_there_for_the_next_process_and_only_when_it_is_whole(address):
    """An upload that was cut off would count as a member with some of its scores."""
    with StoredRunFolder(address) as folder:
        folder.write_json("run.json", {})
        job_in(folder)
    with StoredRunFolder(address) as folder:
        assert (folder.job_path("members", KEY) / "member.json").read_text() == "scores"
        assert not (folder.job_path("members", KEY) / "model").exists()  # weights stay where they are
    ObjectStore(address).remove(f"members/{KEY}/whole.json")
    with StoredRunFolder(address) as folder:
        assert not folder.job_path("members", KEY).exists()


def test_a_worker_elsewhere_leaves_its_job_in_the_store_alone(address):
    with StoredRunFolder(address) as folder:
        worker = folder.opener(other_machine=True)()
        assert worker.path != folder.path
        job_in(worker)
        assert worker.finished_jobs == [("members", KEY)]
        assert not (worker.path / "members" / KEY).exists()
        assert (folder.job_path("members", KEY) / "member.json").exists()
        neighbour = folder.opener()()
        assert neighbour.path == folder.path.resolve()


def test_the_run_s_own_files_are_in_the_store_when_it_ends_and_no_job_twice(address):
    with StoredRunFolder(address) as folder:
        folder.write_json("run.json", {"a": 1})
        folder.write_json("metrics.json", {"b": 2})
        folder.write_json("ensemble.json", {})
        (folder.path / "workers").mkdir()
        (folder.path / "workers" / "0.txt").write_text("a log")
        job_in(folder)
        (folder.path / "log.txt").write_text("said\n")
        scratch = folder.path
    store = ObjectStore(address)
    members = [f"members/{KEY}/{name}" for name in ("checksums.json", "member.json", "model/weights", "whole.json")]
    assert store.names() == ["ensemble.json", "log.txt", *members, "metrics.json", "run.json", "workers/0.txt"]
    assert not scratch.exists()
    with StoredRunFolder(address) as folder:
        assert (folder.path / "log.txt").read_text() == "said\n"  # it is continued
        folder.remove("ensemble.json")
    assert "ensemble.json" not in store.names()


def test_a_second_process_is_refused_until_the_first_has_ended(address):
    """Two of them would write over each other's results."""
    with StoredRunFolder(address), pytest.raises(RunError, match=f"Another process .* process {os.getpid()}"):
        StoredRunFolder(address)
    store = ObjectStore(address)
    assert LOCK_FILE not in store.names()

    def held_by(**expected):
        whole = {"token": "another", "host": "elsewhere", "process": "1", "time": time.time()} | expected
        store.write(LOCK_FILE, json.dumps(whole).encode())

    held_by()
    with pytest.raises(RunError, match="elsewhere, process 1.* expires 120 seconds after"):
        StoredRunFolder(address)
    held_by(time=time.time() - 121)  # not renewed
    StoredRunFolder(address).close()
    held_by(host=socket.gethostname(), process="999999999")  # killed, here
    StoredRunFolder(address).close()
    assert LOCK_FILE not in store.names()


def test_a_lock_that_another_process_has_taken_stops_the_first(address):
    """A machine that was cut off for minutes would go on and mix its results with the other's."""
    store = ObjectStore(address)
    renewed: list[float] = []
    lock = ObjectStoreLock(store, lambda: renewed.append(time.time()), renewal_seconds=0.05)
    while not renewed:
        time.sleep(0.01)
    lock.check()
    store.write(LOCK_FILE, json.dumps({"token": "another"}).encode())
    until = time.monotonic() + 5
    while not lock.lost and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(RunError, match="Another process has taken over"):
        lock.check()
    lock.release()
    assert LOCK_FILE in store.names()  # it is the other's


def test_places_that_cannot_be_a_run_are_refused(tmp_path, address):
    from pathlib import Path

    assert type(open_run(tmp_path / "run")) is RunFolder
    with pytest.raises(RunError, match="give an address as text"):
        open_run(Path("s3://bucket/run"))
    with pytest.raises(RunError, match="cannot be used: .*nowhere"):
        open_run("nowhere://bucket/run")
    ObjectStore(address).write("holiday.jpg", b"")
    with pytest.raises(RunError, match="holds 'holiday.jpg' but no run"):
        open_run(address)
    assert local_copy(tmp_path) == tmp_path
    assert not list(local_copy(address).iterdir())


def test_a_store_whose_package_is_missing_says_what_to_install(monkeypatch):
    import fsspec

    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(RunError, match=r"pip install 'clozify\[s3\]'"):
        open_run("s3://bucket/run")
