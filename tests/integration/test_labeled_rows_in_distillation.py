"""`distill.labeled_rows`: T joins the soft-labelled rows."""

import numpy as np
import pytest

from clozify.pipeline import final_classifier
from tests.integration.conftest import SETTINGS


@pytest.fixture
def distilled(monkeypatch):
    """What the classifier was trained on: the number of rows, and their targets."""
    calls = []

    def record(classifier, rows, targets, setup, chosen):
        assert chosen is None  # all rows
        calls.append((len(rows), np.array(targets)))
        return [0.0]

    monkeypatch.setattr(final_classifier, "distill", record)
    return calls


def test_the_labelled_rows_follow_the_unlabelled_ones_with_their_labels_as_targets(start_run, distilled):
    result = start_run(settings=[*SETTINGS, "distill.labeled_rows=true"])
    (rows, targets), counts = distilled[0], result.metrics.rows
    assert rows == len(targets) == counts["unlabeled"] + counts["labeled"]
    of_labeled = targets[counts["unlabeled"] :]
    assert set(np.unique(of_labeled)) == {0.0, 1.0}
    np.testing.assert_array_equal(of_labeled.sum(axis=1), 1)


def test_the_paper_distils_soft_labels_alone(start_run, distilled):
    result = start_run(settings=SETTINGS)
    assert distilled[0][0] == result.metrics.rows["unlabeled"]
