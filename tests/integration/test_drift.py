"""`clozify drift` on a run with a tiny model."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app, main
from clozify.errors import ClozifyError, DataError
from clozify.inference import drift as module
from clozify.inference import drift_scope
from clozify.inference.drift import sample_rows
from clozify.inference.finished_run import predict
from clozify.inference.training import train
from tests.integration.conftest import SETTINGS, TASK
from tests.integration.serving import save_classifier

WORDS = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]


def texts(count, seed, words=WORDS):
    rng = np.random.default_rng(seed)
    return [f"{words[rng.integers(len(words))]} number {rng.integers(1000)}" for _ in range(count)]


@pytest.fixture(scope="module")
def path(tmp_path_factory, tiny_folder):
    """A run with 500 unlabelled rows, of which it was trained on 60, and new rows like them and unlike them."""
    folder = tmp_path_factory.mktemp("drift")
    (folder / "task.toml").write_text(TASK)
    pd.DataFrame({"text": texts(8, 0), "label": [1, 2] * 4}).to_csv(folder / "labeled.csv", index=False)
    pd.DataFrame({"text": texts(500, 1)}).to_csv(folder / "unlabeled.csv", index=False)
    pd.DataFrame({"text": texts(300, 2)}).to_csv(folder / "same.csv", index=False)
    pd.DataFrame({"text": texts(300, 3, ["query of a table", *WORDS[:2]])}).to_csv(folder / "other.csv", index=False)
    train(
        folder / "task.toml",
        folder / "labeled.csv",
        folder / "run",
        unlabeled=folder / "unlabeled.csv",
        model=str(tiny_folder("bert")),
        recipe="paper",
        settings=[*SETTINGS, "repetitions=1", "language_modeling=false", "unlabeled_rows=60"],
    )
    return folder


def test_rows_like_the_unlabelled_ones_are_no_drift_and_others_are(path):
    same = clozify.drift(path / "run", path / "same.csv")
    assert not same.drift
    assert same.reference_rows > 300  # without those that the run was trained on
    assert same.rows == 300
    other = clozify.drift(path / "run", path / "other.csv")
    assert other.drift
    assert {statistic.name for statistic in other.statistics if statistic.drift} >= {"words"}
    assert {word.word for word in other.words} >= {"query", "table", "mail"}
    query = next(word for word in other.words if word.word == "query")
    assert query.reference == 0
    assert query.new > 0.2


def test_label_shares_are_those_of_the_predictions(path):
    report = clozify.drift(path / "run", path / "same.csv")
    predicted = predict(path / "run", path / "same.csv").labels
    for share in report.labels:
        assert share.new == pytest.approx(predicted.count(share.label) / len(predicted))
    confidence = next(statistic for statistic in report.statistics if statistic.name == "confidence")
    assert confidence.new == pytest.approx(
        predict(path / "run", path / "same.csv").probabilities.max(axis=1).mean(), abs=1e-5
    )


def test_the_reference_is_predicted_once_and_kept(path, monkeypatch, tmp_path):
    clozify.drift(path / "run", path / "same.csv")
    predicted = []
    predict_rows = module.probabilities_and_states
    monkeypatch.setattr(
        module, "probabilities_and_states", lambda run, rows: predicted.append(len(rows)) or predict_rows(run, rows)
    )
    first = clozify.drift(path / "run", path / "same.csv")
    assert predicted == [300]
    (path / "unlabeled.csv").rename(path / "moved.csv")  # the kept reference needs the file no more
    try:
        assert clozify.drift(path / "run", path / "same.csv") == first
    finally:
        (path / "moved.csv").rename(path / "unlabeled.csv")
    for file in (path / "run" / "drift").iterdir():
        file.write_text("{")  # damaged: computed again
    assert clozify.drift(path / "run", path / "same.csv") == first
    predicted.clear()
    clozify.drift(path / "run", path / "same.csv", max_rows=50)
    assert predicted == [50, 50]


def test_the_distance_from_half_of_the_reference_is_compared(path, tmp_path, monkeypatch):
    """The reference rows' states are kept with it; new rows whose states are far from all of them are out of scope."""
    computed = module.probabilities_and_states

    def with_made_up_states(run, rows):
        probabilities, states = computed(run, rows)
        assert states.shape[0] == len(rows)
        is_far = np.array(["far" in text for text in rows.texts("text")])
        states = np.random.default_rng(len(rows)).standard_normal((len(rows), 8)).astype(np.float32)
        states[~is_far, 4:] = 0  # rows like the reference are in one half of the space, the others in the other
        states[is_far, :4] = 0
        return probabilities, states

    monkeypatch.setattr(module, "probabilities_and_states", with_made_up_states)
    run = shutil.copytree(path / "run", tmp_path / "run", ignore=shutil.ignore_patterns("drift*"))
    report = clozify.drift(run, path / "same.csv")
    by_name = {statistic.name: statistic for statistic in report.statistics}
    assert list(by_name)[-2:] == ["out-of-scope score", "out of scope, fraction"]
    assert not by_name["out of scope, fraction"].drift
    assert 0 < by_name["out of scope, fraction"].reference <= 0.05
    far = clozify.drift(run, ["a far text"] * 150)
    by_name = {statistic.name: statistic for statistic in far.statistics}
    assert by_name["out of scope, fraction"].new == 1
    assert by_name["out of scope, fraction"].drift
    assert by_name["out-of-scope score"].new > by_name["out-of-scope score"].reference


def test_an_ensemble_has_distances_too_and_an_export_has_none(start_run, path, files, monkeypatch):
    start_run(unlabeled=None, test=None)
    names = [each.name for each in clozify.drift(files / "run", path / "same.csv", path / "unlabeled.csv").statistics]
    assert "out of scope, fraction" in names
    monkeypatch.setattr(drift_scope, "has_states", lambda run: False)
    names = [each.name for each in clozify.drift(files / "run", path / "same.csv", path / "other.csv").statistics]
    assert names == ["predicted labels", "words", "confidence", "different words", "new words, fraction"]


def test_a_folder_that_cannot_be_written_to_does_not_matter(path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "atomic_write_text", refuse)
    assert not clozify.drift(path / "run", path / "same.csv", max_rows=120).drift


def test_the_exit_status_says_whether_there_is_drift(path):
    same = CliRunner().invoke(app, ["drift", str(path / "run"), "--data", str(path / "same.csv")])
    assert same.exit_code == 0, same.output
    assert "No drift" in same.stdout
    other = CliRunner().invoke(app, ["drift", str(path / "run"), "--data", str(path / "other.csv")])
    assert other.exit_code == 3
    assert "Drift: " in other.stdout
    assert "query" in other.stdout
    as_json = CliRunner().invoke(app, ["drift", str(path / "run"), "--data", str(path / "other.csv"), "--json"])
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["drift"] is True


def test_a_significant_but_small_difference_is_no_drift(path):
    report = clozify.drift(path / "run", path / "other.csv", min_effect=1.0)
    assert not report.drift
    assert any(statistic.p_value < 0.01 for statistic in report.statistics)


def test_other_reference_rows_serve_also_for_a_classifiers_folder(path, tmp_path):
    assert not clozify.drift(path / "run", path / "other.csv", reference=path / "other.csv").drift
    report = clozify.drift(path / "run" / "classifier", path / "same.csv", reference=path / "unlabeled.csv")
    assert not report.drift
    assert not (path / "run" / "classifier" / "drift").exists()


def test_a_run_that_was_trained_on_all_of_its_unlabelled_rows_says_so(path, tmp_path, tiny_folder):
    pd.DataFrame({"text": texts(50, 1)}).to_csv(tmp_path / "unlabeled.csv", index=False)
    train(
        path / "task.toml",
        path / "labeled.csv",
        tmp_path / "run",
        unlabeled=tmp_path / "unlabeled.csv",
        model=str(tiny_folder("bert")),
        recipe="paper",
        settings=[*SETTINGS, "repetitions=1", "language_modeling=false", "finetune_without_lm.max_steps=1"],
    )
    report = clozify.drift(tmp_path / "run", path / "same.csv")
    assert report.reference_rows == 50
    assert any("trained on the reference rows" in warning for warning in report.warnings)
    few = clozify.drift(tmp_path / "run", texts(20, 3))
    assert any("only large changes" in warning for warning in few.warnings)
    (tmp_path / "unlabeled.csv").unlink()
    for file in (tmp_path / "run" / "drift").iterdir():
        file.unlink()
    with pytest.raises(ClozifyError, match="--reference"):
        clozify.drift(tmp_path / "run", path / "same.csv")


def test_several_labels_a_row_are_compared_label_by_label(tmp_path, tiny_folder, path):
    task = TASK.replace('name = "stars"', 'name = "stars"\nmultilabel = true')
    save_classifier(tiny_folder("bert"), task, tmp_path / "classifier")
    config = json.loads((tmp_path / "classifier" / "config.json").read_text())
    content = config | {"thresholds": {"1": 0.5, "2": 0.5}}
    (tmp_path / "classifier" / "config.json").write_text(json.dumps(content))
    report = clozify.drift(tmp_path / "classifier", path / "same.csv", reference=path / "unlabeled.csv")
    assert not report.drift


def test_bad_input_is_one_sentence_with_status_2(path, tmp_path, tiny_folder, monkeypatch, capsys):
    save_classifier(tiny_folder("bert"), TASK, tmp_path / "classifier")
    for arguments, said in (
        ([str(tmp_path / "classifier"), "--data", str(path / "same.csv")], "--reference"),
        ([str(path / "run"), "--data", "missing.csv"], "missing.csv"),
        ([str(path / "run"), "--data", str(path / "same.csv"), "--level", "0.9"], "--level"),
    ):
        monkeypatch.setattr("sys.argv", ["clozify", "drift", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert said in capsys.readouterr().err
    for settings in ({"level": 0.0}, {"min_effect": 2.0}, {"max_rows": 0}):
        with pytest.raises(DataError):
            clozify.drift(path / "run", path / "same.csv", **settings)


def test_rows_are_sampled_the_same_way_each_time(path):
    rows = clozify.read_rows(path / "same.csv", clozify.load_task(path / "task.toml"))
    first, second = (sample_rows(rows, 10).row_numbers().tolist() for _ in range(2))
    assert first == second == sorted(first)
    assert len(sample_rows(rows, 1000)) == 300
