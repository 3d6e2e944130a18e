"""`clozify explain` on classifiers, exports and ensembles, and the words on a report's page."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app, main
from clozify.errors import DataError
from clozify.inference.export import export
from clozify.inference.finished_run import predict
from clozify.inference.training import train
from clozify.pipeline import explain_errors
from clozify.report.write import write_report
from tests.integration.conftest import SETTINGS, TASK
from tests.integration.serving import save_classifier

TEXTS = ["a fine game", "mail server for all of them", ""]
QUICK = [*SETTINGS, "repetitions=1", "language_modeling=false"]
TWO_FIELDS = TASK.replace('["text"]', '["title", "text"]').replace("{text}", "{title} {text}")
SEVERAL = TASK.replace('name = "stars"', 'name = "stars"\nmultilabel = true')


def assert_effects_are_those_of_one_text_at_a_time(run, explanations, texts, field="text"):
    """The naive reference: every text without a word is predicted alone."""
    labels = clozify.load_run(run).task.labels
    for explanation, text in zip(explanations.rows, texts, strict=True):
        (whole,) = predict(run, [text]).probabilities
        index = labels.index(explanation.label)
        assert explanation.probability == pytest.approx(whole[index], abs=1e-5)
        assert [word.text for word in explanation.words] == text.split()
        for position, word in enumerate(explanation.words):
            rest = [other for number, other in enumerate(text.split()) if number != position]
            (without,) = predict(run, [" ".join(rest)]).probabilities
            odds = [np.log(q[index] / (1 - q[index])) for q in (whole, without)]
            assert word.left_out == pytest.approx(odds[0] - odds[1], abs=1e-3)
            assert word.effect == pytest.approx(word.left_out, abs=1e-3)  # of few words the sample is the row
            assert word.probability_without == pytest.approx(without[index], abs=1e-5)


@pytest.fixture(scope="module")
def path(tmp_path_factory, tiny_folder):
    """A run of a classifier, one of an ensemble, and an export."""
    folder = tmp_path_factory.mktemp("explain")
    (folder / "task.toml").write_text(TASK)
    frame = pd.DataFrame([(1 + n % 2, f"{'fine game' if n % 3 else 'slow tool'} number {n}") for n in range(40)])
    frame.columns = ["label", "text"]
    frame[:6].to_csv(folder / "labeled.csv", index=False)
    frame[["text"]][6:24].to_csv(folder / "unlabeled.csv", index=False)
    frame[24:].to_csv(folder / "test.csv", index=False)
    inputs = {
        "task": folder / "task.toml",
        "labeled": folder / "labeled.csv",
        "test": folder / "test.csv",
        "model": str(tiny_folder("bert")),
        "recipe": "paper",
        "settings": QUICK,
    }
    train(output=folder / "run", unlabeled=folder / "unlabeled.csv", **inputs)
    train(output=folder / "ensemble", **inputs)
    return folder


@pytest.mark.parametrize("name", ["run", "ensemble"])
def test_a_words_effect_is_the_change_of_the_log_odds_when_it_is_left_out(path, name):
    texts = TEXTS[:2]
    explanations = clozify.explain(path / name, texts)
    assert name == "run" or "the ensemble" in explanations.model
    assert_effects_are_those_of_one_text_at_a_time(path / name, explanations, texts)
    assert [row.label for row in explanations.rows] == predict(path / name, texts).labels
    for row in explanations.rows:
        assert row.predicted
        for word in row.words:  # of two labels, the runner-up is all that is not the label
            assert word.against_runner_up == pytest.approx(word.effect, abs=1e-3)


def test_another_label_is_explained_when_asked_for(path):
    (one,), (other,) = (clozify.explain(path / "run", ["a fine game"], label).rows for label in ("1", "2"))
    assert {one.predicted, other.predicted} == {True, False}
    assert one.runner_up == other.label
    assert [word.effect for word in one.words] == pytest.approx([-word.effect for word in other.words], abs=1e-4)


@pytest.mark.slow
def test_an_export_and_int8_are_explained_like_the_classifier(path):
    export(path / "run", path / "onnx", data=path / "test.csv")
    before, after = (clozify.explain(folder, TEXTS[:2]).rows for folder in (path / "run", path / "onnx"))
    for one, other in zip(before, after, strict=True):
        assert [word.effect for word in one.words] == pytest.approx([word.effect for word in other.words], abs=1e-3)


def test_two_fields_are_left_out_word_by_word(tmp_path, tiny_folder):
    save_classifier(tiny_folder("bert"), TWO_FIELDS, tmp_path / "classifier")
    pd.DataFrame({"id": ["a"], "title": ["a game"], "text": ["good mail"]}).to_csv(tmp_path / "rows.csv", index=False)
    (row,) = clozify.explain(tmp_path / "classifier", tmp_path / "rows.csv").rows
    assert [(word.field, word.text) for word in row.words] == [
        ("title", "a"),
        ("title", "game"),
        ("text", "good"),
        ("text", "mail"),
    ]
    without = predict(tmp_path / "classifier", [{"title": "a game", "text": "mail"}]).probabilities[0]
    index = clozify.load_run(tmp_path / "classifier").task.labels.index(row.label)
    assert row.words[2].probability_without == pytest.approx(without[index], abs=1e-5)


def test_words_beyond_the_maximum_length_are_not_read_and_long_rows_have_parts(path):
    text = " ".join(f"game{n}" for n in range(60))
    explanations = clozify.explain(path / "run", [text], max_parts=4)
    (row,) = explanations.rows
    read = [word for word in row.words if word.read]
    assert len(read) <= 4
    assert row.grouped
    assert 0 < read[-1].end < len(text)
    assert row.probability == pytest.approx(predict(path / "run", [text]).probabilities.max(), abs=1e-5)
    beyond = text[: read[-1].end] + " a tool of other words"
    changed = predict(path / "run", [beyond]).probabilities.max()
    assert changed == pytest.approx(row.probability, abs=1e-5)
    assert any("taken together" in warning for warning in explanations.warnings)
    assert any("longer than the model reads" in warning for warning in explanations.warnings)


def test_with_several_labels_a_row_each_predicted_one_is_explained(tmp_path, tiny_folder):
    save_classifier(tiny_folder("bert"), SEVERAL, tmp_path / "classifier")
    config = json.loads((tmp_path / "classifier" / "config.json").read_text())
    for thresholds, expected in (({"1": 0.0, "2": 0.0}, ["1", "2"]), ({"1": 1.0, "2": 1.0}, None)):
        (tmp_path / "classifier" / "config.json").write_text(json.dumps(config | {"thresholds": thresholds}))
        rows = clozify.explain(tmp_path / "classifier", ["a fine game"]).rows
        if expected is None:
            assert len(rows) == 1
            assert not rows[0].predicted
        else:
            assert [row.label for row in rows] == expected
        assert all(row.runner_up is None for row in rows)


def test_the_command_prints_numbers_to_a_pipe_colours_to_a_terminal_and_json(path, monkeypatch):
    result = CliRunner().invoke(app, ["explain", str(path / "run"), "--text", "a fine game", "--text", ""])
    assert result.exit_code == 0, result.output
    assert "effect" in result.stdout
    assert "fine" in result.stdout
    assert "\x1b[" not in result.stdout
    assert "No word was left out" in result.stdout
    shown = json.loads(
        CliRunner()
        .invoke(app, ["explain", str(path / "run"), "--data", str(path / "test.csv"), "--rows", "2", "--json"])
        .stdout
    )
    assert len(shown["rows"]) == 2
    assert any("first 2 of 16" in warning for warning in shown["warnings"])
    assert set(shown["rows"][0]["words"][0]) >= {"text", "effect", "against_runner_up", "probability_without", "read"}
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = CliRunner().invoke(app, ["explain", str(path / "run"), "--text", "a fine game"]).stdout
    assert "\x1b[" in coloured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--text", "a", "--label", "three"], "no label 'three'"),
        ([], "write one of the two"),
        (["--text", "a", "--data", "b.csv"], "write one of the two"),
        (["--data", "missing.csv"], "missing.csv"),
    ],
)
def test_bad_input_is_one_sentence(path, arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["clozify", "explain", str(path / "run"), *arguments])
    monkeypatch.chdir(path)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_bad_numbers_are_refused(path):
    for settings in ({"rows": 0}, {"max_parts": 0}):
        with pytest.raises(DataError, match="1 or more"):
            clozify.explain(path / "run", ["a"], **settings)


def test_the_report_marks_the_words_that_moved_a_wrong_label(path):
    _, findings = write_report(path / "run")
    explained = [row.explained for row in findings.wrong.rows if row.explained is not None]
    assert len(explained) == min(explain_errors.MAX_ROWS, findings.wrong.total)
    for row in findings.wrong.rows[: len(explained)]:
        assert row.explained.label == row.predicted
        assert ["".join(piece.text for piece in pieces) for pieces in row.explained.texts] == row.texts
        (expected,) = clozify.explain(clozify.load_run(path / "run", precision="float32"), row.texts).rows
        effects = {word.text: word.effect for word in expected.words}
        assert {word: effects[word] for word, _ in row.explained.strongest} == pytest.approx(
            dict(row.explained.strongest), abs=1e-3
        )
    file = path / "run" / "wrong_rows.json"
    content = file.read_text()
    strong = json.loads(content)
    for row in strong["rows"]:
        row["parts"][0]["effect"], row["parts"][1]["effect"] = 3.0, -1.5
    file.write_text(json.dumps(strong))
    write_report(path / "run")
    file.write_text(content)
    page = (path / "run" / "report.html").read_text()
    assert page.count('<mark class="for s3">') == page.count('<mark class="against s2">') + 1 > 1  # one in the legend


def test_a_run_without_the_file_and_an_ensemble_show_the_rows_as_before(path):
    _, findings = write_report(path / "ensemble")
    assert findings.wrong.rows
    assert all(row.explained is None for row in findings.wrong.rows)
    file = path / "run" / "wrong_rows.json"
    content = file.read_text()
    for changed in (None, content.replace(json.loads(content)["texts"], "0" * 16)):
        file.unlink() if changed is None else file.write_text(changed)
        _, findings = write_report(path / "run")
        assert all(row.explained is None for row in findings.wrong.rows)
        assert "<mark" not in (path / "run" / "report.html").read_text()
    file.write_text(content)


def test_explanations_are_computed_once_and_an_error_in_them_does_not_fail_a_run(path, start_run, monkeypatch):
    lines = []
    settings = QUICK
    first = start_run(settings=settings, log=lines.append)
    assert sum("explaining errors" in line for line in lines) == (first.metrics.classifier.accuracy < 1)
    lines.clear()
    start_run(settings=settings, log=lines.append)
    assert not any("explaining errors" in line for line in lines)

    def fail(*_):
        raise ValueError("a fault")

    monkeypatch.setattr(explain_errors, "confident_errors", fail)
    start_run(settings=settings, log=lines.append)
    assert any("could not be explained (ValueError: a fault)" in line for line in lines)
