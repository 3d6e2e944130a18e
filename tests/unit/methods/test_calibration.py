"""Calibration against the equation written out, on scores in memory and in a run's files."""

import numpy as np
import pytest

from clozify.methods import calibration
from clozify.methods.calibration import calibrate, imbalance_warnings, mean_probabilities
from clozify.pipeline.untrained import calibrate_files

SCORES = np.array([[2.0, 0.0], [3.0, 1.0], [2.0, 1.0], [4.0, 0.0]])  # label 0 wins everywhere


def expected(scores, q):
    """log softmax(s)(l) - log mean_x softmax(s)(l)."""
    return [
        [np.log(np.exp(s) / np.exp(row).sum()) - np.log(q[:, label].mean()) for label, s in enumerate(row)]
        for row in scores
    ]


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_label_that_wins_everywhere_no_longer_does(chunk, monkeypatch):
    monkeypatch.setattr(calibration, "chunk_rows", lambda columns: chunk)
    q = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    prior = mean_probabilities(np.stack([SCORES, SCORES[:, ::-1]]))
    assert prior == pytest.approx(np.array([q.mean(axis=0), q.mean(axis=0)[::-1]]))
    calibrated = calibrate(SCORES, prior[0])
    assert calibrated == pytest.approx(np.array(expected(SCORES, q)))
    assert calibrated.argmax(axis=1).tolist() == [0, 0, 1, 0]


def test_the_files_of_a_pair_are_calibrated_by_its_unlabelled_rows(tmp_path):
    np.save(tmp_path / "unlabeled.npy", SCORES.astype(np.float16))
    np.save(tmp_path / "test.npy", SCORES[:2].astype(np.float32))
    calibrate_files(tmp_path)
    q = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    unlabeled, test = np.load(tmp_path / "unlabeled.npy"), np.load(tmp_path / "test.npy")
    assert (unlabeled.dtype, test.dtype) == (np.float16, np.float32)
    assert unlabeled == pytest.approx(np.array(expected(SCORES, q)), abs=2e-3)
    assert test == pytest.approx(np.array(expected(SCORES[:2], q)), abs=1e-5)


@pytest.mark.parametrize(
    ("counts", "warns"),
    [
        ([50, 50], False),
        ([65, 35], False),  # a distance of 0.15
        ([75, 25], True),
        ([4666, 5362, 1304, 2159, 1937, 572], True),  # Emotion: 0.29
        ([3, 1], False),  # by chance
        ([9, 0, 0], True),
        ([0, 0], False),
    ],
)
def test_a_warning_names_the_largest_label_where_shares_are_far_from_equal(counts, warns):
    labels = np.repeat(np.arange(len(counts)), counts).astype(np.int16)
    labels = np.append(labels, np.int16(-1))  # a row without a label
    warnings = imbalance_warnings(labels, [f"label {index}" for index in range(len(counts))])
    assert [f"'label {np.argmax(counts)}'" in warning for warning in warnings] == [True] * warns
