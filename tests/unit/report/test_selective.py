"""The risk-coverage section of the report, from a hand-made run folder."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from clozify.data.rows import read_rows
from clozify.metrics import wilson_interval
from clozify.report.findings import collect_findings
from clozify.report.page import report_page
from clozify.report.selective import selective
from clozify.runs.reliability import RELIABILITY_FILE, Reliability, load_reliability
from tests.unit.report.test_report import made

CONFIDENCE = [0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.55, 0.5, 0.4]
CORRECT = [True, True, True, False, True, True, False, True, False, False]


def write_record(folder):
    record = Reliability(
        rows=10,
        folds=5,
        accuracy=0.6,
        low=0.3,
        high=0.8,
        temperature=2.0,
        confidence=CONFIDENCE,
        correct=CORRECT,
        true_probability=CONFIDENCE,
    )
    (folder / RELIABILITY_FILE).write_text(record.model_dump_json(), encoding="utf-8")


def test_held_out_rows_draw_a_curve_and_are_told_in_words(tmp_path):
    run = made(tmp_path, tested=False)
    write_record(tmp_path)
    result = selective(run, None)
    (curve,) = result.curves
    expected = [(n / 10, CORRECT[:n].count(False) / n) for n in range(5, 11)]
    assert np.array(curve.points) == pytest.approx(np.array(expected))
    half, most, all_rows = curve.answered
    assert (half.coverage, half.accuracy, half.interval) == (0.5, 0.8, wilson_interval(0.8, 5))
    assert (most.coverage, most.accuracy) == (0.8, 0.75)
    assert (all_rows.coverage, all_rows.accuracy) == (1.0, pytest.approx(0.6))
    assert result.highest == 0.4
    page = report_page(collect_findings(run))
    assert "Answering the 80% of the rows with the highest confidence, 75% of the answers are right" in page
    assert "risk on 10 held-out labelled rows" in page
    assert 'class="curve0"' in page
    assert "risk on 60 test rows" not in page


def test_test_rows_draw_a_second_curve_at_the_results_temperature(tmp_path):
    run = made(tmp_path, labels=3)
    write_record(tmp_path)
    estimate = load_reliability(tmp_path).summary
    run = replace(run, metrics=run.metrics.model_copy(update={"estimate": estimate}))
    scores = np.mean([np.load(path) for path in sorted(tmp_path.glob("members/*/test.npy"))], axis=0, dtype=np.float64)
    truth = scores.argmax(axis=1)
    truth[::4] = (truth[::4] + 1) % 3
    frame = {"text": [f"text {n}" for n in range(60)], "label": [run.task.labels[index] for index in truth]}
    pd.DataFrame(frame).to_csv(tmp_path / "test.csv", index=False)
    result = selective(run, read_rows(tmp_path / "test.csv", run.task))
    _, curve = result.curves
    exps = np.exp(scores / 2)
    confidence = (exps / exps.sum(axis=1, keepdims=True)).max(axis=1)
    order = np.argsort(-confidence)
    wrong = (scores.argmax(axis=1) != truth)[order]
    assert np.array(curve.points) == pytest.approx(
        np.array([((n + 1) / 60, wrong[: n + 1].mean()) for n in range(4, 60)])
    )
    assert result.told is curve


def test_a_run_without_held_out_and_test_scores_has_no_section(tmp_path):
    run = made(tmp_path, tested=False)
    assert selective(run, None) is None
    assert "Risk and coverage" not in report_page(collect_findings(run))
