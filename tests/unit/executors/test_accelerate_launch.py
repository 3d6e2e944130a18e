"""What the ranks of Accelerate's launcher share: who works for whom, and who writes."""

import pytest

from clozify.errors import RunError
from clozify.executors.accelerate_launch import (
    NullTracking,
    ReadOnlyRunFolder,
    is_worker_rank,
    launched_processes,
)
from clozify.executors.select import choose_executor
from clozify.runs.folder import RunFolder


def test_rank_0_runs_the_command_and_the_others_work_for_it(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert launched_processes() == 1
    assert not is_worker_rank()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("RANK", rank)
        assert launched_processes() == 2
        assert is_worker_rank() == (rank == "1")


def test_another_rank_reads_the_run_but_writes_only_the_token_cache(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        with folder.writing("soft", "a") as written:
            (written / "one").touch()
        read_only = ReadOnlyRunFolder(folder)
        assert (read_only.job_path("soft", "a") / "one").exists()
        for kind in ("members", "tokens"):
            with read_only.writing(kind, "b") as written:
                (written / "two").touch()
            assert not written.exists()
        assert not read_only.job_path("members", "b").exists()
        assert read_only.job_path("tokens", "b").exists()  # the first rank that needs it writes it
        assert read_only.has_job("tokens", "b")


def test_another_rank_logs_no_losses():
    with NullTracking(None).training("member", 3) as on_step:
        on_step(1, 0.5)


@pytest.mark.parametrize("at_once", [None, 2])
def test_several_models_at_once_are_refused_under_the_launcher_before_any_trial(monkeypatch, at_once):
    """`--at-once auto`, here None, would be determined by a trial that no result may come of."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RunError, match="leave out --executor, --at-once"):
        choose_executor("local", devices="cpu", at_once=at_once)
    assert choose_executor("local", devices="cpu", at_once=1)[0] == "cpu"
