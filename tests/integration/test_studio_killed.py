"""The studio's training is killed at random moments and resumed, with the studio opened anew each time.

`CLOZIFY_KILL_ROUNDS` (default 5) is the number of kills, `CLOZIFY_KILL_SEED` repeats the moments of a failed test.
"""

import os
import random
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clozify.studio.draft import TaskDraft
from clozify.studio.project import Project
from clozify.studio.run_inputs import RunSettings
from clozify.studio.runs import StudioRun
from tests.integration.conftest import SETTINGS

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("CLOZIFY_KILL_ROUNDS", "5"))
RUN_SETTINGS = RunSettings(unlabeled=20, recipe_settings=" ".join([*SETTINGS, "repetitions=1"]))


def wait(run: StudioRun, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while run.state == "running" and time.monotonic() < deadline:
        time.sleep(0.02)
    return run.state


def result(run: StudioRun) -> dict[str, object]:
    """Everything that a run computed: scores and weights as bytes, soft labels as a table."""
    files = [path for pattern in ("*.npy", "*.safetensors") for path in run.path.rglob(pattern)]
    labels = {str(path.relative_to(run.path)): pq.read_table(path) for path in run.path.rglob("labels.parquet")}
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files} | labels


def open_project(folder: Path, model: str) -> Project:
    project = Project(folder, model)
    project.draft = TaskDraft(
        "stars",
        ["text"],
        "label",
        ["It was {mask}. {text}", "Just {mask}! || {text}"],
        [("1", "bad"), ("2", "great")],
    )
    return project


def test_a_training_that_is_killed_at_any_moment_and_resumed_gives_the_same_result(files, tiny_folder):
    seed = int(os.environ.get("CLOZIFY_KILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CLOZIFY_KILL_SEED={seed}")
    moments, folder, model = random.Random(seed), files / "project", str(tiny_folder("bert"))
    project = open_project(folder, model)
    project.load(str(files / "unlabeled.csv"))
    for row in range(4):
        project.set_label(row, str(1 + row % 2))
    start = time.monotonic()
    undisturbed = project.start(RUN_SETTINGS)
    assert wait(undisturbed, 240) == "done", undisturbed.problems()
    duration, expected = time.monotonic() - start, result(undisturbed)
    assert expected
    run = project.start(RUN_SETTINGS)
    for _ in range(ROUNDS):
        if wait(run, moments.uniform(0, 0.95 * duration)) == "done":
            assert result(run) == expected
            run = project.start(RUN_SETTINGS)
        assert run.process is not None
        os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait()
        number = run.number
        project.close()
        project = open_project(folder, model)
        assert project.notices == []
        assert len(project.data.labels) == 4
        run = project.runs[-1]
        assert (run.number, run.state) in ((number, "stopped"), (number, "done"))
        project.resume(run)
    assert wait(run, 240) == "done", run.problems()
    assert result(run) == expected
    project.close()
