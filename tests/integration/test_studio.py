"""What a person does in the studio, without a browser: the session behind the page, with a tiny model."""

import json
import time

import numpy as np
import pandas as pd
import pytest

from clozify.config.task import load_task
from clozify.errors import ClozifyError
from clozify.studio import preview as looking
from clozify.studio.draft import Draft
from clozify.studio.preview import Looker
from clozify.studio.runs import Run
from clozify.studio.session import LABELED, PILE, TASK, Session
from tests.integration.conftest import SETTINGS

PATTERNS = ["It was {mask}. {text}", "Just {mask}! || {text}"]
WORDS = [("1", "bad"), ("2", "great")]


@pytest.fixture
def session(files, tmp_path, tiny_folder, tiny):
    """A project with rows that have no labels, and a task without problems."""
    session = Session(tmp_path / "project", str(tiny_folder("bert")))
    session.looker = Looker(tiny("bert"))
    session.load(str(files / "pile.csv"))
    session.draft = Draft("stars", ["text"], "label", list(PATTERNS), list(WORDS))
    return session


def wait(run: Run, seconds: float = 90) -> str:
    until = time.monotonic() + seconds
    while run.state == "running" and time.monotonic() < until:
        time.sleep(0.1)
    return run.state


@pytest.mark.parametrize("name", ["debian", "yelp-full", "agnews"])
def test_a_shipped_task_is_the_same_task_when_it_comes_out_of_the_page(name):
    """What the page does not show, such as line breaks, would be lost by the first look."""
    task = load_task(name)
    assert Draft.of(task).task() == task.changed(id=None, columns=None)


def test_each_problem_stands_beside_its_field(session):
    session.draft.patterns = ["It was great. {text}", "{mask} {title}", PATTERNS[0], PATTERNS[0], ""]
    session.draft.words = [("1", "bad"), ("2", ""), ("", "okay"), ("4", "bad")]
    found = session.look().problems
    assert "no {mask}" in found["pattern 0"][0]
    assert "{title}" in found["pattern 1"][0]
    assert "pattern 2" not in found
    assert "above already" in found["pattern 3"][0]
    assert "Write a pattern" in found["pattern 4"][0]
    assert set(found) >= {"label 1", "label 2", "label 3"}
    assert "label 0" not in found
    assert "same word 'bad'" in found["label 3"][0]
    session.draft.fields = []
    assert "fields" in session.look().problems


def test_a_word_in_pieces_is_told_beside_its_label_and_the_others_still_answer(session):
    session.draft.words = [("1", "bad, unfathomable"), ("2", "great")]
    found = session.look()
    (split,) = found.split["1"]
    assert split.word == "unfathomable"
    assert len(split.pieces) > 1
    assert len(split.near) == 3
    assert "unfathomable" in found.problems["label 0"][0]
    assert found.probabilities is not None
    session.draft.words = [("1", "unfathomable"), ("2", "great")]
    assert session.look().probabilities is None


def test_the_page_answers_as_the_command_does(session, tiny):
    """Scores of the wrong rows, or of the wrong labels, would look just as good."""
    from clozify.inference.zero_shot import zero_shot

    found = session.look()
    predicted, _ = zero_shot(session.folder / TASK, session.source, tiny("bert"), max_length=looking.MAX_LENGTH)
    scores = predicted.pair_scores(0, 50)[:, session.shown]
    shares = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert found.probabilities == pytest.approx(shares, abs=1e-5)
    assert found.together == pytest.approx(predicted.probabilities(0, 50)[session.shown], abs=1e-5)
    alike = (shares[0].argmax(axis=-1) == shares[1].argmax(axis=-1)).mean()
    assert found.agreement() == pytest.approx(np.array([[1, alike], [alike, 1]]))


def test_only_a_changed_pattern_is_scored_again(session, monkeypatch):
    scored = []
    once = looking.score_rows
    monkeypatch.setattr(looking, "score_rows", lambda *given: scored.append(given) or once(*given))
    session.look()
    session.draft.patterns[1] = "{text} It is {mask}."
    session.look()
    session.look()
    assert len(scored) == 3
    session.more_rows()
    session.look()
    assert len(scored) == 5


def test_uploads_stay_in_the_project_whatever_their_name(session):
    session.upload("../../up\\..\\evil name.csv", b"text,label\na,1\nb,2\n")
    assert session.source == str(session.folder / "data" / "evil_name.csv")
    assert session.columns == ["text", "label"]
    with pytest.raises(ClozifyError, match="of no known kind"):
        session.upload("page.html", b"<script>")
    with pytest.raises(ClozifyError, match="empty"):
        session.upload("nothing.csv", b"")
    assert len(session) == 2  # what was there before is still there


def test_a_column_of_labels_names_the_labels(tmp_path, tiny_folder, files):
    session = Session(tmp_path / "project", str(tiny_folder("bert")))
    session.load(str(files / "test.csv"))
    assert session.draft.fields == ["text"]
    assert session.draft.labels == ["1", "2"]
    assert session.labeled() == {"1": 20, "2": 20}
    assert session.draft.words == [("1", ""), ("2", "")]  # no words that a model would say
    mails = Session(tmp_path / "mails", str(tiny_folder("bert")))
    mails.upload("mails.csv", b"text,label\na,Spam\nb,ham\nc,other mail\n")
    assert mails.draft.words == [("Spam", "spam"), ("ham", "ham"), ("other mail", "")]


def test_a_label_that_the_task_lacks_is_told_beside_the_column(session, files):
    session.load(str(files / "test.csv"))
    session.draft.words = [("one", "bad"), ("two", "great")]
    assert "'1' and '2'" in session.look().problems["label column"][0]


def test_labels_are_a_file_that_training_reads_and_come_back(session, tiny_folder):
    first, second = session.shown[:2]
    session.set_label(first, "2")
    session.set_label(second, "1")
    session.look()
    written = pd.read_csv(session.folder / LABELED, dtype=str)
    assert written.to_dict("list") == {"text": session.texts([first, second]), "label": ["2", "1"]}
    again = Session(session.folder, str(tiny_folder("bert")))
    assert again.labels == session.labels
    assert again.draft == session.draft
    assert again.truth([first, second, 7]).tolist() == [1, 0, -1]
    again.set_label(first, None)
    assert again.labeled() == {"1": 1, "2": 0}


def test_other_rows_do_not_get_the_labels_of_the_first(session, files):
    """Labels are kept by a row's number, and another file has another row there."""
    session.set_label(0, "1")
    session.load(str(files / "test.csv"))
    assert session.labels == {}


def test_a_run_is_the_command_that_is_shown_and_its_classifier_answers(session):
    with pytest.raises(ClozifyError, match="label a few rows"):
        session.start()
    for row in range(4):
        session.set_label(row, str(1 + row % 2))
    with pytest.raises(ClozifyError, match="did you mean 'repetitions'"):
        session.start(settings="repetition=2")
    with pytest.raises(ClozifyError, match="does not exist"):
        session.start(test="nowhere.csv")
    assert session.runs == []
    run = session.start(pile=20, settings=" ".join([*SETTINGS, "repetitions=1"]))
    with pytest.raises(ClozifyError, match="A run is going on"):
        session.start()
    assert run.command_line.startswith(f"clozify train {TASK} --labeled {LABELED} --method pet --recipe quick")
    assert f"--unlabeled {PILE}" in run.command_line
    assert run.command_line.endswith("--output runs/1")
    assert wait(run) == "done", run.problems()
    assert run.trained() == run.expected == 3
    assert run.lines()[-1].startswith("done in")
    assert json.loads((run.path / "metrics.json").read_text())["rows"] == {"labeled": 4, "unlabeled": 20}
    assert not set(pd.read_csv(session.folder / PILE)["text"]) & set(session.texts([0, 1, 2, 3]))
    shares = dict(session.classify(run, {"text": "a fine game"}))
    assert set(shares) == {"1", "2"}
    assert sum(shares.values()) == pytest.approx(1)
    with pytest.raises(ClozifyError, match="Write something"):
        session.classify(run, {"text": " "})
    later = Session(session.folder)
    assert [(run.number, run.state) for run in later.runs] == [(1, "done")]


def test_a_run_that_fails_says_why_and_one_that_is_stopped_ends(session):
    failing, stopped = Run(session.folder, 1), Run(session.folder, 2)
    failing.start(["nowhere.toml"])
    stopped.start([TASK, "--labeled", LABELED])
    stopped.stop()
    assert stopped.state == "stopped"
    assert wait(failing) == "failed"
    assert "The task 'nowhere.toml' is neither a file nor a shipped task" in failing.problems()[0]
