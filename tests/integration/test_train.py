"""Training as a person starts it, with a tiny model: what a run leaves, that it resumes, that it is the same again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clozify.errors import ClozifyError
from clozify.runs.folder import RunFolder
from tests.integration.checks import assert_metrics_are_those_of_the_scores
from tests.integration.conftest import SETTINGS, TASK


def scores(folder: Path) -> dict[str, np.ndarray]:
    return {str(path.relative_to(folder)): np.load(path) for path in sorted(folder.rglob("*.npy"))}


def test_a_run_leaves_the_classifier_the_soft_labels_and_the_numbers(run, files):
    metrics = run()
    folder = files / "run"
    assert_metrics_are_those_of_the_scores(folder, files / "test.csv")
    assert metrics["unsupervised"]["best"] == max(pair["accuracy"] for pair in metrics["unsupervised"]["pairs"])
    assert len(metrics["members"]["each"]) == 4  # two pairs, two seeds
    for member in metrics["members"]["each"]:
        assert np.sum(member["confusion"]) == 40
        assert np.trace(member["confusion"]) == pytest.approx(40 * member["accuracy"])
        assert member["labels"]["2"].keys() >= {"precision", "recall"}
    assert len(metrics["classifier"]["accuracy_each"]) == 2
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    labels = pd.read_parquet(folder / "labels.parquet")
    assert labels["id"].tolist() == list(range(50))
    assert np.allclose(labels[["probability_1", "probability_2"]].sum(axis=1), 1, atol=1e-5)
    assert not [path for path in folder.rglob("*") if path.suffix in (".pt", ".bin", ".pkl")]
    assert len(list(folder.rglob("model.safetensors"))) == 2  # the kept classifier, under two names


def test_the_soft_labels_are_the_members_scores_combined_as_in_the_paper(run, files):
    run()
    folder = files / "run"
    total, weight = 0.0, 0.0
    for member in json.loads((folder / "ensemble.json").read_text())["weights"]:
        total = total + member["weight"] * np.load(folder / "members" / member["member"] / "unlabeled.npy")
        weight += member["weight"]
    s = total / weight / 2  # T = 2
    q = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
    result = pd.read_parquet(folder / "labels.parquet")[["probability_1", "probability_2"]].to_numpy()
    assert np.allclose(result, q, atol=1e-5)


def test_the_classifier_is_an_ordinary_hugging_face_folder(run, files):
    from transformers import pipeline

    from clozify.inference.finished_run import predict

    run()
    predictions = predict(files / "run", files / "test.csv", files / "p.csv")
    rows, probabilities = predictions.rows, predictions.probabilities
    classify = pipeline("text-classification", model=str(files / "run" / "classifier"), top_k=None)
    for text, shares in zip(rows.texts("text", 0, 5), probabilities, strict=False):
        by_name = {result["label"]: result["score"] for result in classify([text])[0]}
        assert [by_name["1"], by_name["2"]] == pytest.approx(shares.tolist(), abs=1e-4)
    assert classify.tokenizer.model_max_length == 40


def test_a_classifier_of_two_fields_takes_the_second_as_a_text_pair(run, files):
    from transformers import pipeline

    from clozify.inference.finished_run import predict

    for name in ("labeled", "unlabeled", "test"):
        frame = pd.read_csv(files / f"{name}.csv")
        frame.assign(title=[f"{number} data" for number in range(len(frame))]).to_csv(
            files / f"{name}.csv", index=False
        )
    patterns = 'fields = ["title", "text"]\npatterns = ["It was {mask}. {title} {text}"]'
    kept = [line for line in (files / "task.toml").read_text().splitlines() if not line.startswith(("fields", "patt"))]
    (files / "task.toml").write_text("\n".join([patterns, *kept]))
    run()
    predictions = predict(files / "run", files / "test.csv", files / "p.csv")
    rows, probabilities = predictions.rows, predictions.probabilities
    classify = pipeline("text-classification", model=str(files / "run" / "classifier"), top_k=None)
    texts = zip(rows.texts("title", 0, 5), rows.texts("text", 0, 5), strict=True)
    for (title, text), shares in zip(texts, probabilities, strict=False):
        by_name = {result["label"]: result["score"] for result in classify({"text": title, "text_pair": text})}
        assert [by_name["1"], by_name["2"]] == pytest.approx(shares.tolist(), abs=1e-4)


def test_without_unlabelled_data_the_result_is_the_ensemble_itself(run, files):
    from clozify.inference.finished_run import evaluate

    metrics = run(unlabeled=None)
    assert "classifier" not in metrics
    again = evaluate(files / "run", files / "test.csv")
    assert again.accuracy == metrics["ensemble"]["accuracy"]
    assert again.confusion == metrics["ensemble"]["confusion"]


def test_the_supervised_baseline_is_a_run_of_its_own(run, files):
    metrics = run(method="supervised", unlabeled=None)
    assert set(metrics) >= {"supervised", "method", "rows"}
    assert (files / "run" / "classifier" / "config.json").exists()


def test_the_same_run_twice_gives_the_same_scores_to_the_bit(run, files):
    run("a")
    run("b")
    first, second = scores(files / "a"), scores(files / "b")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_changed_pattern_redoes_only_its_members(run, files):
    run()
    before = {path.name for path in (files / "run" / "members").iterdir()}
    (files / "task.toml").write_text(TASK.replace("Just {mask}!", "So {mask}!"))
    run()
    after = {path.name for path in (files / "run" / "members").iterdir()}
    assert len(after) == 6
    assert len(after & before) == 4


def test_distillation_alone_is_done_again_when_only_its_settings_change(run, files):
    run()
    lines = []
    run(settings=[*SETTINGS, "distill.max_steps=7"], log=lines.append)
    assert sum("already done" in line for line in lines) == 4
    assert sum(line.startswith("classifier") for line in lines) == 2


def test_distillation_can_be_added_to_a_finished_ensemble(run, files):
    """Members whose weights were kept score like others: to train them again would be for nothing."""
    run(settings=[*SETTINGS, "distillation=false"])
    lines = []
    run(log=lines.append)
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")
    assert sum("already done" in line for line in lines) == 4


def test_another_seed_on_the_same_folder_finds_or_makes_all_it_needs(run, files):
    """The second repetition's weights are not kept; as the first of another run they are wanted."""
    run()
    run(settings=[*SETTINGS, "seed=43"])
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")
    assert (files / "run" / "classifier" / "model.safetensors").exists()


def test_a_plan_says_what_a_run_costs_and_writes_nothing(files, tiny_folder, capsys, monkeypatch):
    from clozify import cli

    command = [
        "clozify",
        "train",
        "task.toml",
        "--labeled",
        "labeled.csv",
        "--unlabeled",
        "unlabeled.csv",
        "--test",
        "test.csv",
    ]
    command += ["--output", "run", "--recipe", "paper", "--model", str(tiny_folder("bert")), "--plan", "--json"]
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    cost = json.loads(capsys.readouterr().out)
    assert not end.value.code
    assert (cost["members"], cost["steps_a_member"], cost["rows_to_score_a_member"]) == (6, 1000, 90)
    assert (cost["classifiers"], cost["steps_a_classifier"]) == (3, 5000)
    assert cost["seconds"] > 0
    assert not (files / "run").exists()


def test_everything_that_was_said_is_in_the_log(run, files):
    lines = []
    run(log=lines.append)
    log = (files / "run" / "log.txt").read_text()
    assert lines
    assert all(line in log for line in lines)


def test_what_turns_out_on_the_way_is_said_and_kept_with_the_numbers(run, files, monkeypatch):
    """All members at weight 0 would be a division by zero; as equals they are another ensemble than was asked for."""
    from clozify.pipeline import train as pet

    evaluate = pet.evaluate_untrained

    def all_wrong(run):
        untrained, key = evaluate(run)
        return untrained.model_copy(update={"accuracy_on_labeled": [0.0, 0.0]}), key

    monkeypatch.setattr(pet, "evaluate_untrained", all_wrong)
    lines = []
    result = run(log=lines.append)
    messages = "Every pair's accuracy on the labelled rows is 0 before training: all members weigh the same."
    assert messages in result["warnings"]
    assert f"note: {messages}" in lines
    assert messages in (files / "run" / "log.txt").read_text()
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")


def test_a_second_process_on_the_same_folder_is_refused(files):
    with RunFolder(files / "run"), pytest.raises(ClozifyError, match="Another process is working"):
        RunFolder(files / "run")


def test_a_folder_of_something_else_is_refused(run, files):
    (files / "mine").mkdir()
    (files / "mine" / "thesis.txt").write_text("do not lose")
    with pytest.raises(ClozifyError, match=r"holds 'thesis.txt' but no run"):
        run("mine")


def test_a_run_killed_while_it_was_choosing_how_many_models_to_train_goes_on(run, files):
    (files / "run" / "workers").mkdir(parents=True)
    (files / "run" / "workers" / "0.txt").write_text("a trial")
    run(method="supervised")
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")


def test_the_unlabelled_data_never_holds_labelled_or_test_rows_unless_asked(run, files):
    everything = pd.concat([pd.read_csv(files / f"{name}.csv") for name in ("labeled", "unlabeled", "test")])
    everything[["text"]].to_csv(files / "all.csv", index=False)
    lines = []
    assert run(unlabeled=files / "all.csv", log=lines.append)["rows"]["unlabeled"] == 50
    assert any("50 unlabelled rows" in line for line in lines)
    assert run("other", unlabeled=files / "all.csv", allow_overlap=True)["rows"]["unlabeled"] == 100


def test_a_loss_that_is_no_number_stops_with_a_sentence_and_a_folder_that_resumes(run, files):
    with pytest.raises(ClozifyError, match="The loss is nan.*lower the learning rate"):
        run(settings=[*SETTINGS, "finetune.learning_rate=1e30", "finetune.max_steps=30"])
    assert not list((files / "run").rglob("*.part"))
    run()
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [[("members", 1)], [("members", 1), ("members", 3), ("classifiers", 1)]],
    ids=["once", "three times"],
)
def test_killed_at_any_point_and_started_again_a_run_ends_with_the_same_scores(run, files, tiny_folder, kills):
    """Half a member that counted as whole would spoil the ensemble without a word."""
    run("whole")
    command = [
        sys.executable,
        "-m",
        "clozify",
        "train",
        "task.toml",
        "--labeled",
        "labeled.csv",
        "--unlabeled",
        "unlabeled.csv",
    ]
    command += ["--test", "test.csv", "--output", "killed", "--recipe", "paper", "--model", str(tiny_folder("bert"))]
    command += [word for setting in SETTINGS for word in ("--set", setting)]
    killed = files / "killed"
    for kind, count in kills:
        process = subprocess.Popen(
            command, cwd=files, env=os.environ | {"PYTHONHASHSEED": "0"}, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while len([p for p in killed.glob(f"{kind}/*") if not p.name.startswith(".")]) < count:
            assert time.monotonic() < deadline
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, cwd=files, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "already done" in done.stderr
    first, second = scores(files / "whole"), scores(killed)
    assert [name for name in first.keys() & second.keys() if not np.array_equal(first[name], second[name])] == []
    assert first.keys() == second.keys()
