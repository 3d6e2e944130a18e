"""Checks of a finished run's results against its own files, computed in the plainest way."""

import json

import numpy as np
import pandas as pd


def assert_metrics_are_those_of_the_scores(folder, test):
    """Every accuracy in metrics.json is that of the scores in the run's folder on the rows of the file `test`."""
    metrics = json.loads((folder / "metrics.json").read_text())
    truth = pd.read_csv(test)["label"].to_numpy() - 1
    checked = 0

    def accuracy(scores):
        return np.mean(scores.argmax(axis=1) == truth)

    for name in ("classifier", "supervised", "uda", "mixtext"):
        summary = metrics.get(name, {})
        for job, expected in zip(summary.get("jobs", []), summary.get("accuracy_each", []), strict=True):
            assert accuracy(np.load(folder / "classifiers" / job / "test.npy")) == expected
            checked += 1
        if summary:
            assert np.isclose(summary["accuracy"], np.mean(summary["accuracy_each"]))
    for member in metrics.get("members", {}).get("each", []):
        assert accuracy(np.load(folder / member["job"] / "test.npy")) == member["accuracy"]
    if "ensemble" in metrics:
        members = json.loads((folder / "ensemble.json").read_text())["weights"]
        weights = np.array([member["weight"] for member in members], dtype=np.float64)
        weights = weights if weights.any() else np.ones_like(weights)
        paths = [next(folder.glob(f"*/{member['member']}/test.npy")) for member in members]
        scores = [np.load(path) for path in paths]
        mean = sum(w * s.astype(np.float64) for w, s in zip(weights / weights.sum(), scores, strict=True))
        assert accuracy(mean) == metrics["ensemble"]["accuracy"]
        checked += 1
    assert checked
