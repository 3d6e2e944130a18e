"""What a user does in the studio, without a browser: the project behind the page, with a tiny model."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest

from clozify.config.recipe import load_recipe
from clozify.config.task import load_task
from clozify.errors import ClozifyError
from clozify.inference.abstaining import AbstainOptions
from clozify.runs.folder import RunFolder
from clozify.studio import preview as previews
from clozify.studio import server
from clozify.studio.draft import TaskDraft
from clozify.studio.preview import Previewer
from clozify.studio.project import Project
from clozify.studio.run_inputs import LABELED_FILE, TASK_FILE, UNLABELED_FILE, RunSettings
from clozify.studio.runs import StudioRun
from tests.integration.conftest import SETTINGS

PATTERNS = ["It was {mask}. {text}", "Just {mask}! || {text}"]
WORDS = [("1", "bad"), ("2", "great")]


@pytest.fixture
def project(files, tmp_path, tiny_folder, tiny):
    """A project with rows that have no labels, and a task without problems."""
    project = Project(tmp_path / "project", str(tiny_folder("bert")))
    project.previewer = Previewer(tiny("bert"))
    project.load(str(files / "unlabeled.csv"))
    project.draft = TaskDraft("stars", ["text"], "label", list(PATTERNS), list(WORDS))
    yield project
    project.close()


def test_the_preview_joins_the_rules_of_a_task_file_with_the_patterns(project):
    alone = project.preview()
    label = project.draft.labels[0]
    project.draft.hidden_settings = {"rules": [{"label": label, "regex": ".", "name": "every row"}]}
    preview = project.preview()
    (_, rule) = preview.teachers
    assert (rule.name, rule.votes.tolist()) == ("every row", [0] * len(preview.ensemble))
    assert preview.ensemble.tolist() != alone.ensemble.tolist()
    assert preview.probabilities.tolist() == alone.probabilities.tolist()


def wait(run: StudioRun, seconds: float = 90) -> str:
    until = time.monotonic() + seconds
    while run.state == "running" and time.monotonic() < until:
        time.sleep(0.1)
    return run.state


@pytest.mark.parametrize("name", ["debian", "yelp-full", "agnews"])
def test_a_shipped_task_is_the_same_task_when_it_comes_out_of_the_page(name):
    """What the page does not show, such as line breaks, would be lost by the first look."""
    task = load_task(name)
    draft = TaskDraft.from_task(task)
    assert draft.to_task() == task
    draft.fields = [*draft.fields, "other"]
    assert draft.to_task() == task.with_changes(fields=draft.fields, columns=None)


def test_each_problem_belongs_to_its_form_field(project):
    project.draft.patterns = ["It was great. {text}", "{mask} {title}", PATTERNS[0], PATTERNS[0], ""]
    project.draft.words = [("1", "bad"), ("2", ""), ("", "okay"), ("4", "bad")]
    result = project.preview().problems
    assert "no {mask}" in result["pattern 0"][0]
    assert "{title}" in result["pattern 1"][0]
    assert "pattern 2" not in result
    assert "duplicate" in result["pattern 3"][0]
    assert "Write a pattern" in result["pattern 4"][0]
    assert set(result) >= {"label 1", "label 2", "label 3"}
    assert "label 0" not in result
    assert "same word 'bad'" in result["label 3"][0]
    project.draft.fields = []
    assert "fields" in project.preview().problems


def test_every_word_is_shown_with_its_tokens_and_an_unusable_one_is_a_problem_of_its_label(project):
    project.draft.words = [("1", "bad, unfathomable"), ("2", "great, \u0378")]
    result = project.preview()
    assert [word.word for word in result.words["1"]] == ["bad", "unfathomable"]
    assert [len(word.tokens) > 1 for word in result.words["1"]] == [False, True]
    assert [word.is_usable for word in result.words["2"]] == [True, False]
    assert "label 0" not in result.problems
    assert "\u0378" in result.problems["label 1"][0]
    assert result.probabilities is not None
    project.draft.words = [("1", "bad"), ("2", "\u0378")]
    assert project.preview().probabilities is None


def test_the_page_answers_as_the_command_does(project, tiny):
    """Scores of the wrong rows, or of the wrong labels, would look just as good."""
    from clozify.inference.zero_shot import zero_shot

    result = project.preview()
    texts = project.data.texts(project.draft, project.data.shown)
    predicted = zero_shot(project.folder / TASK_FILE, texts, tiny("bert"), max_length=previews.MAX_LENGTH)
    assert result.calibrated
    assert predicted.calibrated
    scores = predicted.scores.pair_scores(0, len(texts))
    shares = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert result.probabilities == pytest.approx(shares, abs=1e-5)
    assert result.ensemble == pytest.approx(predicted.probabilities, abs=1e-5)
    alike = (shares[0].argmax(axis=-1) == shares[1].argmax(axis=-1)).mean()
    assert result.agreement() == pytest.approx(np.array([[1, alike], [alike, 1]]))


def test_only_a_changed_pattern_is_scored_again(project, monkeypatch):
    scored = []
    once = previews.score_rows
    monkeypatch.setattr(previews, "score_rows", lambda *kwargs: scored.append(kwargs) or once(*kwargs))
    project.preview()
    project.draft.patterns[1] = "{text} It is {mask}."
    project.preview()
    project.preview()
    assert len(scored) == 3
    project.data.show_other_rows()
    project.preview()
    assert len(scored) == 5


def test_uploads_stay_in_the_project_whatever_their_name(project):
    project.upload("../../up\\..\\evil name.csv", b"text,label\na,1\nb,2\n")
    assert project.data.source == str(project.folder / "data" / "evil_name.csv")
    assert project.data.columns == ["text", "label"]
    with pytest.raises(ClozifyError, match="unknown format"):
        project.upload("page.html", b"<script>")
    with pytest.raises(ClozifyError, match="empty"):
        project.upload("nothing.csv", b"")
    assert len(project.data) == 2  # what was there before is still there


def test_a_column_of_labels_names_the_labels(tmp_path, tiny_folder, files):
    project = Project(tmp_path / "project", str(tiny_folder("bert")))
    project.load(str(files / "test.csv"))
    assert project.draft.fields == ["text"]
    assert project.draft.labels == ["1", "2"]
    assert project.data.label_counts(project.draft) == {"1": 20, "2": 20}
    assert project.draft.words == [("1", ""), ("2", "")]  # no words that a model would say
    mails = Project(tmp_path / "mails", str(tiny_folder("bert")))
    mails.upload("mails.csv", b"text,label\na,Spam\nb,ham\nc,other mail\n")
    assert mails.draft.words == [("Spam", "spam"), ("ham", "ham"), ("other mail", "other mail")]


def test_a_label_that_the_task_lacks_is_a_problem_of_the_label_column(project, files):
    project.load(str(files / "test.csv"))
    project.draft.words = [("one", "bad"), ("two", "great")]
    assert "'1' and '2'" in project.preview().problems["label column"][0]


def test_labels_are_a_file_that_training_reads_and_come_back(project, tiny_folder):
    first, second = project.data.shown[:2]
    project.set_label(first, "2")
    project.set_label(second, "1")
    project.preview()
    written = pd.read_csv(project.folder / LABELED_FILE, dtype=str)
    assert written.to_dict("list") == {"text": project.data.texts(project.draft, [first, second]), "label": ["2", "1"]}
    project.close()
    again = Project(project.folder, str(tiny_folder("bert")))
    assert again.data.labels == project.data.labels
    assert again.draft == project.draft
    assert again.data.label_indices(again.draft, [first, second, 7]).tolist() == [1, 0, -1]
    again.set_label(first, None)
    assert again.data.label_counts(again.draft) == {"1": 1, "2": 0}


def test_a_run_starts_the_command_that_is_shown(project, monkeypatch):
    with pytest.raises(ClozifyError, match="label a few rows"):
        project.start()
    for row in range(4):
        project.set_label(row, str(1 + row % 2))
    with pytest.raises(ClozifyError, match="did you mean 'repetitions'"):
        project.start(RunSettings(recipe_settings="repetition=2"))
    with pytest.raises(ClozifyError, match="does not exist"):
        project.start(RunSettings(test="nowhere.csv"))
    assert project.runs == []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: SimpleNamespace(args=command, poll=lambda: None))
    run = project.start(RunSettings(unlabeled=20, recipe_settings="repetitions=1"))
    with pytest.raises(ClozifyError, match="A run is in progress"):
        project.start()
    files = f"{TASK_FILE} --labeled {LABELED_FILE} --method pet --recipe auto --unlabeled {UNLABELED_FILE}"
    assert run.command_line.startswith(f"clozify train {files} --model ")
    assert run.command_line.endswith("--set repetitions=1 --output runs/1")
    assert run.process.args[2:] == shlex.split(run.command_line)
    assert run.expected_models == 3
    unlabeled = pd.read_csv(project.folder / UNLABELED_FILE)["text"]
    assert len(unlabeled) == 20
    assert not set(unlabeled) & set(project.data.texts(project.draft, [0, 1, 2, 3]))
    run.process = None


@pytest.mark.slow
def test_a_run_trains_a_classifier_that_answers(project):
    for row in range(4):
        project.set_label(row, str(1 + row % 2))
    run = project.start(
        RunSettings(recipe="paper", unlabeled=20, recipe_settings=" ".join([*SETTINGS, "repetitions=1"]))
    )
    assert wait(run) == "done", run.problems()
    assert run.trained_models() == run.expected_models == 3
    assert run.log_lines()[-1].startswith("done in")
    assert json.loads((run.path / "metrics.json").read_text())["rows"] == {"labeled": 4, "unlabeled": 20}
    probabilities = dict(project.finished.classify(run, {"text": "a fine game"}, AbstainOptions()).probabilities)
    assert set(probabilities) == {"1", "2"}
    assert sum(probabilities.values()) == pytest.approx(1)
    with pytest.raises(ClozifyError, match="Write a text"):
        project.finished.classify(run, {"text": " "}, AbstainOptions())
    project.close()
    later = Project(project.folder)
    assert [(run.number, run.state) for run in later.runs] == [(1, "done")]


def test_a_run_is_resumed_by_a_later_studio_with_the_labels_of_then(project, monkeypatch, tiny_folder):
    commands = []
    ended = SimpleNamespace(poll=lambda: -9, returncode=-9)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command[2:]) or ended)
    project.set_label(0, "1")
    run = project.start(RunSettings(unlabeled=20))
    assert run.state == "failed"
    assert "ended by the signal 9" in run.problems()[-1]
    project.close()
    later = Project(project.folder, str(tiny_folder("bert")))
    (run,) = later.runs
    assert (run.state, run.expected_models) == ("stopped", 3)
    later.set_label(1, "2")
    later.resume(run)
    assert commands[1] == [*commands[0], "--replace"]
    assert len(pd.read_csv(later.folder / LABELED_FILE)) == 2
    later.close()


def test_a_run_is_not_resumed_with_the_task_or_the_unlabelled_rows_of_a_later_run(project, monkeypatch):
    commands = []
    ended = SimpleNamespace(poll=lambda: -9, returncode=-9)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command) or ended)
    project.set_label(0, "1")
    first = project.start(RunSettings(unlabeled=20))
    second = project.start(RunSettings(unlabeled=10))
    project.resume(second)
    for run in (first, StudioRun(project.folder, 1)):
        with pytest.raises(ClozifyError, match=r"Run 1 cannot be resumed, because 'unlabeled\.csv' changed"):
            project.resume(run)
    project.draft.patterns = PATTERNS[:1]
    project.preview()
    with pytest.raises(ClozifyError, match=r"Run 2 cannot be resumed, because 'task\.toml' changed"):
        project.resume(second)
    assert len(commands) == 3


def test_a_run_that_outlived_its_studio_is_running(project):
    """A studio that is killed cannot stop its run; the next one must not start a second run next to it."""
    run = StudioRun(project.folder, 1)
    with RunFolder(run.path):
        assert run.state == "running"
    assert run.state == "stopped"


@pytest.mark.slow
def test_a_run_without_unlabelled_rows_has_an_ensemble_that_answers(project, files):
    project.load(str(files / "test.csv"))
    run = project.start(
        RunSettings(recipe="paper", unlabeled=0, recipe_settings=" ".join([*SETTINGS, "repetitions=1"]))
    )
    assert wait(run) == "done", run.problems()
    assert run.trained_models() == run.expected_models == 2
    assert run.report is not None
    assert set(dict(project.finished.classify(run, {"text": "a fine game"}, AbstainOptions()).probabilities)) == {
        "1",
        "2",
    }


@pytest.mark.slow
def test_the_key_is_not_on_the_browsers_command_line(tmp_path, tiny_folder):
    """Every user of the machine can list the processes and their arguments."""
    browser, arguments = tmp_path / "browser", tmp_path / "arguments"
    browser.write_text(f'#!/bin/sh\necho "$@" > {arguments}.new; mv {arguments}.new {arguments}\n')
    browser.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "clozify",
        "studio",
        str(tmp_path / "project"),
        "--model",
        str(tiny_folder("bert")),
    ]
    environment = os.environ | {"BROWSER": f"{browser} %s", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            key = process.stdout.readline().strip().partition("key=")[2]
            deadline = time.monotonic() + 60
            while not arguments.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            opened = arguments.read_text().strip()
            page = Path(unquote(urlsplit(opened).path))
            assert len(key) > 20
            assert key not in opened
            assert key in page.read_text()
            assert page.stat().st_mode & 0o777 == 0o600
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert not page.exists()


@pytest.mark.slow
def test_a_run_that_fails_says_why_and_one_that_is_stopped_ends(project):
    failing, stopped = StudioRun(project.folder, 1), StudioRun(project.folder, 2)
    failing.start(["nowhere.toml"])
    stopped.start([TASK_FILE, "--labeled", LABELED_FILE])
    stopped.stop()
    assert stopped.state == "stopped"
    assert wait(failing) == "failed"
    assert "The task 'nowhere.toml' is neither a file nor a shipped task" in failing.problems()[0]


def test_streamlit_draws_the_page(project, monkeypatch):
    """The project may work and the page still not: a widget that is not read, an answer that is never drawn."""
    testing = pytest.importorskip("streamlit.testing.v1")
    monkeypatch.setattr(server, "_project", project)
    page = testing.AppTest.from_file(Path(server.__file__).with_name("streamlit_app.py"), default_timeout=20).run()
    assert not page.exception
    html = " ".join(element.proto.body for element in page.get("html"))
    assert 'id="answers"' in html
    assert "The model's own words" in html
    page.text_input(key="pattern 1 0 #0").set_value("It was great.").run()
    assert "no {mask}" in " ".join(element.proto.body for element in page.get("html"))
    assert project.draft.patterns[0] == "It was great."
    first = project.data.shown[0]
    page.selectbox(key=f"label of row 1 {first} #0").set_value("2").run()
    assert project.data.labels == {first: "2"}


def test_several_labels_can_be_given_to_a_row_or_none_of_them(project, monkeypatch):
    testing = pytest.importorskip("streamlit.testing.v1")
    monkeypatch.setattr(server, "_project", project)
    page = testing.AppTest.from_file(Path(server.__file__).with_name("streamlit_app.py"), default_timeout=20).run()
    (several,) = [box for box in page.checkbox if box.label.startswith("A row may have several labels")]
    several.set_value(True).run()
    assert not page.exception
    assert project.draft.multilabel
    assert 'id="answers"' in " ".join(element.proto.body for element in page.get("html"))
    first, second, *_ = project.data.shown
    page.multiselect(key=f"labels of row 1 {first} #0").set_value(["1", "2"]).run()
    page.multiselect(key=f"labels of row 1 {second} #0").set_value(["(none of them)"]).run()
    assert not page.exception
    assert project.data.labels == {first: "1|2", second: ""}
    assert project.data.label_indices(project.draft, [first, second]).tolist() == [[1, 1], [0, 0]]


def test_a_second_window_shows_what_the_first_has_done_and_does_not_undo_it(project, monkeypatch):
    testing = pytest.importorskip("streamlit.testing.v1")
    monkeypatch.setattr(server, "_project", project)
    script = Path(server.__file__).with_name("streamlit_app.py")
    one, two = (testing.AppTest.from_file(script, default_timeout=20).run() for _ in range(2))
    first, second, *_ = project.data.shown
    one.text_input(key="pattern 1 0 #0").set_value("{mask} it is: {text}").run()
    one.selectbox(key=f"label of row 1 {first} #0").set_value("2").run()
    two.selectbox(key=f"label of row 1 {second} #0").set_value("1").run()
    assert not one.exception
    assert not two.exception
    assert project.data.labels == {first: "2", second: "1"}
    assert project.draft.patterns[0] == two.text_input(key="pattern 1 0 #1").value == "{mask} it is: {text}"
    assert two.selectbox(key=f"label of row 1 {first} #1").value == "2"


def test_an_empty_page_shows_no_errors(tmp_path, tiny_folder, tiny, monkeypatch):
    testing = pytest.importorskip("streamlit.testing.v1")
    project = Project(tmp_path / "project", str(tiny_folder("bert")))
    project.previewer = Previewer(tiny("bert"))
    monkeypatch.setattr(server, "_project", project)
    page = testing.AppTest.from_file(Path(server.__file__).with_name("streamlit_app.py"), default_timeout=20).run()
    assert not page.exception
    assert not [element for element in page.get("html") if 'role="alert"' in element.proto.body]
    project.close()


def number_input(page, label: str):
    (result,) = [element for element in page.number_input if element.label.startswith(label)]
    return result


def test_rows_that_all_have_labels_can_be_trained_on(project, files, monkeypatch):
    """The page used to offer them as unlabelled rows, and the run refused them."""
    testing = pytest.importorskip("streamlit.testing.v1")
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **_: SimpleNamespace(args=command, poll=lambda: 1, returncode=1)
    )
    monkeypatch.setattr(server, "_project", project)
    project.load(str(files / "test.csv"))
    page = testing.AppTest.from_file(Path(server.__file__).with_name("streamlit_app.py"), default_timeout=20).run()
    assert not page.exception
    assert number_input(page, "Unlabelled rows to use").max == 0
    assert number_input(page, "Labelled rows to use").max == 40
    number_input(page, "Labelled rows to use").set_value(10).run()
    assert number_input(page, "Unlabelled rows to use").max == 30  # the rest, as in the paper
    number_input(page, "Labelled rows to use").set_value(0).run()
    page.text_input(key="unlabeled file").set_value(str(files / "unlabeled.csv")).run()
    assert number_input(page, "Unlabelled rows to use").max == 50
    run = project.start(RunSettings(unlabeled=0))
    assert "--unlabeled" not in run.command_line
    assert run.expected_models == 2 * load_recipe("quick").repetitions
    run = project.start(RunSettings(unlabeled=20, unlabeled_file=str(files / "unlabeled.csv")))
    assert f"--unlabeled {UNLABELED_FILE}" in run.command_line
    written = set(pd.read_csv(project.folder / UNLABELED_FILE)["text"])
    assert len(written) == 20
    assert written < set(pd.read_csv(files / "unlabeled.csv")["text"])
    with pytest.raises(ClozifyError, match="no unlabelled row is left"):
        project.start(RunSettings())
    with pytest.raises(ClozifyError, match="iPET needs unlabelled rows"):
        project.start(RunSettings("ipet", unlabeled=0))


def test_rows_with_the_text_of_a_labelled_or_a_test_row_are_not_unlabelled_rows(project, files, tmp_path):
    texts = list(pd.read_csv(files / "unlabeled.csv")["text"])
    pd.DataFrame({"text": [*texts, texts[0]], "label": ["1"] + [""] * 50}).to_csv(tmp_path / "twice.csv", index=False)
    pd.DataFrame({"text": texts[1:11], "label": ["1", "2"] * 5}).to_csv(tmp_path / "some.csv", index=False)
    project.load(str(tmp_path / "twice.csv"))
    assert len(project.inputs.unlabeled()) == 49
    project.inputs.write(RunSettings(test=str(tmp_path / "some.csv")))
    assert set(pd.read_csv(project.folder / UNLABELED_FILE)["text"]) == set(texts[11:])
