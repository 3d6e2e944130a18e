"""Runs with several labels a row estimate micro-F1 without test rows: in every file, report and command."""

import json
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app
from clozify.inference.abstaining import AbstainOptions
from clozify.pipeline.folds import Fold
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.reliability import load_reliability
from clozify.runs.scope import load_scope
from clozify.studio.finished_runs import FinishedRuns
from clozify.studio.runs import StudioRun

from .test_multilabel import SETTINGS, files, run  # noqa: F401


def test_the_estimate_is_in_every_file_and_report(run, files):  # noqa: F811
    metrics = run().metrics
    reliability = load_reliability(files / "run")
    assert reliability is not None
    assert metrics.estimate == reliability.summary
    assert load_reliability(files / "run" / "classifier") == reliability
    assert (reliability.rows, reliability.folds, reliability.temperature) == (12, 2, 1.0)
    assert 0 <= reliability.micro_f1_low <= reliability.micro_f1 <= reliability.micro_f1_high <= 1
    assert reliability.low <= reliability.accuracy <= reliability.high
    learned = (1 / 2) ** 0.1
    assert reliability.accuracy == pytest.approx(1 - (1 - np.mean(reliability.correct)) * learned)
    without_labels = [row % 6 == 0 for row in range(12)]  # see `files`
    assert [value == 1 for value in reliability.true_probability] == without_labels
    content = json.loads((files / "run" / "metrics.json").read_text())["estimate"]
    assert content["micro_f1"] == pytest.approx(reliability.micro_f1)
    low, high = (f"{100 * value:.1f}" for value in (reliability.micro_f1_low, reliability.micro_f1_high))
    page = (files / "run" / "report.html").read_text()
    assert f"between {low} and {high} with 95% confidence. All labels are right in about" in " ".join(page.split())
    card = (files / "run" / "classifier" / "README.md").read_text()
    assert "Its micro-F1 was estimated on its 12 labelled rows" in card
    assert f"95% interval {low} to {high}; exact match of all labels" in card
    shown = CliRunner().invoke(app, ["report", str(files / "run")]).output
    assert "Estimated micro-F1, from the 12 labelled rows alone:" in " ".join(shown.split())
    predictions = clozify.load_run(files / "run").predict(["a game", "mail for all"], sets=0.8, coverage=0.9)
    assert predictions.sets is not None
    assert len(predictions.abstained) == 2


@pytest.mark.parametrize("method", ["supervised", "pet"])
def test_other_results_are_estimated_too(run, files, method):  # noqa: F811
    """A supervised classifier, and an ensemble, whose scores have no temperature."""
    metrics = run(method=method, unlabeled=None, test=None).metrics
    assert metrics.estimate.micro_f1 is not None
    assert clozify.load_run(files / "run").reliability.rows == 12
    assert "without, micro-F1 may be anywhere from" in (files / "run" / "report.html").read_text()


def test_a_supervised_classifier_rejects_rows_by_the_scores_of_its_folds(run, files):  # noqa: F811
    result = run(method="supervised", unlabeled=None, test=None)
    of_folds = [np.load(path) for path in (files / "run" / "classifiers").glob("*/held_out_scope.npy")]
    assert [len(scores) for scores in of_folds] == [6, 6]
    assert load_scope(result.classifier).in_scope == pytest.approx(np.sort(np.concatenate(of_folds)))


def test_a_fixed_threshold_is_estimated_where_an_estimate_is_asked_for(run, files):  # noqa: F811
    settings = [*SETTINGS, "multilabel.threshold=0.3", "estimate.folds=2"]
    metrics = run(unlabeled=None, test=None, settings=settings).metrics
    assert set(metrics.thresholds.values()) == {0.3}
    assert metrics.estimate.folds == 2
    assert len(list((files / "run" / "members").glob("*/held_out.npy"))) == 2


def test_too_few_rows_are_not_estimated(run, files):  # noqa: F811
    lines = (files / "labeled.csv").read_text().splitlines()
    (files / "few.csv").write_text("\n".join(lines[:10]) + "\n")
    metrics = run(labeled=files / "few.csv", unlabeled=None, test=None).metrics
    assert metrics.estimate is None
    assert load_reliability(files / "run") is None
    with pytest.raises(clozify.ClozifyError, match="--sets needs held-out scores of labelled rows"):
        clozify.load_run(files / "run").predict(["a"], sets=0.8)


def test_the_folds_models_are_those_of_the_thresholds(run, files):  # noqa: F811
    """Exact match and confidence by a naive loop over the kept scores of the folds."""
    from scipy.special import expit

    from clozify.methods.multilabel import choose_thresholds

    run(unlabeled=None, test=None)
    reliability = load_reliability(files / "run")
    inputs = TrainInputs(files / "task.toml", files / "labeled.csv", model="builtin:mini", recipe="paper")
    plan = prepare(inputs, "cpu")
    targets = plan.labeled.label_matrix
    parts = [Fold(index, 2).held_out(plan) for index in range(2)]
    kept = [np.load(path) for path in (files / "run" / "members").glob("*/held_out.npy")]
    assert len(kept) == 2
    naive = []
    for first, second in ((0, 1), (1, 0)):  # which file is of which fold is not in its name
        scores = np.zeros(targets.shape)
        scores[parts[0]], scores[parts[1]] = kept[first], kept[second]
        confidence, correct = np.zeros(12), np.zeros(12, dtype=bool)
        for mine, others in (parts, parts[::-1]):
            thresholds = choose_thresholds(scores[others], targets[others], plan.task.metric, 10.0)
            for row in mine:
                decided = [score >= threshold for score, threshold in zip(scores[row], thresholds, strict=True)]
                answers = zip(decided, expit(scores[row]), strict=True)
                confidence[row] = np.prod([p if is_in else 1 - p for is_in, p in answers])
                correct[row] = decided == [target == 1 for target in targets[row]]
        naive.append((confidence.tolist(), correct.tolist()))
    assert any(
        confidence == pytest.approx(reliability.confidence, abs=1e-6) and correct == reliability.correct
        for confidence, correct in naive
    )


def test_the_studio_names_the_set_and_says_whether_it_answers(run, files):  # noqa: F811
    run()
    finished, of_run = FinishedRuns(threading.RLock()), StudioRun(files, 1)
    of_run.path = files / "run"
    options = AbstainOptions(min_confidence=1e-9, sets=0.5)
    classified = finished.classify(of_run, dict.fromkeys(finished.fields(of_run), "a text"), options)
    assert not classified.problems
    answered, labels = (verdict.text for verdict in classified.verdicts)
    assert answered.startswith("Answered")
    assert labels.startswith("Prediction set at the level 0.5: ")
