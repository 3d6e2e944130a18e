"""What `clozify suggest` says about the next labels, for real runs with a tiny model."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

import clozify
from clozify.errors import ClozifyError
from clozify.inference import outlook
from clozify.runs.keys import hash_key
from clozify.runs.metrics import AccuracyMetrics
from clozify.runs.reliability import RELIABILITY_FILE, Reliability
from tests.integration.conftest import TASK

QUICK = ["max_seq_length=40", "repetitions=1", "finetune_without_lm.max_steps=2", "distill.max_steps=2"]
QUICK += ["language_modeling=false"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_folder):
    """Runs `8` and `12` with a frozen encoder and so many labelled rows, and `untested` without test rows."""
    folder = tmp_path_factory.mktemp("outlook")
    (folder / "task.toml").write_text(TASK)
    words = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
    rows = [(1 + n % 2, f"{words[n % 6]} number {n}") for n in range(80)]
    frame = pd.DataFrame(rows, columns=["label", "text"])
    frame[["text"]][4:60].to_csv(folder / "unlabeled.csv", index=False)
    frame[60:].to_csv(folder / "test.csv", index=False)
    inputs = {"task": folder / "task.toml", "unlabeled": folder / "unlabeled.csv", "model": str(tiny_folder("bert"))}
    inputs |= {"recipe": "paper", "settings": QUICK}
    for count, output in ((8, "8"), (12, "12"), (12, "untested"), (12, "pet")):
        frame[:count].to_csv(folder / f"labeled-{count}.csv", index=False)
        clozify.train(
            labeled=folder / f"labeled-{count}.csv",
            test=folder / "test.csv" if output in ("8", "12") else None,
            output=folder / output,
            method="pet" if output == "pet" else "frozen",
            **inputs,
        )
    return folder


def combined_scores(run):
    """The ensemble's scores of the unlabelled rows by the ids of their texts' numbers, from the run's files alone."""
    members = json.loads((run / "ensemble.json").read_text())["weights"]
    weights = [member["weight"] for member in members]
    weights = weights if any(weights) else [1.0] * len(weights)
    scores = [np.load(run / "members" / member["member"] / "unlabeled.npy") for member in members]
    return sum(weight * each for weight, each in zip(weights, scores, strict=True)) / sum(weights)


def write_reliability(run, temperature=2.0, accuracy=0.5):
    record = Reliability.of_probabilities(
        AccuracyMetrics(
            rows=len(np.array([0, 1] * 6)), folds=5, accuracy=accuracy, low=0.2, high=0.8, temperature=temperature
        ),
        np.array([[0.7, 0.3]] * 12),
        np.array([0, 1] * 6),
    )
    (run / RELIABILITY_FILE).write_text(record.model_dump_json())


def test_with_test_rows_the_accuracy_is_theirs_and_an_earlier_run_shows_what_changed(folder):
    result = clozify.suggest(folder / "12", 5, previous=[folder / "8"]).outlook
    metrics = json.loads((folder / "12" / "metrics.json").read_text())
    assert result.accuracy.accuracy == metrics["ensemble"]["accuracy"]
    assert (result.labels, result.count) == (12, 5)
    before, after = (combined_scores(folder / name).argmax(axis=1) for name in ("8", "12"))
    assert (len(before), len(after)) == (52, 48)  # labelled rows are no unlabelled ones
    (change,) = result.changes
    assert (change.before, change.after, change.rows) == (8, 12, 48)
    assert change.changed == pytest.approx((before[4:] != after).mean())
    assert change.gain >= 0
    assert result.gain.low <= result.gain.expected <= result.gain.high


def test_the_command_prints_it(folder, tmp_path, monkeypatch, capsys):
    from clozify import cli

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["clozify", "suggest", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, capsys.readouterr()

    code, shown = command(folder / "12", "--count", 5, "--output", tmp_path / "a.csv", "--previous", folder / "8")
    assert not code
    printed = " ".join(shown.out.split())
    assert "The next 5 labels will probably bring" in printed
    assert "from 8 to 12 labelled rows" in printed
    code, shown = command(folder / "12", "--json", "--output", tmp_path / "b.csv")
    assert json.loads(shown.out)["outlook"]["changes"] == []
    code, shown = command(folder / "8", "--output", tmp_path / "c.csv", "--previous", folder / "12")
    assert code == 2
    assert "has 12 labelled rows" in " ".join(shown.err.split())
    assert not (tmp_path / "c.csv").exists()


def test_without_test_rows_the_accuracy_is_the_calibrated_confidence_on_unlabelled_rows(folder, tmp_path):
    """Suggested rows are hard: the accuracy on them would make every model look worse than it is."""
    run = tmp_path / "run"
    shutil.copytree(folder / "untested", run)
    (run / RELIABILITY_FILE).unlink(missing_ok=True)
    result = clozify.suggest(run, 5).outlook
    assert (result.accuracy, result.gain, result.stop) == (None, None, None)
    assert "cannot be estimated" in result.sentences[0]
    odds = np.exp(combined_scores(run) / 2.0)
    expected = (odds.max(axis=1) / odds.sum(axis=1)).mean()
    write_reliability(run, 2.0, accuracy=expected)
    result = clozify.suggest(run, 5)
    assert result.outlook.accuracy.accuracy == pytest.approx(expected, abs=1e-4)
    assert result.outlook.accuracy.source == "estimate"
    assert not any("harder" in warning for warning in result.warnings)
    write_reliability(run, accuracy=0.01)
    assert any("harder" in warning for warning in clozify.suggest(run, 5).warnings)


def test_a_classifier_scores_some_unlabelled_rows_for_its_own_confidence(folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(folder / "pet", run)
    write_reliability(run)
    monkeypatch.setattr(outlook, "CLASSIFIER_ROWS", 16)
    accuracy = clozify.suggest(run, 5).outlook.accuracy.accuracy
    texts = pd.read_csv(folder / "unlabeled.csv")["text"][8::3].tolist()  # the first eight are labelled
    assert len(texts) == 16
    expected = clozify.load_run(run).predict(texts).probabilities.max(axis=1).mean()
    assert accuracy == pytest.approx(expected, abs=1e-3)


def test_runs_that_cannot_be_compared_are_refused_or_left_out(folder, tmp_path):
    with pytest.raises(ClozifyError, match="not trained by the method 'frozen'"):
        clozify.suggest(folder / "12", 5, previous=[folder / "pet"])
    with pytest.raises(ClozifyError, match="holds no run"):
        clozify.suggest(folder / "12", 5, previous=[tmp_path / "nowhere"])
    other = tmp_path / "other"
    shutil.copytree(folder / "8", other)
    record = json.loads((other / "run.json").read_text())
    words = record["task"]["verbalizers"][0]["words"]
    words["3"] = words.pop("2")
    (other / "run.json").write_text(json.dumps(record))
    metrics = json.loads((other / "metrics.json").read_text()) | {"run": hash_key(**record)}
    (other / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(ClozifyError, match="another task"):
        clozify.suggest(folder / "12", 5, previous=[other])
    for path in (folder / "8" / "members").glob("*/unlabeled.npy"):
        path.rename(path.with_suffix(".away"))
    try:
        result = clozify.suggest(folder / "12", 5, previous=[folder / "8"])
    finally:
        for path in (folder / "8" / "members").glob("*/unlabeled.away"):
            path.rename(path.with_suffix(".npy"))
    assert result.outlook.changes == []
    assert any("is left out" in warning for warning in result.warnings)
