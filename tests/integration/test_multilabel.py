"""Several labels a row through every step of a run, with a tiny model."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app
from clozify.errors import ClozifyError, DataError, ModelError

TASK = """
name = "topics"
fields = ["text"]
multilabel = true
patterns = ["It was {mask}. {text}", "Just {mask}! || {text}"]
[labels]
game = "good"
tool = "bad"
mail = "great"
"""
SETTINGS = [
    "repetitions=1",
    "finetune.max_steps=6",
    "finetune_without_lm.max_steps=6",
    "distill.max_steps=6",
    "supervised.max_steps=6",
    "max_seq_length=40",
    "multilabel.folds=2",
    "ipet.generations=1",
    "ipet.d=2",
]


@pytest.fixture
def files(tmp_path):
    """A task, twelve labelled rows, some without a label, unlabelled rows and test rows."""
    (tmp_path / "task.toml").write_text(TASK)
    names = ["game", "tool", "mail"]
    sets = [[], ["game"], ["tool", "mail"], ["mail"], ["game", "tool", "mail"], ["tool"]]
    rows = [(" ".join(sets[n % 6]) + f" number {n}", "|".join(sets[n % 6])) for n in range(90)]
    frame = pd.DataFrame(rows, columns=["text", "label"])
    frame[:12].to_csv(tmp_path / "labeled.csv", index=False)
    frame[["text"]][12:60].to_csv(tmp_path / "unlabeled.csv", index=False)
    frame[60:].to_csv(tmp_path / "test.csv", index=False)
    assert names == clozify.load_task(tmp_path / "task.toml").labels
    return tmp_path


@pytest.fixture
def run(start_run):
    return lambda output="run", **changes: start_run(output, **({"settings": SETTINGS} | changes))


def probabilities_of(run_folder, texts):
    """What Transformers itself says, without clozify."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(run_folder / "classifier").eval()
    tokenizer = AutoTokenizer.from_pretrained(run_folder / "classifier")
    with torch.inference_mode():
        scores = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits
    return model.config, torch.sigmoid(scores).numpy()


def test_the_classifier_is_an_ordinary_one_with_thresholds(run, files):
    metrics = run().metrics
    assert metrics.classifier.micro_f1 is not None
    assert metrics.classifier.confusion is None
    assert set(metrics.classifier.labels) == {"game", "tool", "mail"}
    texts = ["a game number 3", "mail for all"]
    config, expected = probabilities_of(files / "run", texts)
    assert config.problem_type == "multi_label_classification"
    assert config.thresholds == pytest.approx(metrics.thresholds)
    assert not {0.5} & set(metrics.thresholds.values())
    predictions = clozify.load_run(files / "run", precision="float32").predict(texts)
    np.testing.assert_allclose(predictions.probabilities, expected, atol=1e-4)
    names = [
        [label for label, p in zip(("game", "tool", "mail"), row, strict=True) if p >= config.thresholds[label]]
        for row in expected
    ]
    assert predictions.label_sets == names
    assert predictions.labels == ["|".join(row) for row in names]


def test_evaluation_of_the_run_repeats_its_metrics(run, files):
    metrics = run().metrics
    result = clozify.evaluate(clozify.load_run(files / "run", precision="float32"), files / "test.csv")
    assert result.micro_f1 == pytest.approx(metrics.classifier.micro_f1)
    assert result.accuracy == pytest.approx(metrics.classifier.accuracy)
    assert result.labels["game"] == metrics.classifier.labels["game"]


def test_an_ensemble_predicts_by_its_own_scores_and_thresholds(run, files):
    """Each member's zero points are needed again when rows are predicted."""
    metrics = run(unlabeled=None).metrics
    result = clozify.evaluate(files / "run", files / "test.csv")
    assert result.micro_f1 == pytest.approx(metrics.ensemble.micro_f1)
    content = json.loads((files / "run" / "ensemble.json").read_text())
    assert content["thresholds"] == pytest.approx(metrics.thresholds)
    assert all(len(member["zero_points"]) == 3 for member in content["weights"])


def test_a_run_that_resumes_trains_no_fold_again(run, files):
    first = run().metrics
    messages = []
    again = run(log=messages.append).metrics
    assert again == first
    done = [message for message in messages if "already done" in message]
    assert len([message for message in done if message.startswith("thresholds")]) == 2
    assert not [message for message in messages if "steps/s" in message]


def test_the_folds_rows_are_those_that_its_model_was_not_trained_on(run, files):
    run(unlabeled=None)
    records = [json.loads(path.read_text()) for path in (files / "run" / "members").glob("*/member.json")]
    folds = [np.load(path) for path in (files / "run" / "members").glob("*/held_out.npy")]
    assert sorted(len(fold) for fold in folds) == [6, 6]
    assert sorted(record["rows"] for record in records) == [6, 6, 12, 12]


@pytest.mark.parametrize("method", ["supervised", "ipet"])
def test_other_methods_learn_several_labels(run, files, method):
    metrics = run(method=method).metrics
    assert metrics.result.micro_f1 is not None
    assert set(metrics.thresholds) == {"game", "tool", "mail"}
    if method == "ipet":
        assert metrics.generations[1].training_rows > metrics.generations[0].training_rows
    assert clozify.evaluate(clozify.load_run(files / "run", precision="float32"), files / "test.csv").micro_f1 == (
        pytest.approx(metrics.result.micro_f1)
    )


def test_a_threshold_may_be_set_instead(run, files):
    metrics = run(unlabeled=None, settings=[*SETTINGS, "multilabel.threshold=0.3"]).metrics
    assert set(metrics.thresholds.values()) == {0.3}
    assert len(list((files / "run" / "members").iterdir())) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "uda"}, "is for one label a row"),
        ({"method": "ipet", "labeled": None}, "iPET without labelled rows would need thresholds"),
    ],
)
def test_what_has_no_meaning_is_refused(run, changes, message):
    with pytest.raises(DataError, match=message):
        run(**changes)


def test_labelled_rows_without_any_label_teach_nothing(run, files):
    pd.DataFrame({"text": ["a", "b"], "label": ["", ""]}).to_csv(files / "none.csv", index=False)
    with pytest.raises(DataError, match="has any label, so nothing can be learned"):
        run(labeled=files / "none.csv")


def test_a_classifier_without_its_thresholds_is_refused(run, files):
    """A silent 0.5 would give other labels."""
    run()
    config = files / "run" / "classifier" / "config.json"
    content = json.loads(config.read_text())
    del content["thresholds"]
    config.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="lacks the thresholds; copy the folder again, or train again"):
        clozify.load_run(files / "run").predict(["a game"])


def test_zero_shot_assumes_a_number_of_labels(files, tiny_folder):
    result = clozify.zero_shot(
        files / "task.toml", files / "test.csv", str(tiny_folder("bert")), files / "out.csv", labels_a_row=1.5
    )
    assert result.calibrated
    assert sum(result.label_counts.values()) == 45  # of 30 rows
    assert result.micro_f1 is not None
    table = pd.read_csv(files / "out.csv", keep_default_na=False)
    assert table["prediction"].tolist() == result.labels
    assert "--labels-a-row sets the number" in result.calibration
    with pytest.raises(ClozifyError, match="Rows cannot have 4 of 3 labels on average"):
        clozify.zero_shot(files / "task.toml", files / "test.csv", str(tiny_folder("bert")), labels_a_row=4)


def test_the_command_line_shows_several_labels(run, files):
    run()
    command = CliRunner()
    for arguments in (
        ["predict", str(files / "run"), "--data", str(files / "test.csv"), "--output", str(files / "out.jsonl")],
        ["evaluate", str(files / "run"), "--data", str(files / "test.csv")],
        ["report", str(files / "run")],
    ):
        result = command.invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert isinstance(json.loads((files / "out.jsonl").read_text().splitlines()[0])["prediction"], list)


def test_the_estimator_takes_and_gives_indicator_matrices(files, tiny_folder, tmp_path):
    from sklearn.metrics import accuracy_score

    frame = pd.read_csv(files / "labeled.csv", keep_default_na=False)
    targets = np.array([[name in cell.split("|") for name in ("game", "tool", "mail")] for cell in frame["label"]])
    texts = frame["text"].tolist()
    estimator = clozify.PetClassifier(
        files / "task.toml", model=str(tiny_folder("bert")), recipe="paper", settings=SETTINGS
    )
    assert estimator.__sklearn_tags__().classifier_tags.multi_label
    estimator.fit(texts, targets.astype(int))
    predicted, probabilities = estimator.predict(texts), estimator.predict_proba(texts)
    assert predicted.shape == probabilities.shape == (12, 3)
    assert estimator.classes_.tolist() == ["game", "tool", "mail"]
    assert estimator.score(texts, targets.astype(int)) == accuracy_score(targets, predicted)
    assert estimator.score(texts, frame["label"]) == accuracy_score(targets, predicted)
    estimator.save(tmp_path / "saved")
    assert (clozify.PetClassifier.load(tmp_path / "saved").predict(texts) == predicted).all()
    by_name = clozify.PetClassifier(**estimator.get_params()).fit(
        texts, pd.DataFrame(targets[:, ::-1].astype(int), columns=["mail", "tool", "game"])
    )
    np.testing.assert_allclose(by_name.predict_proba(texts), probabilities, atol=1e-6)
    with pytest.raises(ValueError, match="row 1 has no labels"):
        estimator.fit(texts[:2], [["game"], None])


def test_the_server_answers_with_lists_of_labels(run, files):
    from clozify.serving.model import ServedModel
    from tests.integration.serving import post, running

    run()
    predictions = clozify.load_run(files / "run", precision="float32").predict(["a game", "mail for all"])
    with running(ServedModel(files / "run", precision="float32")) as server:
        _, answer, _ = post(server.port, {"texts": ["a game", "mail for all"]})
        _, schema, _ = post(server.port, path="/openapi.json")
    assert [line["labels"] for line in answer["predictions"]] == predictions.label_sets
    assert set(answer["predictions"][0]["probabilities"]) == {"game", "tool", "mail"}
    assert '"labels": {"type": "array"' in json.dumps(schema)


def test_rows_to_label_next_are_not_taken_for_rows_without_labels(run, files):
    run()
    suggested = clozify.suggest(files / "run", 3, files / "next.csv", with_labeled=True)
    assert len(suggested.rows) == 3
    table = pd.read_csv(files / "next.csv", keep_default_na=False)
    assert table["label"].tolist()[-3:] == ["-"] * 3
    task = clozify.load_task(files / "task.toml")
    rows = clozify.read_rows(files / "next.csv", task)
    assert rows.is_labeled.tolist() == [True] * 12 + [False] * 3
    assert (rows.label_matrix[:12] == clozify.read_rows(files / "labeled.csv", task).label_matrix).all()


@pytest.mark.slow
def test_an_export_carries_the_thresholds(run, files):
    run()
    result = clozify.export(files / "run", data=files / "test.csv")
    assert result.agreement == 1
    exported = clozify.load_run(files / "run" / "onnx")
    texts = ["a game number 3", "mail for all"]
    original = clozify.load_run(files / "run", precision="float32")
    assert exported.decision == original.decision
    np.testing.assert_allclose(exported.predict(texts).probabilities, original.predict(texts).probabilities, atol=1e-4)


def test_a_new_head_starts_from_the_labels_frequencies(files, tiny_folder):
    """From 0.5 for each label, rare labels would take hundreds of steps."""
    from clozify.config.recipe import load_recipe
    from clozify.models.classifier import new_classifier

    task = clozify.load_task(files / "task.toml")
    classifier = new_classifier(str(tiny_folder("roberta")), task, load_recipe("quick"), "cpu")
    classifier.start_from(np.array([0.5, 0.01, 0.2]))
    bias = classifier.model.classifier.out_proj.bias.detach().numpy()
    np.testing.assert_allclose(1 / (1 + np.exp(-bias)), [0.5, 0.01, 0.2], rtol=1e-5)
