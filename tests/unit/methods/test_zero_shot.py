import numpy as np
import pytest
from scipy.special import softmax

from clozify.data.rows import Rows
from clozify.methods.zero_shot import ZeroShotScores


@pytest.fixture
def result(stars):
    from datasets import Dataset

    rows = Rows(Dataset.from_dict({"text": ["x"] * 4, "label": ["1", "2", "3", ""]}), stars)
    scores = np.random.default_rng(0).normal(size=(3, 4, 3)).astype(np.float32)
    prior = softmax(scores.astype(float), axis=-1).mean(axis=1)
    return ZeroShotScores(rows, scores, None, []), ZeroShotScores(rows, scores, prior, [])


def test_the_ensemble_is_the_softmax_of_the_mean_of_raw_scores(result):
    """Averaging probabilities instead would be another ensemble than the paper's."""
    scores = result[0].scores.mean(axis=0)
    expected = [[np.exp(s) / sum(np.exp(row)) for s in row] for row in scores]
    assert np.allclose(result[0].probabilities(0, 4), expected, atol=1e-6)


def test_calibration_divides_by_the_mean_probability_of_each_label(result):
    for pair in range(3):
        q = np.array([[np.exp(s) / sum(np.exp(row)) for s in row] for row in result[1].scores[pair]])
        divided = q / q.mean(axis=0)
        expected = divided / divided.sum(axis=1, keepdims=True)
        assert np.allclose(softmax(result[1].pair_scores(0, 4), axis=-1)[pair], expected, atol=1e-6)


def test_accuracy_leaves_out_rows_without_a_label(result):
    report = result[0].metrics()["accuracy"]
    predicted = result[0].scores[:, :3].argmax(axis=-1)
    assert report["patterns"] == [np.mean(row == [0, 1, 2]) for row in predicted]
    assert report["mean"] == pytest.approx(np.mean(report["patterns"]))
    assert report["best"] == max(report["patterns"])


def test_without_any_label_there_are_no_metrics(stars):
    from datasets import Dataset

    rows = Rows(Dataset.from_dict({"text": ["x"], "label": ["-"]}), stars)
    assert ZeroShotScores(rows, np.zeros((3, 1, 3), np.float32), None, []).metrics() == {}
