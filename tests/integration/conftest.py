"""A small task, its rows, and a run of it with a tiny model."""

import pandas as pd
import pytest

from clozify.inference.training import train
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.worker import Worker

TASK = """
name = "stars"
fields = ["text"]
patterns = ["It was {mask}. {text}", "Just {mask}! || {text}"]
[labels]
1 = "bad"
2 = "great"
"""
SETTINGS = [
    "repetitions=2",
    "finetune.max_steps=6",
    "finetune_without_lm.max_steps=6",
    "distill.max_steps=6",
    "supervised.max_steps=6",
    "max_seq_length=40",
]


@pytest.fixture
def files(tmp_path):
    """A task, ten labelled rows, unlabelled data and test rows, all different."""
    (tmp_path / "task.toml").write_text(TASK)
    words = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
    rows = [(1 + n % 2, f"{words[n % 6]} number {n}") for n in range(100)]
    frame = pd.DataFrame(rows, columns=["label", "text"])
    frame[:10].to_csv(tmp_path / "labeled.csv", index=False)
    frame[["text"]][10:60].to_csv(tmp_path / "unlabeled.csv", index=False)
    frame[60:].to_csv(tmp_path / "test.csv", index=False)
    return tmp_path


@pytest.fixture
def start_run(files, tiny_folder):
    """Train on the files, with changes to the call, and return the result."""

    def start(output="run", **changes):
        inputs = {
            "task": files / "task.toml",
            "labeled": files / "labeled.csv",
            "unlabeled": files / "unlabeled.csv",
            "test": files / "test.csv",
            "model": str(tiny_folder("bert")),
            "recipe": "paper",
            "settings": SETTINGS,
            "replace": True,
        }
        return train(output=files / output, **(inputs | changes))

    return start


@pytest.fixture
def run(start_run):
    """Train as `start_run` does, and return the metrics as JSON."""
    return lambda output="run", **changes: start_run(output, **changes).metrics.to_json()


@pytest.fixture
def worker(files, tiny_folder):
    """The state of a run that has not begun."""
    plan = prepare(
        TrainInputs(files / "task.toml", files / "labeled.csv", model=str(tiny_folder("bert")), recipe="paper"), "cpu"
    )
    with RunFolder(files / "run") as folder:
        yield Worker(plan, folder, RunContext("cpu"))
