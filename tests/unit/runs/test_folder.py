"""A run's folder: whose it is, what a killed process leaves, and what counts as finished."""

import errno
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import clozify
from clozify.errors import RunError
from clozify.runs.folder import RunFolder

HOLD = """
import sys, time
from clozify.runs.folder import RunFolder
folder = RunFolder(sys.argv[1])
print("held", flush=True)
time.sleep(100)
"""


def test_a_second_process_is_refused_at_once_until_the_first_has_ended(tmp_path):
    """Two of them would write over each other's results."""
    path = tmp_path / "run"
    folder = RunFolder(path)
    began = time.monotonic()
    with pytest.raises(RunError, match="^Another process is working on the run '.*run'; wait for it"):
        RunFolder(path)
    assert time.monotonic() - began < 1
    folder.close()
    RunFolder(path).close()


def test_a_killed_process_leaves_no_lock(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(clozify.__file__).parents[1])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match="Another process"):
        RunFolder(tmp_path / "run")
    process.kill()
    process.communicate()
    RunFolder(tmp_path / "run").close()


def test_no_module_needs_a_lock_that_windows_lacks():
    for path in Path(clozify.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) fcntl", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_a_job_counts_when_its_block_has_ended_and_leftovers_are_removed(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        with folder.writing("members", "one") as written:
            (written / "scores.npy").touch()
            assert not folder.job_path("members", "one").exists()
        assert (folder.job_path("members", "one") / "scores.npy").exists()
        assert folder.finished_jobs == [("members", "one")]
        folder.write_json("run.json", {"model": "übung"})
    (tmp_path / "run" / "members" / ".two.01234567.part").mkdir()
    (tmp_path / "run" / ".metrics.json.01234567.part").touch()
    with RunFolder(tmp_path / "run") as folder:
        assert not list(folder.path.rglob("*.part"))
        assert "übung" in (folder.path / "run.json").read_text(encoding="utf-8")


def test_a_worker_attaches_to_a_run_that_another_process_holds(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        attached = folder.opener()()
        assert attached.path == folder.path.resolve()
        with attached.writing("members", "one"):
            pass
        assert folder.job_path("members", "one").is_dir()


def test_what_holds_no_run_is_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(RunError, match=r"holds 'thesis.txt' but no run"):
        RunFolder(tmp_path)
    with pytest.raises(RunError, match="that is a file; name a folder"):
        RunFolder(tmp_path / "thesis.txt")


def test_a_full_disk_is_reported_in_one_sentence(tmp_path):
    with pytest.raises(RunError, match="no space left on the disk for the run"), RunFolder(tmp_path / "run"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with RunFolder(tmp_path / "run") as folder:
        assert folder.disk_full_error(OSError("10 requested and 0 written")) is not None  # NumPy's words
        assert folder.disk_full_error(ValueError("No space left")) is None


def test_a_published_folder_replaces_the_last_one(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        for name in ("old", "new"):
            with folder.writing("classifiers", name) as written:
                (written / f"{name}.json").touch()
            folder.publish_folder(folder.job_path("classifiers", name), "classifier")
        assert [file.name for file in (folder.path / "classifier").iterdir()] == ["new.json"]
        folder.remove("classifier", "labels.parquet")
        assert not (folder.path / "classifier").exists()
