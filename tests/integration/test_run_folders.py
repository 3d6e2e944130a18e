"""What a run's folder keeps: each method's own results, nothing replaced unasked, nothing damaged taken for good."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app
from clozify.config.task import parse_task
from clozify.errors import RunError
from tests.integration.conftest import SETTINGS, TASK


@pytest.fixture
def finished(run, files):
    """A run trained by PET, then by supervised training on the same rows."""
    run()
    run(method="supervised", unlabeled=None)
    return files / "run"


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def test_a_second_method_keeps_its_own_results_and_leaves_the_first_one_s(run, files):
    run()
    names = ("metrics.json", "run.json", "ensemble.json", "labels.parquet", "report.html", "classifier/config.json")
    before = {name: (files / "run" / name).read_bytes() for name in names}
    weights = (files / "run" / "classifier" / "model.safetensors").read_bytes()
    run(method="supervised", unlabeled=None)
    assert {name: (files / "run" / name).read_bytes() for name in names} == before
    assert (files / "run" / "classifier" / "model.safetensors").read_bytes() == weights
    own = files / "run" / "methods" / "supervised"
    assert json.loads((own / "metrics.json").read_text())["method"] == "supervised"
    assert (own / "classifier" / "model.safetensors").read_bytes() != weights
    assert (own / "report.html").is_file()


def test_each_method_answers_for_itself_and_says_so(finished, files):
    test = files / "test.csv"
    for method, folder in (("pet", finished), ("supervised", finished / "methods" / "supervised")):
        result = command("evaluate", finished, "--data", test, "--method", method, "--json")
        assert result.exit_code == 0, result.output
        printed = json.loads(result.stdout)
        metrics = json.loads((folder / "metrics.json").read_text())
        expected = metrics["classifier" if method == "pet" else "supervised"]
        assert printed["accuracy"] == expected["accuracy_each"][0]
        assert printed["confusion"] == expected["confusion"]
        name = "PET" if method == "pet" else "supervised training"
        assert f"the classifier trained by {name} in {folder}" in result.stderr
    first = command("predict", finished, "--data", test)
    assert "trained by PET" in first.stderr
    assert "also has the results of 'supervised'" in first.stderr
    assert clozify.load_run(finished).method == "pet"
    by_folder = clozify.predict(finished / "methods" / "supervised", test)
    assert np.array_equal(by_folder.probabilities, clozify.load_run(finished, "supervised").predict(test).probabilities)


def test_a_method_that_the_run_was_not_trained_by_is_named(finished, files):
    result = command("predict", finished, "--data", files / "test.csv", "--method", "uda")
    assert isinstance(result.exception, RunError)
    assert "'pet' and 'supervised'" in str(result.exception)


def test_ipet_in_the_folder_of_pet_reuses_its_members(run, files):
    run()
    members = set((files / "run" / "members").iterdir())
    run(method="ipet", settings=[*SETTINGS, "ipet.d=2", "ipet.enough=15"])
    assert members < set((files / "run" / "members").iterdir())
    again = json.loads((files / "run" / "methods" / "ipet" / "metrics.json").read_text())
    assert {path.name for path in members} >= {job.split("/")[1] for job in again["generations"][0]["jobs"]}


def test_an_ensemble_in_the_folder_of_another_method_finds_its_members(run, files):
    run(method="supervised", unlabeled=None)
    metrics = run(unlabeled=None)
    again = clozify.load_run(files / "run", "pet").evaluate(files / "test.csv")
    assert again.accuracy == metrics["ensemble"]["accuracy"]


def test_finished_results_of_other_inputs_are_replaced_only_if_asked(run, files):
    run(replace=False)
    before = (files / "run" / "metrics.json").read_bytes()
    run(replace=False)  # the same inputs
    settings = [*SETTINGS, "distill.max_steps=7"]
    with pytest.raises(
        RunError, match=r"results of PET for other inputs \('recipe.distill.max_steps' differ\).*--repl"
    ):
        run(settings=settings, replace=False)
    assert (files / "run" / "metrics.json").read_bytes() == before
    assert run(settings=settings, replace=True)["run"] != json.loads(before)["run"]


def test_rows_that_only_moved_to_another_file_are_the_same_inputs(run, files):
    run(replace=False)
    shutil.copy(files / "labeled.csv", files / "moved.csv")
    run(labeled=files / "moved.csv", replace=False)
    changed = pd.read_csv(files / "test.csv")
    changed.loc[0, "label"] = 3 - changed.loc[0, "label"]
    changed.to_csv(files / "test.csv", index=False)
    with pytest.raises(RunError, match="'data.test.labels' differ"):
        run(replace=False)


def test_a_damaged_description_lets_no_other_method_replace_the_results(run, files):
    run()
    weights = (files / "run" / "classifier" / "model.safetensors").read_bytes()
    (files / "run" / "run.json").write_text("{")
    run(method="supervised", unlabeled=None, replace=False)  # metrics.json still tells the first method
    assert (files / "run" / "classifier" / "model.safetensors").read_bytes() == weights
    assert (files / "run" / "methods" / "supervised" / "metrics.json").is_file()


@pytest.mark.parametrize("damaged", [["run.json"], ["metrics.json"], ["run.json", "metrics.json"]])
def test_results_whose_inputs_cannot_be_told_are_not_replaced_unasked(run, files, damaged):
    run()
    weights = (files / "run" / "classifier" / "model.safetensors").read_bytes()
    for name in damaged:
        (files / "run" / name).write_text("{")
    if len(damaged) < 2:
        run(replace=False)  # the same inputs, by the file that is left
        for name in damaged:
            (files / "run" / name).write_text("{")
    with pytest.raises(RunError, match="--replace"):
        run(settings=[*SETTINGS, "seed=7"], replace=False)
    assert (files / "run" / "classifier" / "model.safetensors").read_bytes() == weights
    run(settings=[*SETTINGS, "seed=7"], replace=True)


def test_a_method_of_several_runs_is_refused(finished, files):
    result = command("report", finished, finished, "--method", "supervised")
    assert isinstance(result.exception, RunError)
    assert "methods/supervised" in str(result.exception)


@pytest.mark.parametrize("use", ["predict", "evaluate", "export", "report"])
def test_results_of_earlier_inputs_do_not_answer_while_the_run_is_unfinished(run, files, use):
    """As after a run that was started again with another task, and killed."""
    run()
    inputs = json.loads((files / "run" / "run.json").read_text())
    inputs["task"]["patterns"] = ["{text} {mask}"]
    (files / "run" / "run.json").write_text(json.dumps(inputs))
    data = ["--data", files / "test.csv"] if use in ("predict", "evaluate") else []
    result = command(use, files / "run", *data)
    assert isinstance(result.exception, RunError)
    assert "started again with other settings" in str(result.exception)


@pytest.mark.slow
def test_an_export_of_an_earlier_classifier_is_named(run, files):
    run()
    clozify.export(files / "run", data=files / "test.csv")
    assert clozify.load_run(files / "run" / "onnx").notes == []
    messages = []
    run(settings=[*SETTINGS, "distill.max_steps=7"], log=messages.append)
    assert any("onnx' was exported from an earlier classifier" in message for message in messages)
    (note,) = clozify.load_run(files / "run" / "onnx").notes
    assert "earlier classifier" in note
    clozify.export(files / "run", data=files / "test.csv")
    assert clozify.load_run(files / "run" / "onnx").notes == []


def damage(path, how):
    content = path.read_bytes()
    path.write_bytes(
        {"cut off": content[: len(content) // 2], "garbled": bytes(255 - byte for byte in content), "empty": b""}[how]
    )


@pytest.mark.parametrize(
    "how", ["cut off", pytest.param("garbled", marks=pytest.mark.slow), pytest.param("empty", marks=pytest.mark.slow)]
)
def test_whatever_is_damaged_in_a_run_is_made_again(run, files, how):
    """Every file of the jobs and of the results, damaged at once: the same command gives the same run."""
    metrics = run()
    folder = files / "run"
    kept = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".lock", "log.txt")]
    names = {"checksums.json", "tokenizer_config.json", "tokenizer.json", "config.json", "task.toml", "README.md"}
    before = {path: path.read_bytes() for path in kept}
    damaged = [path for path in kept if path.name not in names and path.stat().st_size > 3]
    assert {path.name for path in damaged} >= {
        "run.json", "metrics.json", "ensemble.json", "labels.parquet", "model.safetensors", "untrained.json",
        "classifier.json", "member.json", "unlabeled.npy", "test.npy",
    }  # fmt: skip
    for path in damaged:
        damage(path, how)
    messages = []
    assert run(log=messages.append) == metrics
    jobs = 7 + (folder / "wrong_rows.json").exists()  # 4 members, 2 classifiers, the untrained pairs; explanations
    assert sum("is damaged" in message for message in messages) == jobs
    for path in damaged:
        if path.name in ("test.npy", "unlabeled.npy", "model.safetensors", "labels.parquet", "metrics.json"):
            assert path.read_bytes() == before[path], path


@pytest.mark.parametrize("how", ["cut off", "garbled", "empty"])
@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("run.json", ["report", "suggest", "evaluate", "export"]),
        ("metrics.json", ["report", "suggest", "evaluate", "export"]),
        ("labels.parquet", ["report", "suggest"]),
        ("ensemble.json", ["report", "suggest"]),
        ("members/*/unlabeled.npy", ["suggest"]),
        ("members/*/member.json", ["report"]),
        ("wrong_rows.json", ["report"]),
    ],
)
def test_a_damaged_file_of_a_finished_run_is_named(finished_copy, files, name, uses, how):
    for path in finished_copy.glob(name):
        damage(path, how)
    for use in uses:
        data = ["--data", files / "test.csv"] if use == "evaluate" else []
        output = ["--output", files / "to-label.csv"] if use == "suggest" else []
        result = command(use, finished_copy, *data, *output)
        assert isinstance(result.exception, clozify.ClozifyError), (use, result.output, result.exception)
        assert name.rsplit("/", 1)[-1] in str(result.exception), (use, str(result.exception))


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory, tiny_folder):
    """One finished run for all tests that damage a copy of it."""
    folder = tmp_path_factory.mktemp("finished")
    words = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
    texts = [f"{words[number % 6]} number {number}" for number in range(60)]
    frame = pd.DataFrame({"label": [1 + number % 2 for number in range(60)], "text": texts})
    for name, rows in (("labeled", frame[:10]), ("unlabeled", frame[["text"]][10:40]), ("test", frame[40:])):
        rows.to_csv(folder / f"{name}.csv", index=False)
    data = {name: folder / f"{name}.csv" for name in ("labeled", "unlabeled", "test")}
    settings = [*SETTINGS, "repetitions=1"]
    clozify.train(parse_task(TASK), output=folder / "run", model=str(tiny_folder("bert")), settings=settings, **data)
    return folder / "run"


@pytest.fixture
def finished_copy(finished_once, tmp_path):
    return shutil.copytree(finished_once, tmp_path / "copy")
