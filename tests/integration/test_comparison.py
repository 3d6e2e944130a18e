"""UDA and MixText as a person starts them, with a tiny model: what a run leaves and says, and that it resumes."""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from clozify.errors import ClozifyError
from tests.integration.conftest import SETTINGS
from tests.unit.pipeline.test_augmentation import marian as marian

FEW = [*SETTINGS, "uda.max_steps=4", "mixtext.max_steps=4", "augment.method=rewriting"]


@pytest.fixture
def command(files, tiny_folder, monkeypatch, capsys):
    """The command line on the small task; returns what it printed."""
    from clozify import cli

    def start(*words, settings=FEW, code=0):
        inputs = "clozify train task.toml --labeled labeled.csv --unlabeled unlabeled.csv --test test.csv --quiet"
        inputs += " --output run --recipe paper"
        monkeypatch.chdir(files)
        more = [word for setting in settings for word in ("--set", setting)]
        monkeypatch.setattr(sys, "argv", [*inputs.split(), "--model", str(tiny_folder("bert")), *words, *more])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert (end.value.code or 0) == code
        printed = capsys.readouterr()
        return " ".join((printed.out + printed.err).split())

    return start


@pytest.mark.parametrize(("method", "name"), [("uda", "UDA"), ("mixtext", "MixText")])
def test_a_run_from_the_command_line_reports_names_its_augmentation_and_predicts(command, files, method, name):
    from clozify.inference.finished_run import evaluate

    printed = command("--method", method)
    assert name in printed
    assert "Augmented text: rewriting 15% of the tokens by the masked language model" in printed
    metrics = json.loads((files / "run" / "metrics.json").read_text())
    result = metrics[method]
    assert len(result["accuracy_each"]) == 2
    assert result["accuracy"] == pytest.approx(np.mean(result["accuracy_each"]))
    assert (result["unlabeled_rows"], result["versions"], result["steps"]) == (25, 2, 4)  # D halved
    assert result["augmentation"].startswith("rewriting 15%")
    assert result.get("layers") == ([2] if method == "mixtext" else None)
    assert (files / "run" / "classifier" / "model.safetensors").exists()
    again = evaluate(files / "run", files / "test.csv")
    assert again.accuracy == result["accuracy_each"][0]


def test_augmentations_are_made_once_and_a_stopped_run_goes_on_where_it_was(run, files, monkeypatch):
    """Hours of translation that were lost with the process would be lost with every process."""
    from clozify.pipeline import augmentation as augment

    monkeypatch.setattr(augment, "CHUNK_SIZE", 10)
    rewrite, calls = augment.rewrite, []

    def stops(*inputs):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return rewrite(*inputs)

    monkeypatch.setattr(augment, "rewrite", stops)
    with pytest.raises(KeyboardInterrupt):
        run(method="uda", settings=FEW)
    assert len(list((files / "run" / "augmentations").iterdir())) == 1
    assert not list((files / "run").rglob("*.part"))
    lines = []
    run(method="uda", settings=FEW, log=lines.append)
    assert sum(line.startswith("augmentation") and "already done" in line for line in lines) == 1
    before = len(calls)
    lines.clear()
    other = run(method="mixtext", settings=FEW, log=lines.append)  # the same texts serve both
    assert len(calls) == before
    assert "uda" not in other
    assert sum("already done" in line for line in lines) == 3
    monkeypatch.setattr(augment, "rewrite", rewrite)
    run("whole", method="mixtext", settings=FEW)
    texts = [
        sorted(path.read_bytes() for path in (files / name / "augmentations").rglob("*.parquet"))
        for name in ("run", "whole")
    ]
    assert texts[0] == texts[1]


def test_steps_chosen_on_the_test_set_are_labelled_so(command, files):
    """The paper reports the best on the test set; without the label it would pass for a fair number."""
    settings = [*FEW, "repetitions=1", "uda.steps_to_try=[2, 5, 3]", "uda.learning_rate=1e-2"]
    printed = command("--method", "uda", settings=settings)
    assert "BEST ON THE TEST SET" in printed
    result = json.loads((files / "run" / "metrics.json").read_text())["uda"]
    assert result["chosen"] == "best on the test set"
    assert list(result["tried"]) == ["2", "5", "3"]
    assert result["accuracy"] == max(tried["accuracy"] for tried in result["tried"].values())
    assert result["tried"][str(result["steps"])]["accuracy"] == result["accuracy"]
    assert len(list((files / "run" / "classifiers").iterdir())) == 3  # each its own training
    placed = files / "run" / "classifier" / "model.safetensors"
    models = (files / "run" / "classifiers").glob("*/model/model.safetensors")
    (kept,) = [path.parent.parent for path in models if path.samefile(placed)]
    accuracy = np.mean(np.load(kept / "test.npy").argmax(axis=-1) == pd.read_csv(files / "test.csv")["label"] - 1)
    assert accuracy == result["accuracy"]


def test_paraphrases_come_from_the_command_line(command, files):
    unlabeled = pd.read_csv(files / "unlabeled.csv")
    unlabeled.assign(text="in other words " + unlabeled["text"]).to_csv(files / "other.csv", index=False)
    assert "paraphrases of the file 'other.csv'" in command("--method", "uda", "--augmented", "other.csv")


def test_two_folders_of_translation_models_augment_both_methods_once(command, files, marian, monkeypatch):
    """Hours of translation, which neither the second method nor a second start of the first may repeat."""
    from clozify.pipeline import augmentation

    for name in ("en-fr", "fr-en"):
        shutil.copytree(marian, files / name)
    pair = "augment.backtranslation=[['en-fr', './fr-en']]"
    settings = [*FEW, "augment.method=backtranslation", "augment.share=0.2", "repetitions=1", pair]
    assert "back-translation by 'en-fr' and './fr-en'; 10 unlabelled rows" in command(
        "--method", "uda", settings=settings
    )
    (texts,) = (files / "run" / "augmentations").rglob("texts.parquet")
    translated, unlabeled = pd.read_parquet(texts)["field_text"], pd.read_csv(files / "unlabeled.csv")["text"]
    assert len(translated) == 10
    assert not set(translated) & set(unlabeled)
    monkeypatch.setattr(augmentation, "Translator", lambda *_: pytest.fail("texts are translated again"))
    as_in_its_code = ["mixtext.temperature=0.5"]
    for method, more in (("uda", []), ("mixtext", as_in_its_code)):
        assert "back-translation by" in command("--method", method, settings=[*settings, *more])
    run = json.loads((files / "run" / "methods" / "mixtext" / "run.json").read_text())
    assert run["recipe"]["mixtext"]["temperature"] == 0.5


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"method": "uda", "unlabeled": None}, "'uda' needs unlabelled rows"),
        ({"method": "mixtext", "unlabeled": None}, "'mixtext' needs unlabelled rows"),
        ({"method": "mixtext", "labeled": None}, "needs labelled rows"),
        ({"augmented": "x.csv"}, "--augmented. are for the methods 'uda' and 'mixtext', not 'pet'"),
        ({"method": "uda", "test": None, "settings": ["uda.steps_to_try=[5]"]}, "chooses on the test rows"),
        ({"method": "uda", "augmented": "missing.csv"}, "does not exist"),
    ],
)
def test_what_they_need_is_one_sentence_before_anything_is_spent(run, files, changes, part):
    with pytest.raises(ClozifyError, match=part) as error:
        run(**changes)
    assert len(error.value.problems) == 1
    assert not (files / "run").exists()


@pytest.mark.parametrize("method", ["uda", "mixtext"])
def test_a_plan_counts_the_rows_to_augment_and_every_number_of_steps(command, files, method):
    settings = ["augment.method=rewriting", f"{method}.steps_to_try=[1000, 2000]"]
    cost = json.loads(command("--method", method, "--plan", "--json", settings=settings))
    assert (cost["rows_to_augment"], cost["classifiers"], cost["steps_a_classifier"]) == (50, 6, 1500)
    assert cost["seconds"] > 0
    assert not (files / "run").exists()


def test_the_same_training_twice_gives_the_same_scores_to_the_bit(run, files):
    for method in ("uda", "mixtext"):
        for name in ("a", "b"):
            run(name + method, method=method, settings=[*FEW, "repetitions=1"])
        first, second = (np.load(next((files / (name + method)).rglob("test.npy"))) for name in ("a", "b"))
        assert np.array_equal(first, second)


def test_development_rows_and_balance_work_for_both(run, files):
    settings = [*FEW, "dev.every=2", "balance=true", "mixtext.lambda_u_hinge=0.1"]
    for method in ("uda", "mixtext"):
        metrics = run(method, method=method, settings=settings, dev=files / "test.csv", test=None)
        assert len(metrics[method]["dev_each"]) == 2
