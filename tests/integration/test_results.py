"""What a run computes and learns, against the paper: ensemble weights, training sets, teachers, and results."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

from clozify.inference.finished_run import FinishedRun
from clozify.inference.training import train
from clozify.pipeline import generations, member_jobs
from tests.integration.conftest import SETTINGS

IPET = [*SETTINGS, "ipet.d=2", "ipet.enough=35", "ipet.teachers=0.5"]  # 10, 20, 40 rows; 4 members, 2 teachers each


def untrained_predictions(folder, texts):
    """Each pattern's predictions by Transformers alone, and the difference of the labels' scores: (2, rows) each."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    words = tokenizer.convert_tokens_to_ids(["bad", "great"])
    differences = []
    for text in texts:
        for inputs in (
            tokenizer(f"It was {tokenizer.mask_token}. {text}", return_token_type_ids=True, return_tensors="pt"),
            tokenizer(f"Just {tokenizer.mask_token}!", text, return_token_type_ids=True, return_tensors="pt"),
        ):
            with torch.no_grad():
                logits = model(**inputs).logits[inputs.input_ids == tokenizer.mask_token_id][0]
            differences.append(float(logits[words[1]] - logits[words[0]]))
    apart = np.array(differences).reshape(len(texts), 2).T
    return (apart > 0).astype(int), np.abs(apart)


def test_the_weight_of_a_pair_is_its_accuracy_on_t_before_training(run, files, tiny_folder):
    texts = [f"{start} {end}" for start in ("fine", "slow", "big", "mail", "fonts") for end in ("game", "tool", "data")]
    predictions, apart = untrained_predictions(tiny_folder("bert"), texts)
    clear = np.flatnonzero(apart.min(axis=0) > 1e-4)[:10]  # not a matter of rounding
    assert len(clear) == 10
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    pd.DataFrame({"label": labels + 1, "text": [texts[row] for row in clear]}).to_csv(files / "t.csv", index=False)
    expected = [(predictions[pair, clear] == labels).mean() for pair in range(2)]
    metrics = run(labeled=files / "t.csv")
    assert metrics["untrained"]["accuracy_on_labeled"] == pytest.approx(expected)
    ensemble = json.loads((files / "run" / "ensemble.json").read_text())["weights"]
    assert [member["weight"] for member in ensemble] == pytest.approx(np.repeat(expected, 2))  # two seeds a pair


@pytest.fixture
def spied_ipet(run, files, monkeypatch):
    """Runs iPET; returns what every member was trained on, (texts, labels), and every selection with its teachers."""
    trained, selected = [], []
    finetune, select = member_jobs.finetune, generations.select_training_rows

    def spy_on_finetune(model, words, labeled, labels, *more):
        (tokens,) = labeled._field_tokens
        ids = [tokens.ids[start:stop] for start, stop in zip(tokens.offsets, tokens.offsets[1:], strict=False)]
        texts = [model.tokenizer.hf_tokenizer.decode(row) for row in ids]
        trained.append((texts, labels.tolist()))
        return finetune(model, words, labeled, labels, *more)

    def spy_on_selection(scores, weights, counts, settings, teachers, *more):
        selection = select(scores, weights, counts, settings, teachers, *more)
        selected.append((selection, teachers.tolist(), {teacher: scores[teacher] for teacher in teachers.tolist()}))
        return selection

    monkeypatch.setattr(member_jobs, "finetune", spy_on_finetune)
    monkeypatch.setattr(generations, "select_training_rows", spy_on_selection)
    run(method="ipet", settings=IPET)
    assert len(trained) == 3 * 4
    assert len(selected) == 2 * 4
    return trained, selected


def test_every_generation_is_trained_on_t_and_on_drawn_rows_with_the_labels_of_their_teachers(spied_ipet, files):
    """Labels that are joined to rows in another order train every member on noise, and nothing looks odd."""
    trained, selected = spied_ipet
    labeled, unlabeled = pd.read_csv(files / "labeled.csv"), pd.read_csv(files / "unlabeled.csv")
    t_texts, t_labels = labeled["text"].tolist(), (labeled["label"] - 1).tolist()
    assert all((texts[:10], labels[:10]) == (t_texts, t_labels) for texts, labels in trained)
    assert [len(texts) for texts, _ in trained] == [10] * 4 + [20] * 4 + [40] * 4
    for (texts, labels), (selection, _, scores) in zip(trained[4:], selected, strict=True):
        assert texts[10:] == unlabeled["text"][selection.rows].tolist()
        assert labels[10:] == selection.labels.tolist()
        assert len(set(selection.rows.tolist())) == len(selection.rows)
        if not selection.topped_up.any():  # the weights of both pairs are accuracies on a balanced T
            weights = json.loads((files / "run" / "ensemble.json").read_text())["weights"]
            ensemble = sum(weights[teacher]["weight"] * of_one for teacher, of_one in scores.items())
            assert selection.labels.tolist() == ensemble[selection.rows].argmax(axis=1).tolist()


def test_no_member_is_its_own_teacher(spied_ipet):
    """It would only be confirmed in what it believes."""
    _, selected = spied_ipet
    for call, (_, teachers, _) in enumerate(selected):
        assert len(teachers) == len(set(teachers)) == 2
        assert call % 4 not in teachers


WORDS = {1: "slow broken old bad wrong".split(), 2: "fine fast new good right".split()}
LEARNING = ["repetitions=1", "max_seq_length=40", "finetune.max_steps=60", "finetune.learning_rate=2e-3"]
LEARNING += ["distill.max_steps=150", "distill.learning_rate=2e-3"]


def separable_rows(count, seed):
    """Texts of four words that all stand for one label."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2 + 1
    texts = [f"{' '.join(rng.choice(WORDS[label], 4))} {number}" for number, label in enumerate(labels)]
    return pd.DataFrame({"label": labels, "text": texts})


def test_pet_learns_a_separable_task_and_its_student_follows_the_ensemble(run, files):
    """Far from chance, which is 0.5 here, so that no rounding decides."""
    separable_rows(20, 0).to_csv(files / "t.csv", index=False)
    separable_rows(200, 1)[["text"]].to_csv(files / "d.csv", index=False)
    separable_rows(100, 2).to_csv(files / "test.csv", index=False)
    metrics = run(labeled=files / "t.csv", unlabeled=files / "d.csv", settings=LEARNING)
    assert metrics["ensemble"]["accuracy"] > 0.9
    assert metrics["classifier"]["accuracy"] > 0.9
    soft_labels = pd.read_parquet(files / "run" / "labels.parquet")
    student = FinishedRun(files / "run").predict(files / "d.csv")
    assert np.mean(soft_labels["label"].to_numpy() == np.array(student.labels)) > 0.95


def test_train_returns_the_finished_run(run, files, monkeypatch):
    results = []
    monkeypatch.setattr(
        "tests.integration.conftest.train", lambda **inputs: results.append(train(**inputs)) or results[-1]
    )
    settings = dict(setting.split("=") for setting in SETTINGS)
    settings |= {"repetitions": 1, "distill.max_steps": 6}  # numbers as well as texts
    metrics = run(settings=settings)
    (result,) = results
    assert result.metrics.to_json() == metrics == json.loads((files / "run" / "metrics.json").read_text())
    assert result.labels.num_rows == 50
    assert result.classifier == files / "run" / "classifier"
    assert result.report == files / "run" / "report.html"
    predictions = result.predict(["a fine game", "a slow tool"])
    assert len(predictions.labels) == 2
    assert np.array_equal(
        predictions.probabilities, FinishedRun(files / "run").predict(["a fine game", "a slow tool"]).probabilities
    )
    run("alone", unlabeled=None, settings=settings)
    assert results[-1].labels is None
    assert results[-1].classifier is None
    assert results[-1].predict(["a fine game"]).labels[0] in ("1", "2")
