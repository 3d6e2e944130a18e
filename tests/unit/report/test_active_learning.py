"""Which rows to label next, on hand-made scores."""

import math

import numpy as np
import pytest
from datasets import Dataset

from clozify.config.task import parse_task
from clozify.data.rows import Rows
from clozify.report import active_learning
from clozify.report.active_learning import eligible_rows, measure_informativeness, select_rows

TASK = parse_task('name = "t"\nfields = ["text"]\npatterns = ["{mask} {text}"]\n[labels]\na = "x"\nb = "y"\n')


def rows_of(*texts: str) -> Rows:
    return Rows(Dataset.from_dict({"text": list(texts)}), TASK)


def softmax(scores):
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def test_members_that_say_the_same_do_not_disagree_however_unsure_they_are():
    """Uncertainty taken for disagreement would call every hard row a fault of the patterns."""
    scores = np.array([[0.0, 0.0], [9.0, 0.0]], dtype=np.float32)
    info = measure_informativeness([scores, scores], [1.0, 2.0])
    assert info.disagreement == pytest.approx([0, 0], abs=1e-9)
    assert info.uncertainty == pytest.approx([1, 0], abs=0.01)


def test_uncertainty_is_one_minus_the_margin_of_the_ensembles_two_highest_probabilities():
    members = np.random.default_rng(0).normal(size=(2, 20, 5)).astype(np.float32)
    info = measure_informativeness(list(members), [1.0, 3.0])
    for row in range(20):
        ensemble = [(one + 3 * other) / 4 for one, other in zip(members[0][row], members[1][row], strict=True)]
        first, second = sorted(softmax(ensemble), reverse=True)[:2]
        assert info.uncertainty[row] == pytest.approx(1 - (first - second), abs=1e-6)


def test_with_several_labels_a_row_is_uncertain_where_its_labels_have_a_probability_of_one_half():
    info = measure_informativeness([np.array([[0.0, 0.0], [20.0, -20.0], [0.0, 20.0]], np.float32)], [1.0], True)
    assert info.uncertainty == pytest.approx([1, 0, 0.5], abs=1e-6)


def test_sure_members_that_contradict_each_other_disagree_fully():
    info = measure_informativeness(
        [np.array([[20.0, 0.0]], np.float32), np.array([[0.0, 20.0]], np.float32)], [1.0, 1.0]
    )
    assert info.disagreement == pytest.approx([1], abs=1e-6)


def test_one_member_is_enough_for_a_choice():
    scores = np.array([[5.0, 0.0], [0.1, 0.0], [0.0, 5.0]], dtype=np.float32)
    info = measure_informativeness([scores], [1.0])
    assert not info.disagreement.any()
    assert select_rows(info, 1, np.arange(3), np.zeros(2, np.int64)).tolist() == [1]


def test_a_label_without_rows_comes_first_and_one_with_many_is_asked_for_less():
    """Without balance, a label that the models confuse most would take all of the work."""
    scores = np.array([[0.5, 0.0]] * 8 + [[0.0, 3.0]] * 4, dtype=np.float32)
    info = measure_informativeness([scores], [1.0])
    assert info.predicted[select_rows(info, 4, np.arange(12), np.array([3, 0]))].tolist() == [1, 0, 0, 0]
    assert info.predicted[select_rows(info, 4, np.arange(12), np.array([2000, 1]))].tolist() == [1, 1, 1, 1]


def test_every_row_has_the_highest_uncertainty_over_the_root_of_its_labels_count_among_those_left():
    scores = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    info, counts = measure_informativeness([scores], [1.0]), [2, 7, 1]
    left = list(range(60))
    for row in select_rows(info, 12, np.arange(60), np.array(counts)):
        values = {index: info.uncertainty[index] / math.sqrt(1 + counts[info.predicted[index]]) for index in left}
        assert values[row] == max(values.values())
        left.remove(row)
        counts[info.predicted[row]] += 1


def test_a_label_that_nothing_is_predicted_as_and_that_has_no_row_gets_the_likeliest_ones():
    """Models that have never seen a label never predict it; without rows of it that would stay so."""
    scores = np.array([[5, 0, 0], [5, 1, 2], [0, 5, 4], [0, 5, 0]] + [[0, 9, 0]] * 9, dtype=np.float32)
    info = measure_informativeness([scores], [1.0])
    assert info.likeliest[2, :2].tolist() == [2, 1]
    chosen = select_rows(info, 3, np.arange(13), np.array([4, 4, 0]))
    assert chosen[0] == 2
    assert len(set(chosen.tolist())) == 3
    assert select_rows(info, 1, np.array([0, 3]), np.array([4, 4, 0])).tolist() in ([0], [3])  # none is eligible
    with_rows = select_rows(info, 13, np.arange(13), np.array([4, 4, 1]))
    assert sorted(with_rows.tolist()) == list(range(13))


@pytest.mark.parametrize("chunk", [2, 5, 100])
def test_the_likeliest_rows_do_not_depend_on_the_chunks(monkeypatch, chunk):
    scores = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    expected = measure_informativeness([scores], [1.0]).likeliest
    monkeypatch.setattr(active_learning, "chunk_rows", lambda columns: chunk)
    assert np.array_equal(measure_informativeness([scores], [1.0]).likeliest, expected)


def test_rows_that_are_worded_alike_are_not_chosen_together_as_long_as_there_are_others():
    unlabeled = rows_of("a printer driver for inkjets", "a printer driver for lasers", "chess against a strong engine")
    scores = np.array([[0.0, 0.0], [0.1, 0.0], [0.9, 0.0]], dtype=np.float32)
    info = measure_informativeness([scores], [1.0])
    eligible = np.arange(3)
    counts = np.ones(2, np.int64)
    assert select_rows(info, 2, eligible, counts, unlabeled).tolist() == [0, 2]
    assert select_rows(info, 3, eligible, counts, unlabeled).tolist() == [0, 2, 1]
    assert select_rows(info, 2, eligible, counts).tolist() == [0, 1]


def test_as_many_rows_are_chosen_as_are_asked_for_whatever_the_labels():
    scores = np.random.default_rng(0).normal(loc=[4, 0], size=(300, 2)).astype(np.float32)  # all of one label
    info = measure_informativeness([scores], [1.0])
    chosen = select_rows(info, 120, np.arange(300), np.zeros(2, np.int64))
    assert len(set(chosen.tolist())) == 120
    assert len(select_rows(info, 9, np.array([], np.int64), np.zeros(2, np.int64))) == 0


def test_labelled_repeated_and_empty_rows_are_not_free():
    """A row that is labelled already, or labelled twice, is work for nothing."""
    unlabeled = rows_of("one", "two", "one", "", "three")
    assert eligible_rows(unlabeled, [rows_of("two")]).tolist() == [0, 4]
