"""Comparisons of runs from hand-made run folders: what is paired, what is not, and what is said about it."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import binomtest

import clozify
from clozify.data.rows import read_rows
from clozify.errors import ClozifyError
from clozify.metrics import detailed_metrics, wilson_interval
from clozify.report.differences import format_p
from clozify.report.run import RunRecord
from clozify.report.terminal import show_comparison
from clozify.runs.keys import hash_key
from tests.unit.report.test_report import made

NAMES = ["label 0", "label 1", "label 2"]
TRUTH = np.arange(60) % 3


def write_test_rows(path, text="row"):
    frame = pd.DataFrame({"text": [f"{text} {n}" for n in range(60)], "label": [NAMES[n] for n in TRUTH]})
    frame.to_csv(path, index=False)
    return path


def run_with(folder, wrong, test, estimate=None):
    """A run whose result labels the rows `wrong` wrongly; `test` is its file with test rows, None for none."""
    folder.mkdir()
    made(folder, pairs=1, tested=test is not None)
    described = json.loads((folder / "run.json").read_text())
    metrics = json.loads((folder / "metrics.json").read_text())
    if test is not None:
        predicted = TRUTH.copy()
        predicted[wrong] = (TRUTH[wrong] + 1) % 3
        scores = 5 * np.eye(3, dtype=np.float32)[predicted]
        np.save(folder / "members" / "key0" / "test.npy", scores)
        metrics["ensemble"] = detailed_metrics(TRUTH, np.eye(3)[predicted], NAMES).model_dump()
        digest = read_rows(test, RunRecord.load(folder).task).digest
        described["data"]["test"] = {"rows": 60, "texts": digest, "source": str(test)}
    if estimate is not None:
        low, high = wilson_interval(estimate, 50)
        metrics["estimate"] = {"rows": 50, "folds": 3, "accuracy": estimate, "low": low, "high": high}
        metrics["estimate"]["temperature"] = 1.0
    (folder / "run.json").write_text(json.dumps(described))
    (folder / "metrics.json").write_text(json.dumps(metrics | {"run": hash_key(**described)}))
    return folder


@pytest.mark.parametrize(("alone", "chance"), [(12, "that is more than chance"), (4, "that may be chance")])
def test_runs_on_the_same_test_rows_are_paired_row_by_row(tmp_path, alone, chance):
    test = write_test_rows(tmp_path / "test.csv")
    first = run_with(tmp_path / "first", np.arange(alone + 5), test)
    second = run_with(tmp_path / "second", np.r_[0:5, 40:42], test)  # five in common, two alone
    comparison = clozify.compare([first, second], tmp_path / "page.html")
    other = comparison.runs[1]
    assert other.difference == pytest.approx((alone - 2) / 60)
    assert (other.paired.better, other.paired.worse, other.paired.rows) == (alone, 2, 60)
    assert other.paired.p_value == pytest.approx(binomtest(2, alone + 2).pvalue)
    assert other.sentence.startswith(f"'second' is {100 * (alone - 2) / 60:.1f} points of accuracy better than 'first'")
    assert "on the same 60 test rows" in other.sentence
    assert other.sentence.endswith(f"{format_p(other.paired.p_value)}): {chance}.")
    assert comparison.runs[0].sentence is None
    low, high = other.main.macro_f1_interval
    assert low < other.main.macro_f1 < high
    for line in comparison.labels:
        for f1, interval in zip(line.f1, line.intervals, strict=True):
            assert interval[0] < f1 <= interval[1]
    page = (tmp_path / "page.html").read_text()
    assert chance in page
    console = Console(file=io.StringIO(), width=200)
    show_comparison(console, comparison)
    assert other.sentence in console.file.getvalue()


def test_equal_runs_are_neither_better_nor_worse(tmp_path):
    test = write_test_rows(tmp_path / "test.csv")
    runs = [run_with(tmp_path / name, np.arange(3), test) for name in "ab"]
    sentence = clozify.compare(runs).runs[1].sentence
    assert sentence.startswith("'b' is no better or worse than 'a'")
    assert "p = 1.00" in sentence


def test_runs_on_different_test_rows_are_not_paired_and_said_so(tmp_path):
    one = run_with(tmp_path / "a", np.arange(3), write_test_rows(tmp_path / "one.csv"))
    two = run_with(tmp_path / "b", np.arange(40), write_test_rows(tmp_path / "two.csv", "another row"))
    comparison = clozify.compare([one, two])
    assert comparison.runs[1].paired is comparison.runs[1].difference is None
    assert "on different test rows, so that they cannot be paired row by row" in comparison.runs[1].sentence
    assert "do not overlap: the difference is probably more than chance" in comparison.runs[1].sentence
    assert any("same test rows" in note for note in comparison.notes)


def test_runs_without_test_rows_have_their_estimates_compared(tmp_path):
    runs = [run_with(tmp_path / name, [], None, estimate) for name, estimate in (("a", 0.8), ("b", 0.7), ("c", None))]
    comparison = clozify.compare(runs)
    _, estimated, without = comparison.runs
    assert "'b' 70.0 (95% interval" in estimated.sentence
    assert "This is not a paired comparison. The intervals overlap" in estimated.sentence
    assert "'c' has neither test rows nor an estimate" in without.sentence
    console = Console(file=io.StringIO(), width=120)
    show_comparison(console, comparison)
    assert "70.0 (est.)" in console.file.getvalue()


def test_an_estimate_is_not_set_against_a_measurement_where_both_have_one(tmp_path):
    test = write_test_rows(tmp_path / "test.csv")
    runs = [run_with(tmp_path / "a", [0], test, 0.6), run_with(tmp_path / "b", [], None, 0.7)]
    sentence = clozify.compare(runs).runs[1].sentence
    assert sentence.startswith("Estimated accuracy, from the labelled rows alone: 'b' 70.0")
    assert "'a' 60.0" in sentence


def test_test_rows_that_moved_can_be_named(tmp_path):
    test = write_test_rows(tmp_path / "test.csv")
    runs = [run_with(tmp_path / name, np.arange(3), test) for name in "ab"]
    moved = test.rename(tmp_path / "moved.csv")
    unpaired = clozify.compare(runs).runs[1]
    assert unpaired.paired is None
    assert unpaired.difference == 0
    assert "cannot be paired row by row (" in unpaired.sentence
    assert "does not exist" in unpaired.sentence
    assert clozify.compare(runs, test=moved).runs[1].paired is not None
    with pytest.raises(ClozifyError, match="does not hold the test rows of these runs"):
        clozify.compare(runs, test=write_test_rows(tmp_path / "others.csv", "others"))


def test_changed_labels_of_the_test_rows_are_noticed(tmp_path):
    """A test on other labels than those that were measured would contradict the accuracies next to it."""
    test = write_test_rows(tmp_path / "test.csv")
    runs = [run_with(tmp_path / name, np.arange(3), test) for name in "ab"]
    frame = pd.read_csv(test)
    frame.loc[30, "label"] = frame.loc[31, "label"]
    frame.to_csv(test, index=False)
    assert "are not those that" in clozify.compare(runs).runs[1].sentence


def test_runs_of_one_name_are_told_apart(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    runs = [run_with(tmp_path / name / "run", [], None, 0.8) for name in ("x", "y")]
    assert [run.run for run in clozify.compare(runs).runs] == list(map(str, runs))
    with pytest.raises(ClozifyError, match="two runs or more"):
        clozify.compare(runs[:1])


def test_many_comparisons_come_with_a_warning(tmp_path):
    test = write_test_rows(tmp_path / "test.csv")
    runs = [run_with(tmp_path / name, np.arange(3), test) for name in "abcd"]
    assert any("one in twenty" in note for note in clozify.compare(runs).notes)
    assert not any("one in twenty" in note for note in clozify.compare(runs[:2]).notes)


def test_p_values_have_two_or_three_digits():
    assert [format_p(p) for p in (1.0, 0.214, 0.0504, 0.0213, 0.0001)] == [
        "p = 1.00", "p = 0.21", "p = 0.050", "p = 0.021", "p < 0.001",
    ]  # fmt: skip
