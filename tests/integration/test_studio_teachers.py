"""All kinds of teachers in the studio's preview, with tiny models and a server on loopback."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from clozify.errors import ClozifyError
from clozify.inference.zero_shot import zero_shot
from clozify.studio import preview as previews
from clozify.studio import render, server
from clozify.studio.draft import TaskDraft
from clozify.studio.preview import Previewer
from clozify.studio.project import Project
from clozify.studio.run_inputs import TASK_FILE, RunSettings
from tests.fake_llm_server import FakeLLM, error, last_text
from tests.tiny import make_generative

KEY = "sk-studio-4711"


@pytest.fixture
def project(files, tmp_path, tiny_folder, tiny, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = Project(tmp_path / "project", str(tiny_folder("bert")))
    project.previewer = Previewer(tiny("bert"), project.folder)
    project.load(str(files / "test.csv"))
    patterns = ["It was {mask}. {text}", "Just {mask}! || {text}"]
    project.draft = TaskDraft("stars", ["text"], "label", patterns, [("1", "bad"), ("2", "great")])
    yield project
    project.close()


def make_classifier(tiny_folder, folder, labels):
    """A tiny sequence classifier with random weights and these labels."""
    config = AutoConfig.from_pretrained(tiny_folder("bert"))
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_folder("bert")).save_pretrained(folder)
    return folder


def test_the_preview_combines_all_local_teachers_as_zero_shot_does(project, tiny_folder, tiny, tmp_path):
    make_classifier(tiny_folder, project.folder / "last-year", ["1", "2"])
    nli = make_classifier(tiny_folder, tmp_path / "nli", ["contradiction", "neutral", "entailment"])
    gpt2 = make_generative("gpt2", tmp_path / "gpt2")
    project.draft.hidden_settings = {
        "rules": [{"label": "1", "any": ["game", "mail"], "name": "words"}],
        "teachers": [
            {"kind": "classifier", "model": "last-year"},  # in the project's folder, where its commands run
            {"kind": "nli", "model": str(nli), "name": "entailed"},
            {"kind": "model", "model": str(gpt2), "name": "GPT-2"},
        ],
    }
    preview = project.preview()
    assert not preview.problems
    assert not preview.unasked
    assert {(teacher.name, teacher.kind) for teacher in preview.teachers} == {
        ("patterns", "patterns"),
        ("words", "rule"),
        ("last-year", "classifier"),
        ("entailed", "nli"),
        ("GPT-2", "model"),
    }
    project.draft.hidden_settings["teachers"][0]["model"] = str(project.folder / "last-year")
    task = project.draft.to_task()
    texts = project.data.texts(project.draft, project.data.shown)
    expected = zero_shot(task, texts, tiny("bert"), max_length=previews.MAX_LENGTH)
    assert preview.ensemble == pytest.approx(expected.probabilities, abs=1e-4)
    weights = {teacher.name.rsplit("/")[-1]: teacher.weight for teacher in expected.teachers}
    for teacher in preview.teachers:
        assert teacher.weight.weight == pytest.approx(weights[teacher.name], abs=1e-4)
    html = render.answers(preview, texts, None) + render.teachers(preview, None)
    for name in ("all teachers", "last-year", "entailed", "GPT-2", "words", "no vote"):
        assert name in html


def test_only_what_changed_is_scored_again(project, tiny_folder, tmp_path, monkeypatch):
    folder = make_classifier(tiny_folder, tmp_path / "classifier", ["1", "2"])
    project.draft.hidden_settings = {"teachers": [{"kind": "classifier", "model": str(folder)}]}
    project.preview()
    monkeypatch.setattr("clozify.teachers.classifier.SequenceModel", None)  # would fail
    project.draft.patterns[1] = "{text} It is {mask}."
    project.draft.words[0] = ("1", "terrible")
    assert not project.preview().problems


def test_a_teacher_that_cannot_be_used_is_a_problem_and_the_others_answer(project):
    project.draft.hidden_settings = {
        "rules": [{"label": "1", "regex": ".", "name": "every row"}],
        "teachers": [{"kind": "classifier", "model": "./nowhere"}],
    }
    preview = project.preview()
    assert "./nowhere" in preview.problems["teachers"][0]
    assert [teacher.name for teacher in preview.teachers] == ["patterns", "every row"]


@pytest.fixture
def llm(project):
    with FakeLLM(lambda body: "12"[int(last_text(body).split()[-1]) % 2]) as fake:
        entry = {"kind": "openai", "model": "m", "base_url": fake.url, "retries": 0, "input_price": 1.0}
        project.draft.hidden_settings = {"teachers": [entry]}
        yield fake


def test_an_llm_is_asked_only_when_the_user_says_so_and_its_cost_is_said_before(project, llm):
    alone = project.preview()
    assert not llm.requests
    assert not alone.teachers
    (unasked,) = alone.unasked
    shown = len(project.data.shown)
    assert unasked.cost.requests == shown
    assert f"{shown} requests" in unasked.sentence
    assert "at the prices of the task file" in unasked.sentence
    project.ask_llms(alone.unasked, "")
    sent = len(llm.requests)
    assert sent == shown + 1  # one that asks for log-probabilities, in vain
    preview = project.preview()
    assert not preview.unasked
    assert any(f"{sent - 1} requests sent" in note for note in preview.notes)
    votes = {teacher.name: teacher.votes for teacher in preview.teachers}["m"]
    numbers = [int(text.split()[-1]) % 2 for text in project.data.texts(project.draft, project.data.shown)]
    assert votes.tolist() == numbers
    project.draft.patterns[0] = "{text} It is {mask}."  # the prompts stay the same
    assert not project.preview().unasked
    assert len(llm.requests) == sent
    everything = "".join(path.read_text(errors="replace") for path in project.folder.rglob("*") if path.is_file())
    assert KEY not in everything + json.dumps(preview.notes)


def test_answers_are_kept_and_used_by_the_command(project, llm, tiny):
    project.ask_llms(project.preview().unasked, "")
    sent = len(llm.requests)
    texts = project.data.texts(project.draft, project.data.shown)
    expected = zero_shot(project.folder / TASK_FILE, texts, tiny("bert"), max_length=previews.MAX_LENGTH)
    assert len(llm.requests) == sent
    assert project.preview().ensemble == pytest.approx(expected.probabilities, abs=1e-4)


def test_a_budget_limits_a_click(project, llm):
    project.ask_llms(project.preview().unasked, "5requests")
    assert len([body for body in llm.requests if "logprobs" not in body]) <= 5
    votes = project.preview().teachers[1].votes
    assert 0 < (votes >= 0).sum() <= 5
    project.draft.words[0] = ("1", "terrible")  # another prompt
    with pytest.raises(ClozifyError, match="not understood"):
        project.ask_llms(project.preview().unasked, "much")


def test_the_button_asks_and_an_error_of_the_server_is_shown(project, llm, monkeypatch):
    testing = pytest.importorskip("streamlit.testing.v1")
    monkeypatch.setattr(server, "_project", project)
    page = testing.AppTest.from_file(Path(server.__file__).with_name("streamlit_app.py"), default_timeout=60).run()
    assert not page.exception
    llm.faults = [error(401, f"bad key {KEY}")]
    page.button(key="ask llm").click().run()
    html = " ".join(element.proto.body for element in page.get("html"))
    assert "OPENAI_API_KEY" in html
    assert KEY not in html
    assert "was not asked about these rows" in html
    page.button(key="ask llm").click().run()
    assert not page.exception
    html = " ".join(element.proto.body for element in page.get("html"))
    assert 'id="teachers"' in html
    assert "was not asked about these rows" not in html
    assert "OPENAI_API_KEY" not in html.replace("with the key in OPENAI_API_KEY", "")


def test_a_run_says_what_the_llm_costs_and_has_a_budget(project, llm):
    project.preview()
    ((name, cost),) = project.llm_costs(30)
    assert (name, cost.requests) == ("m", 30)
    assert cost.price > 0
    arguments = project.inputs.write(RunSettings(unlabeled=0, budget="7requests"))
    assert arguments[-2:] == ["--budget", "7requests"]
    with pytest.raises(ClozifyError, match="not understood"):
        project.inputs.write(RunSettings(unlabeled=0, budget="a lot"))
    assert not llm.requests
