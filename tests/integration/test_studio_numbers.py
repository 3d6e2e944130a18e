"""The numbers on the studio's page are those of the commands: of a run, of a text, of labels."""

import io
import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import clozify
from clozify.errors import ClozifyError
from clozify.inference.abstaining import AbstainOptions
from clozify.inference.finished_run import FinishedRun
from clozify.metrics import wilson_interval
from clozify.report.findings import collect_findings
from clozify.report.run import RunRecord
from clozify.report.terminal import show_run
from clozify.studio import label_help, render
from clozify.studio.draft import TaskDraft
from clozify.studio.finished_runs import predict_command
from clozify.studio.project import Project
from clozify.studio.run_inputs import LABELED_FILE, TASK_FILE, UNLABELED_FILE, RunSettings
from clozify.studio.runs import StudioRun
from tests.integration.conftest import SETTINGS

WORDS = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
TEXTS = ["a fine game", "mail for all and more", "quite unlike anything: zyx"]
OPTIONS = {"min_confidence": 0.6, "sets": 0.8, "reject_out_of_scope": 0.1}


@contextmanager
def working_in(folder: Path):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def studio(tmp_path_factory, tiny_folder):
    """A project with sixteen labelled rows and a finished run, trained as the studio's command does."""
    folder = tmp_path_factory.mktemp("studio")
    rows = [(str(1 + n % 2), f"{WORDS[n % 6]} number {n}") for n in range(100)]
    frame = pd.DataFrame(rows, columns=["label", "text"])
    frame[60:].to_csv(folder / "test.csv", index=False)
    frame[:60].assign(label=[*frame["label"][:16], *[""] * 44]).to_csv(folder / "rows.csv", index=False)
    project = Project(folder / "project", str(tiny_folder("bert")))
    patterns = ["It was {mask}. {text}", "Just {mask}! || {text}"]
    project.draft = TaskDraft("stars", ["text"], "label", patterns, [("1", "bad"), ("2", "great")])
    project.load(str(folder / "rows.csv"))
    assert project.preview().problems == {}
    project.inputs.write(RunSettings(unlabeled=40, test=str(folder / "test.csv")))
    with working_in(project.folder):
        clozify.train(
            TASK_FILE,
            LABELED_FILE,
            "runs/1",
            UNLABELED_FILE,
            str(folder / "test.csv"),
            model=str(tiny_folder("bert")),
            recipe="paper",
            settings=[*SETTINGS, "repetitions=1", "estimate.folds=2", "estimate.pairs=1"],
        )
    project.runs.append(StudioRun(project.folder, 1))
    yield SimpleNamespace(project=project, run=project.runs[0])
    project.close()


def test_a_runs_numbers_are_those_of_the_command_and_of_the_report(studio):
    numbers = studio.project.finished.numbers(studio.run)
    record = RunRecord.load(studio.run.path)
    console = Console(file=io.StringIO(), width=200)
    show_run(console, record.metrics)
    assert numbers.estimate in console.file.getvalue()
    with working_in(studio.project.folder):
        findings = collect_findings(record)
    assert numbers.scores == findings.numbers
    assert numbers.selective == findings.selective
    assert [curve.name for curve in numbers.selective.curves] == ["held-out labelled rows", "test rows"]
    assert (numbers.test_rows, numbers.metric, numbers.warnings) == (40, "accuracy", [])
    shown = render.scores(numbers)
    for score in numbers.scores:
        assert score.interval == wilson_interval(score.accuracy, 40)
        assert f"{100 * score.interval[0]:.1f} to {100 * score.interval[1]:.1f}" in shown
    report = (studio.run.path / "report.html").read_text()
    for point in numbers.selective.told.answered:
        assert point.sentence in report
        assert point.sentence in render.risk_coverage(numbers.selective)


def test_a_text_gets_the_verdicts_of_predict(studio):
    predictions = FinishedRun(studio.run.path).predict(TEXTS, **OPTIONS)
    for row, text in enumerate(TEXTS):
        classified = studio.project.finished.classify(studio.run, {"text": text}, AbstainOptions(**OPTIONS))
        assert classified.problems == []
        answered, prediction_set, scope = classified.verdicts
        probabilities = predictions.probabilities[row]
        assert dict(classified.probabilities) == pytest.approx(dict(zip(["1", "2"], probabilities, strict=True)))
        assert (
            f"a confidence of {100 * probabilities.max():.1f}%, calibrated on 16 labelled rows" in classified.confidence
        )
        assert answered.positive == (probabilities.max() >= 0.6)
        assert answered.text.startswith("Answered" if answered.positive else "Not answered")
        assert prediction_set.text == f"Prediction set at the level 0.8: {', '.join(predictions.sets[row])}."
        assert f"{predictions.out_of_scope[row]:.3g}" in scope.text
        assert scope.positive == (predictions.abstained[row] != "out of scope")
    abstainer = FinishedRun(studio.run.path).abstainer(AbstainOptions(**OPTIONS))
    assert [*answered.details, *scope.details, *prediction_set.details] == abstainer.lines()


def test_a_text_is_scored_once_for_all_options(studio, monkeypatch):
    finished = studio.project.finished
    finished.classify(studio.run, {"text": "once"}, AbstainOptions())
    monkeypatch.setattr(FinishedRun, "score_chunks", None)
    classified = finished.classify(studio.run, {"text": "once"}, AbstainOptions(coverage=0.5))
    assert "chosen on 16 held-out labelled rows for a coverage of 50%" in classified.verdicts[0].details[0]


def test_what_a_run_cannot_say_is_said_next_to_what_it_can(studio):
    options = AbstainOptions(max_risk=0.01, sets=0.8)
    classified = studio.project.finished.classify(studio.run, {"text": "a fine game"}, options)
    assert [verdict.positive for verdict in classified.verdicts] == [None]
    assert "no threshold promises a risk of at most 1%" in classified.problems[0]


def test_the_command_below_a_text_is_that_of_the_options():
    run = SimpleNamespace(number=3)
    command = predict_command(run, {"text": "it's"}, AbstainOptions(max_risk=0.05, sets=0.9, reject_out_of_scope=True))
    expected = "clozify predict runs/3 --text 'it'\"'\"'s' --max-risk 0.05 --sets 0.9 --reject-out-of-scope 0.05"
    assert command == expected
    assert predict_command(run, {"a": "x", "b": "y"}, AbstainOptions()) == "clozify predict runs/3 --data FILE"


def test_the_words_that_moved_a_label_are_those_of_explain(studio):
    text = "a fine game for <b>all</b>"
    (explained,) = studio.project.finished.explain(studio.run, {"text": text}).rows
    (expected,) = clozify.explain(studio.run.path, [text]).rows
    assert explained.label == expected.label
    assert [word.effect for word in explained.words] == pytest.approx([word.effect for word in expected.words])
    html = render.explanation(explained)
    assert "&lt;b&gt;all&lt;/b&gt;" in html
    assert "<b>all" not in html


def test_doubtful_labels_are_those_of_the_audit_and_can_be_corrected(studio, tiny_folder):
    project = studio.project
    assert project.label_help.doubtful(project.draft) is None
    found = project.label_help.find_doubtful(project.draft)
    audited = clozify.audit(project.folder / TASK_FILE, project.folder / LABELED_FILE, model=str(tiny_folder("bert")))
    labeled = project.data.labeled(project.draft)
    assert [(row.row, row.label, row.suggestion) for row in found.rows] == [
        (labeled[error.row.row - 1], error.row.label, error.suggestion) for error in audited.label_errors
    ]
    assert (found.searched, found.total) == (16, len(audited.label_errors))
    assert project.label_help.doubtful(project.draft) is found
    row = found.rows[0].row if found.rows else labeled[0]
    before = project.data.label_indices(project.draft, [row])[0]
    project.set_label(row, project.draft.labels[1 - before])
    written = pd.read_csv(project.folder / LABELED_FILE, dtype=str)
    (text,) = project.data.texts(project.draft, [row])
    assert written.set_index("text").loc[text, "label"] == project.draft.labels[1 - before]
    assert project.label_help.doubtful(project.draft) is found  # the list stays until the next search
    project.set_label(row, project.draft.labels[before])


def test_the_search_for_wrong_labels_takes_a_bounded_number_of_rows(studio, monkeypatch):
    monkeypatch.setattr(label_help, "MAX_AUDITED", 7)
    found = studio.project.label_help.find_doubtful(studio.project.draft)
    assert found.searched == 7
    assert any("7 of 16 labelled rows" in note for note in found.notes)


def test_what_the_next_labels_bring_is_what_suggest_says(studio):
    project = studio.project
    found = project.label_help.suggest(project.draft, studio.run)
    with working_in(project.folder):
        expected = clozify.suggest("runs/1", label_help.SUGGESTED)
    assert found.sentences == expected.outlook.sentences
    assert found.sentences[0].startswith("The next 20 labels will probably bring")
    texts = project.data.texts(project.draft, [row.row for row in found.rows])
    assert texts == [row.text for row in expected.rows]
    assert [row.prediction for row in found.rows] == [row.prediction for row in expected.rows]
    assert not set(project.data.labeled(project.draft)) & {row.row for row in found.rows}
    assert found.notes == expected.warnings


def test_a_run_of_another_task_suggests_nothing(studio):
    draft = TaskDraft("stars", ["text"], "label", studio.project.draft.patterns, [("1", "bad"), ("3", "great")])
    with pytest.raises(ClozifyError, match="other fields or labels"):
        studio.project.label_help.suggest(draft, studio.run)
    assert studio.project.label_help.next_labels(draft) is None


def test_a_run_whose_files_are_gone_still_has_its_scores(studio, tmp_path):
    copy = tmp_path / "project"
    run = StudioRun(copy, 1)
    run.path.parent.mkdir(parents=True)
    run.path.symlink_to(studio.run.path)
    test = studio.project.folder.parent / "test.csv"
    hidden = test.rename(test.with_name("hidden.csv"))
    try:
        numbers = Project(copy).finished.numbers(run)
    finally:
        hidden.rename(test)
    assert "does not exist" in numbers.warnings[0]
    assert len(numbers.scores) >= 4
    assert [curve.name for curve in numbers.selective.curves] == ["held-out labelled rows"]
    assert np.isfinite(numbers.scores[0].accuracy)
