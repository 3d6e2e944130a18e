"""Data sets that are taken for large: nothing else is different; and the tokens of unlabelled rows on the disk."""

import threading

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from clozify.errors import TrainingError
from clozify.pipeline import soft_labels as softlabels
from clozify.pipeline import token_cache as unlabeled_rows
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.prompts.encode import FieldInContext
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.worker import Worker
from clozify.utils.checked_files import open_npy
from tests.integration.checks import assert_metrics_are_those_of_the_scores
from tests.integration.conftest import SETTINGS
from tests.integration.test_train import scores

IPET = [*SETTINGS, "ipet.generations=1", "ipet.d=2"]


@pytest.fixture
def large(monkeypatch):
    """Every set of rows is large, and labels are written a few rows at a time."""
    monkeypatch.setattr(unlabeled_rows, "IN_MEMORY", 0)
    monkeypatch.setattr(softlabels, "ROW_GROUP", 16)


def test_large_data_sets_give_the_same_run_to_the_bit(run, files, monkeypatch):
    """A row that slipped by one would get another row's label, and every number would still look right."""
    small = run("small", method="ipet", settings=IPET)
    monkeypatch.setattr(unlabeled_rows, "IN_MEMORY", 0)
    monkeypatch.setattr(softlabels, "ROW_GROUP", 16)
    assert run("large", method="ipet", settings=IPET) == small
    one, other = scores(files / "small"), scores(files / "large")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    tables = [pd.read_parquet(files / name / "labels.parquet") for name in ("small", "large")]
    assert tables[0].equals(tables[1])
    assert pq.ParquetFile(files / "large" / "labels.parquet").num_row_groups == 4


def test_a_run_that_is_done_keeps_no_tokens_and_one_that_was_stopped_finds_them_again(run, files, monkeypatch):
    written = []
    write = unlabeled_rows._write
    monkeypatch.setattr(unlabeled_rows, "_write", lambda *args: (written.append(args[2]), write(*args)))
    with pytest.raises(TrainingError, match="lower the learning rate"):
        run(settings=[*SETTINGS, "distill.learning_rate=1e30", "distill.max_steps=30"])
    assert list((files / "run" / "tokens").glob("*/ids.npy"))
    before = len(written)
    run()
    assert len(written) == before > 0
    assert len(set(written)) == before  # once for all members and classifiers
    assert not (files / "run" / "tokens").exists()
    assert not (files / "run" / "soft").exists()


def test_of_several_that_want_the_tokens_one_writes_and_the_others_wait(files, tiny_folder, monkeypatch):
    """Two that write the same file at a time leave a file of neither."""
    plan = prepare(
        TrainInputs(
            files / "task.toml",
            files / "labeled.csv",
            unlabeled=files / "unlabeled.csv",
            model=str(tiny_folder("bert")),
        )
    )
    written = []
    write = unlabeled_rows._write
    monkeypatch.setattr(unlabeled_rows, "_write", lambda *args: (written.append(args[2]), write(*args)))
    with RunFolder(files / "run") as folder:
        worker = Worker(plan, folder, RunContext("cpu"))
        columns: list[FieldInContext] = worker.prompts.fields
        result = []

        def compile_task() -> None:
            result.append(unlabeled_rows.tokenize_unlabeled(worker, worker.model.tokenizer, columns))

        threads = [threading.Thread(target=compile_task) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(written) == len(columns)
    expected = worker.prompts.tokenize(worker.model, plan.unlabeled, 0, len(plan.unlabeled))
    assert len(result) == 4
    for of_one in result:
        for column, ragged in expected.items():
            assert np.array_equal(of_one[column].ids, ragged.ids)
            assert np.array_equal(of_one[column].offsets, ragged.offsets)


def test_scores_in_half_the_bits_are_members_of_their_own(run, files):
    """Found under the same key, float32 scores would be taken for them, or they for float32 scores."""
    run()
    whole = {path.parent.name: open_npy(path) for path in (files / "run" / "members").glob("*/unlabeled.npy")}
    run(settings=[*SETTINGS, "scores_dtype=float16"])
    every = {path.parent.name: open_npy(path) for path in (files / "run" / "members").glob("*/unlabeled.npy")}
    half = [result for key, result in sorted(every.items()) if key not in whole]
    assert {result.dtype.name for result in half} == {"float16"}
    assert len(half) == len(whole)
    for one in half:
        assert min(np.abs(one.astype(np.float32) - other).max() for other in whole.values()) < 0.01
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")
