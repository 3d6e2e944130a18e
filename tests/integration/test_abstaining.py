"""Rows without a prediction, prediction sets and out-of-scope scores: on the command line, over HTTP and in Python."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify import PetClassifier
from clozify.cli import app
from clozify.errors import RunError
from clozify.inference.abstaining import CONFIDENCE, OUT_OF_SCOPE, AbstainOptions
from clozify.inference.finished_run import FinishedRun
from clozify.inference.scope import scope_scores
from clozify.methods.scope import Scope
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier_folder import ONNX_FILE
from clozify.runs.reliability import RELIABILITY_FILE, Reliability
from clozify.runs.scope import SCOPE_FILE, load_scope, save_scope
from clozify.serving.model import ServedModel
from tests.integration.conftest import TASK
from tests.integration.serving import post, running, save_classifier

WORDS = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
TEXTS = [f"{WORDS[n % 6]} {WORDS[n % 5]} number {n}" for n in range(40)]
THREE = TASK.replace('2 = "great"', '2 = "great"\n3 = "okay"')


def write_record(folder, confidence, correct, true_probability=None):
    """A `reliability.json` as the end of a training writes it; lower, so that no row is exactly at a threshold."""
    confidence = np.asarray(confidence) - 1e-4
    true = np.where(correct, confidence, 1 - confidence) if true_probability is None else true_probability
    record = Reliability(
        rows=len(confidence),
        folds=5,
        accuracy=float(np.mean(correct)),
        low=0.0,
        high=1.0,
        temperature=1.0,
        confidence=list(map(float, confidence)),
        correct=list(map(bool, correct)),
        true_probability=list(map(float, true)),
    )
    (folder / RELIABILITY_FILE).write_text(record.model_dump_json(), encoding="utf-8")


@pytest.fixture(scope="module")
def bare(tiny_folder, tmp_path_factory):
    """A classifier without held-out scores."""
    return save_classifier(tiny_folder("bert"), THREE, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def folder(bare, tmp_path_factory):
    """A classifier with held-out scores like its own, the less confident half wrong, and with reference rows."""
    folder = shutil.copytree(bare, tmp_path_factory.mktemp("full"), dirs_exist_ok=True)
    run = FinishedRun(folder)
    predictions = run.predict(TEXTS)
    confidence = predictions.probabilities.max(axis=1)
    write_record(folder, confidence, confidence >= np.median(confidence))
    (_, _, states), *_ = run.loaded_classifier.embed_rows(predictions.rows, TOKENS_PER_BATCH["cpu"])
    save_scope(folder, Scope.fit(states[:, 1], np.arange(40) < 10))
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    pd.DataFrame({"text": TEXTS}).to_csv(path, index=False)
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_uncertain_rows_have_no_prediction_in_any_format(folder, rows, tmp_path):
    probabilities = FinishedRun(folder).predict(TEXTS).probabilities
    record = FinishedRun(folder).reliability
    contents = {}
    for suffix in ("csv", "jsonl", "parquet"):
        output = tmp_path / f"out.{suffix}"
        result = invoke("predict", folder, "--data", rows, "--max-risk", 0.1, "--sets", 0.8, "--output", output)
        assert result.exit_code == 0
        read = {
            "csv": lambda p: pd.read_csv(p, dtype={"prediction_set": str}),
            "jsonl": lambda p: pd.read_json(p, lines=True),
            "parquet": pd.read_parquet,
        }[suffix]
        contents[suffix] = read(output)
    (threshold,) = map(float, re.findall(r"confidence below ([\d.]+) get no prediction", result.stderr))
    line = re.search(
        r"chosen on 40 held-out.*risk of at most 10%: expected are predictions for (\d+).*right", result.stderr
    )
    assert line is not None
    for suffix, table in contents.items():
        is_abstained = table["abstained"].notna()
        assert 0 < is_abstained.sum() < 40
        assert set(table["abstained"].dropna()) == {CONFIDENCE}
        assert table["prediction"].isna().tolist() == is_abstained.tolist()
        assert (probabilities.max(axis=1)[is_abstained.to_numpy()] < threshold + 1e-3).all()
        assert table["probability_1"].to_numpy() == pytest.approx(probabilities[:, 0], abs=1e-4)
        assert f"here {is_abstained.sum()} of 40 rows" in result.stderr
        sets = [cell.split("|") if suffix == "csv" else list(cell) for cell in table["prediction_set"].astype(object)]
        assert all(len(labels) >= 1 for labels in sets)
    assert record is not None
    lowest = sorted(record.true_probability)[8 - 1]  # floor(0.2 * 41)
    expected = [[str(1 + i) for i in range(3) if p[i] >= lowest or i == p.argmax()] for p in probabilities]
    assert [list(cell) for cell in contents["parquet"]["prediction_set"]] == expected


def test_what_is_printed_says_why_a_row_has_no_prediction(folder):
    texts = [argument for text in TEXTS[:12] for argument in ("--text", text)]
    result = invoke("predict", folder, *texts, "--coverage", 0.5, "--sets", 0.9, "--top", 1)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["abstained"] for line in lines} <= {CONFIDENCE, None}
    assert all((line["prediction"] is None) == (line["abstained"] is not None) for line in lines)
    assert all(set(line["prediction_set"]) <= {"1", "2", "3"} for line in lines)
    assert "for a coverage of 50%: expected are predictions for" in result.stderr


def test_a_given_threshold_needs_no_held_out_rows(bare, folder):
    confidence = clozify.predict(bare, TEXTS[:1]).probabilities.max()
    unknown = invoke("predict", bare, "--text", TEXTS[0], "--min-confidence", (1 + confidence) / 2)
    assert json.loads(unknown.stdout)["abstained"] == CONFIDENCE
    assert "accuracy of the others is unknown" in unknown.stderr
    expected = invoke("predict", folder, "--text", TEXTS[0], "--min-confidence", 0.4)
    assert "by 40 held-out labelled rows are predictions for" in expected.stderr
    nothing = invoke("predict", folder, "--text", TEXTS[0], "--min-confidence", 1)
    assert "none of 40 held-out labelled rows was as confident" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-risk", 0.1, "--coverage", 0.8], "--max-risk and --coverage each set the threshold"),
        (["--min-confidence", 0.1, "--coverage", 0.8], "--min-confidence and --coverage each set the threshold"),
        (["--max-risk", 1.5], "--max-risk takes a number above 0 and below 1, not 1.5"),
        (["--sets", 0], "--sets takes a number above 0 and below 1, not 0"),
        (["--reject-out-of-scope", 2], "--reject-out-of-scope takes a number"),
        (["--max-risk", 0.01], "no threshold promises a risk of at most 1%; use --max-risk 0.0"),
        (["--sets", 0.99], "take 99 held-out labelled rows or more, and the run has 40"),
        (["--reject-out-of-scope", 0.01], "takes the scores of 99 rows of the training or more"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(folder, arguments, message):
    result = invoke("predict", folder, "--text", "a", *arguments)
    assert message in str(result.exception)
    assert len(result.exception.problems) == 1
    assert str(result.exception).count(". ") == 0


@pytest.mark.parametrize("option", ["--max-risk", "--coverage", "--sets"])
def test_without_held_out_scores_thresholds_are_refused(bare, option):
    result = invoke("predict", bare, "--text", "a", option, 0.5)
    assert f"{option} needs held-out scores of labelled rows" in str(result.exception)
    assert "or use --min-confidence" in str(result.exception)


def test_out_of_scope_scores_need_a_classifiers_own_states(bare, folder, tmp_path):
    with pytest.raises(RunError, match=r"has no scope\.safetensors"):
        clozify.predict(bare, ["a"], reject_out_of_scope=True)
    export = shutil.copytree(folder, tmp_path / "onnx")
    (export / ONNX_FILE).touch()
    with pytest.raises(RunError, match="which the ONNX export in .* does not return"):
        FinishedRun(export).abstainer(AbstainOptions(reject_out_of_scope=True))


def test_rows_unlike_the_training_are_rejected(folder, rows, tmp_path):
    """The rows of the training themselves are near; a text of other words is not, whatever its probability."""
    result = invoke("predict", folder, "--data", rows, "--output", tmp_path / "o.csv", "--reject-out-of-scope")
    table = pd.read_csv(tmp_path / "o.csv")
    assert table["out_of_scope"].to_numpy() == pytest.approx(0, abs=0.02)
    assert table["abstained"].isna().all()
    assert "which 5% of 30 rows of the training have" in result.stderr
    scope = load_scope(folder)
    others = ["utility " * 9, *TEXTS[:3]]
    predictions = clozify.predict(folder, others, reject_out_of_scope=0.2)
    run = FinishedRun(folder)
    assert scope_scores(run, predictions.rows) == pytest.approx(predictions.out_of_scope, abs=1e-6)
    assert predictions.out_of_scope.argmax() == 0
    expected = [OUT_OF_SCOPE if score > scope.threshold(0.2) else None for score in predictions.out_of_scope]
    assert predictions.abstained == expected
    assert [label is None for label in predictions.labels] == [reason is not None for reason in expected]
    assert clozify.predict(folder, others, reject_out_of_scope=False).out_of_scope is None


def test_the_option_may_stand_before_others(folder):
    for arguments in (["--reject-out-of-scope", "--text", "a"], ["--text", "a", "--reject-out-of-scope", "0.2"]):
        result = invoke("predict", folder, *arguments)
        assert "out_of_scope" in json.loads(result.stdout)


def test_states_come_with_the_same_scores(folder):
    run = FinishedRun(folder)
    rows, classifier = run.predict(TEXTS).rows, run.loaded_classifier
    ((_, scores),) = classifier.score_rows(rows, 200)
    ((_, again, states),) = classifier.embed_rows(rows, 200)
    assert again == pytest.approx(scores, abs=1e-5)
    tokenizer, model = classifier.tokenizer.hf_tokenizer, classifier.model
    for index in (0, 7):
        hidden = model.base_model(**tokenizer(TEXTS[index], return_tensors="pt"))[0][0].detach().numpy()
        assert states[index, 0] == pytest.approx(hidden[0], abs=1e-4)
        assert states[index, 1] == pytest.approx(hidden.mean(axis=0), abs=1e-4)


def test_the_server_says_which_texts_have_no_prediction(folder):
    options = AbstainOptions(max_risk=0.1, sets=0.8, reject_out_of_scope=0.2)
    texts = ["utility " * 9, *TEXTS]
    expected = clozify.predict(folder, texts, max_risk=0.1, sets=0.8, reject_out_of_scope=0.2)
    with running(ServedModel(folder, options=options)) as server:
        answer = post(server.port, {"texts": texts})[1]["predictions"]
        assert [line["label"] for line in answer] == expected.labels
        assert [line["abstained"] for line in answer] == expected.abstained
        assert [line["prediction_set"] for line in answer] == expected.sets
        assert [line["out_of_scope"] for line in answer] == pytest.approx(expected.out_of_scope, abs=1e-4)
        metrics = post(server.port, path="/metrics")[1]
        for reason in (CONFIDENCE, OUT_OF_SCOPE):
            count = expected.abstained.count(reason)
            assert f'clozify_abstained_texts_total{{reason="{reason}"}} {count:.1f}' in metrics
        schema = post(server.port, path="/openapi.json")[1]["paths"]["/predict"]["post"]["responses"]["200"]
        prediction = schema["content"]["application/json"]["schema"]["properties"]["predictions"]["items"]
        assert prediction["properties"]["label"]["enum"] == ["1", "2", "3", None]
        assert set(answer[0]) == set(prediction["required"])
        assert "confidence below" in post(server.port, path="/health")[1]["abstaining"][0]
        assert "get no prediction" in post(server.port, path="/docs")[1]


def test_a_plain_server_answers_as_before(folder):
    with running(ServedModel(folder)) as server:
        (line,) = post(server.port, {"text": "a"})[1]["predictions"]
        assert set(line) == {"label", "probabilities"}
        assert "abstaining" not in post(server.port, path="/health")[1]


STEPS = ["repetitions=1", "max_seq_length=24", "finetune.max_steps=2", "finetune_without_lm.max_steps=2"]
STEPS += ["distill.max_steps=2", "supervised.max_steps=2"]


@pytest.mark.parametrize("method", ["pet", "supervised"])
def test_a_trained_classifier_has_its_reference_rows(method, start_run, files):
    unlabeled = files / "unlabeled.csv" if method == "pet" else None
    result = start_run(method=method, unlabeled=unlabeled, test=None, settings=STEPS)
    assert result.classifier is not None
    scope = load_scope(result.classifier)
    assert len(scope.vectors) == (60 if method == "pet" else 10)
    assert len(scope.in_scope) == (50 if method == "pet" else 0)
    copied = shutil.copytree(result.classifier, files / "copied")
    assert (copied / SCOPE_FILE).is_file()
    run = FinishedRun(copied)
    scores = scope_scores(run, run.predict(["a fine game number 3", "data"]).rows)
    assert ((scores >= -1e-3) & (scores <= 2)).all()


def test_the_threshold_of_a_supervised_classifier_is_from_rows_that_its_models_were_not_trained_on(start_run, files):
    """Rows that a classifier was trained on are closer to each other than new ones."""
    settings = [*STEPS, "estimate.folds=5"]
    result = start_run(method="supervised", unlabeled=None, test=None, settings=settings)
    jobs = [np.load(path) for path in (files / "run" / "classifiers").glob("*/held_out_scope.npy")]
    assert [len(scores) for scores in jobs] == [2] * 5
    assert load_scope(result.classifier).in_scope == pytest.approx(np.sort(np.concatenate(jobs)))
    (kept,) = (files / "run" / "classifiers").glob(f"*/model/{SCOPE_FILE}")
    assert len(load_scope(kept.parent).in_scope) == 0  # the job's own file stays as it was


@pytest.mark.parametrize("method", ["supervised", "pet", "frozen"])
def test_without_unlabelled_rows_the_labelled_ones_are_the_reference(method, start_run, files):
    """A classifier of the supervised baseline, and ensembles of fine-tuned members and of label vectors."""
    start_run(method=method, unlabeled=None, test=None, settings=STEPS)
    run = FinishedRun(files / "run", precision="float32")
    texts = [line.split(",", 1)[1] for line in (files / "labeled.csv").read_text().splitlines()[1:]]
    own, other = clozify.predict(run, texts, reject_out_of_scope=0.2), "0 1 2 3 4 5 6 7 8 9 ; ; ; ; ; ;"
    assert own.out_of_scope == pytest.approx(0, abs=0.02)  # each is a reference row itself
    assert own.abstained == [None] * len(texts)
    result = invoke("predict", files / "run", "--text", other, "--reject-out-of-scope", 0.2)
    assert "which 20% of 10 rows of the training have" in result.stderr
    assert json.loads(result.stdout)["out_of_scope"] > own.out_of_scope.max()
    with pytest.raises(RunError, match="takes the scores of 19 rows of the training or more, and .* has those of 10"):
        clozify.predict(run, texts, reject_out_of_scope=True)
    served = ServedModel(files / "run", precision="float32", options=AbstainOptions(reject_out_of_scope=0.2))
    expected = clozify.predict(run, [other, texts[0]], reject_out_of_scope=0.2)
    assert served.scores({"text": [other, texts[0]]})[:, -1] == pytest.approx(expected.out_of_scope, abs=1e-4)


def test_the_reference_of_an_ensemble_are_the_states_of_its_heaviest_member(start_run, files):
    start_run(unlabeled=None, test=None, settings=STEPS)
    run = FinishedRun(files / "run")
    weights = json.loads((files / "run" / "ensemble.json").read_text())["weights"]
    heaviest = max(weights, key=lambda member: member["weight"])["member"]
    assert run.ensemble.loader.scope_folder.parent.name == heaviest
    member = run.ensemble.loader.load_scope_member()
    rows = run.predict(["a fine game number 3", "data"]).rows
    scope = load_scope(files / "run" / "members" / heaviest / "model")
    assert scope_scores(run, rows) == pytest.approx(scope.scores(member.states(rows)), abs=1e-5)
    (run.ensemble.loader.scope_folder / SCOPE_FILE).unlink()
    with pytest.raises(RunError, match=r"The ensemble in .* has no scope\.safetensors"):
        clozify.predict(run, ["a"], reject_out_of_scope=0.2)


@pytest.fixture(scope="module")
def fitted(tiny_folder):
    """An estimator with held-out scores written by hand."""
    task = {
        "fields": ["text"],
        "labels": {"yes": "great", "no": "bad"},
        "patterns": ["It was {mask}. {text}"],
    }
    labels = ["yes", "no"] * 6
    estimator = PetClassifier(task, model=str(tiny_folder("bert")), recipe="paper", settings=STEPS, unlabeled=TEXTS)
    estimator.fit(TEXTS[:12], labels)
    confidence = estimator.predict_proba(TEXTS).max(axis=1)
    write_record(estimator.run_, confidence, confidence >= np.median(confidence))
    return estimator


def test_the_estimator_answers_its_abstain_label(fitted):
    sure = fitted.predict(TEXTS)
    threshold = float(np.median(fitted.predict_proba(TEXTS).max(axis=1)))
    below = fitted.predict_proba(TEXTS).max(axis=1) < threshold
    fitted.set_params(min_confidence=threshold)
    abstained = fitted.predict(TEXTS)
    assert abstained.dtype == object
    assert [label is None for label in abstained] == below.tolist()
    assert (abstained[~below] == sure[~below]).all()
    assert fitted.score(TEXTS, sure) == 1
    fitted.set_params(abstain_label="unknown")
    assert fitted.predict(TEXTS).dtype.kind == "U"
    assert (fitted.predict(TEXTS) == "unknown").tolist() == below.tolist()
    fitted.set_params(min_confidence=None, abstain_label=None)
    assert (fitted.predict(TEXTS) == sure).all()


def test_the_estimator_has_prediction_sets_and_keeps_the_held_out_scores(fitted, tmp_path):
    sets = fitted.predict_set(TEXTS, level=0.6)
    assert sets.shape == (40, 2)
    assert (sets.sum(axis=1) >= 1).all()
    fitted.save(tmp_path / "saved")
    loaded = PetClassifier.load(tmp_path / "saved")
    assert (loaded.predict_set(TEXTS, level=0.6) == sets).all()
    loaded.set_params(max_risk=0.2, coverage=0.5)
    with pytest.raises(ValueError, match="each set the threshold"):
        loaded.fit(TEXTS[:4], ["yes", "no"] * 2)


@pytest.fixture
def several(tiny_folder, tmp_path):
    """A classifier for several labels a row, with held-out scores like its own, the less confident half wrong."""
    task = TASK.replace('fields = ["text"]', 'fields = ["text"]\nmultilabel = true')
    folder = save_classifier(tiny_folder("bert"), task, tmp_path / "several")
    config = json.loads((folder / "config.json").read_text())
    probabilities = FinishedRun(save_thresholds(folder, config, 0.5, 0.5)).predict(TEXTS).probabilities
    save_thresholds(folder, config, *np.median(probabilities, axis=0))
    confidence = FinishedRun(folder).decision.confidence(probabilities)
    write_record(folder, confidence, confidence >= np.median(confidence), probabilities.min(axis=1))
    return folder


def save_thresholds(folder, config, first, second):
    content = config | {"thresholds": {"1": float(first), "2": float(second)}}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_rows_with_several_labels_are_abstained_from_by_the_probability_of_all_of_them(several, rows, tmp_path):
    run = FinishedRun(several)
    predictions = clozify.predict(run, TEXTS, max_risk=0.1, sets=0.8)
    thresholds = np.array(run.decision.thresholds)
    predicted = predictions.probabilities >= thresholds
    confidence = np.where(predicted, predictions.probabilities, 1 - predictions.probabilities).prod(axis=1)
    result = invoke(
        "predict", several, "--data", rows, "--max-risk", 0.1, "--sets", 0.8, "--output", tmp_path / "o.csv"
    )
    (threshold,) = map(float, re.findall(r"confidence below ([\d.]+) get no prediction", result.stderr))
    is_abstained = [reason is not None for reason in predictions.abstained]
    assert 0 < sum(is_abstained) < 40
    assert is_abstained == (confidence < run.abstainer(AbstainOptions(max_risk=0.1)).threshold).tolist()
    assert threshold == pytest.approx(run.abstainer(AbstainOptions(max_risk=0.1)).threshold, abs=1e-3)
    assert "of them with all labels right" in result.stderr
    lowest = sorted(run.reliability.true_probability)[8 - 1]  # floor(0.2 * 41)
    expected = (predictions.probabilities >= lowest) | predicted
    assert predictions.sets == [[name for name, is_in in zip("12", row, strict=True) if is_in] for row in expected]
    assert "Prediction sets, with the predicted labels and all others of a probability of at least" in result.stderr
    assert "contain all true labels for 80% of the rows" in result.stderr
    table = pd.read_csv(tmp_path / "o.csv", keep_default_na=False)
    assert table["prediction_set"].tolist() == ["|".join(labels) for labels in predictions.sets]
    assert (table["abstained"] == CONFIDENCE).tolist() == is_abstained


def test_the_server_has_sets_of_several_labels(several):
    options = AbstainOptions(coverage=0.5, sets=0.8)
    expected = clozify.predict(several, TEXTS[:8], coverage=0.5, sets=0.8)
    with running(ServedModel(several, options=options)) as server:
        answer = post(server.port, {"texts": TEXTS[:8]})[1]["predictions"]
        schema = json.dumps(post(server.port, path="/openapi.json")[1])
    assert [line["prediction_set"] for line in answer] == expected.sets
    assert [line["abstained"] for line in answer] == expected.abstained
    assert [line["labels"] for line in answer] == expected.answers.keep(
        expected.decision.name_lists(expected.decision.predict(expected.probabilities))
    )
    assert '"minItems": 0' in schema


def test_the_estimator_refuses_to_leave_rows_with_several_labels_out(tiny_folder):
    task = {"name": "x", "fields": ["text"], "multilabel": True, "patterns": ["{mask} {text}"]}
    task |= {"labels": {"a": "good", "b": "bad"}}
    estimator = PetClassifier(task, model=str(tiny_folder("bert")), max_risk=0.1)
    with pytest.raises(ValueError, match=r"cannot leave rows out; remove 'max_risk', or use clozify\.predict"):
        estimator.fit(["x", "y"], [["a"], ["b"]])
