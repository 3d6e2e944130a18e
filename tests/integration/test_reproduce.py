"""`clozify reproduce` as a person types it, on the sample data and a made-up x-stance, with a tiny model."""

import json
import re
import sys

import numpy as np
import pytest

from tests import tiny
from tests.unit.reproduce.test_data import stance, write_jsonl

FEW = "repetitions=1 max_seq_length=24 finetune.max_steps=2 finetune_without_lm.max_steps=2 distill.max_steps=2".split()
FEW += "supervised.max_steps=2 ipet.generations=1 ipet.enough=60 words.k=2 words.i_max=1 words.candidates=40".split()
FEW += "pretrain.max_steps=2 pretrain.block_size=16".split()
EPOCHS = [f"{part}.num_train_epochs=0.5" for part in ("finetune", "finetune_without_lm", "distill", "supervised")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny multilingual model that has the words of the sample task and of x-stance."""
    from clozify.config.task import load_task

    words = [word for words in load_task("debian").verbalizers[0].words.values() for word in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "WORDS", [*tiny.WORDS, "Ja", "Nein", "Oui", "Non", *words])
        return tiny.make_model("bert", tmp_path_factory.mktemp("multilingual"))


@pytest.fixture
def run(capsys, monkeypatch, tmp_path, model):
    """Run the command in this process: (exit status, stdout, stderr)."""
    from clozify import cli

    monkeypatch.chdir(tmp_path)

    def command(*words, few=FEW, model=model):
        inputs = [part for setting in few for part in ("--set", setting)]
        monkeypatch.setattr(sys, "argv", ["clozify", "reproduce", *map(str, words), "--model", str(model), *inputs])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return command


SAMPLE = ["--tasks", "sample", "--unlabeled-per-label", "4", "--test-rows", "30", "--output", "out"]


def values(out):
    return {(p["group"], p["row"], p["column"]): p["value"] for p in json.loads(out)["cells"]}


def test_table_4_runs_on_the_sample_data_shares_members_and_resumes(run, tmp_path):
    """A table that trained the same members for every row would cost a day more for nothing."""
    status, out, err = run("table4", *SAMPLE, "--examples", 28, "--json")
    assert status == 0, err
    results = values(out)
    rows = ["min", "max", "PET (no distillation)", "PET uniform", "PET weighted"]
    assert all(0 <= results["", row, "sample"] <= 100 for row in rows)
    assert results["", "min", "sample"] <= results["", "max", "sample"]
    assert results["", "min", "Yelp"] is None
    folder = tmp_path / "out" / "runs"
    assert len(list(folder.glob("*/members/*/member.json"))) == 6  # one a pattern, for both cells
    assert len(re.findall("member .* already done", err)) == 6
    (metrics,) = folder.glob("*/metrics.json")
    of_run = json.loads(metrics.read_text())  # of the last cell, the uniform one
    assert results["", "PET uniform", "sample"] == pytest.approx(100 * of_run["classifier"]["accuracy"])
    assert results["", "min", "sample"] == pytest.approx(100 * of_run["members"]["min"])
    assert results["", "max", "sample"] == pytest.approx(100 * of_run["members"]["max"])
    text = (tmp_path / "out" / "table4.md").read_text()
    assert "| PET weighted | not run |" in text
    assert "at most 4 rows per label" in text
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    status, again, err = run("table4", *SAMPLE, "--examples", 28, "--json")
    assert status == 0
    assert values(again) == results
    assert "loss" not in err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == written


@pytest.mark.slow
def test_a_cell_of_one_table_is_the_same_cell_in_another(run, tmp_path):
    """Table 4's weighted PET is table 1's, and iPET's first generation is PET's members."""
    status, out, err = run("table1", *SAMPLE, "--examples", 28, "--methods", "pet,ipet", "--json")
    assert status == 0, err
    results = values(out)
    assert {row for (_, row, _), value in results.items() if value is not None} == {"PET", "iPET"}
    generations = [line for line in err.splitlines() if "generation 0, member" in line]
    assert len(generations) == 6
    assert all("already done" in line for line in generations)
    status, out, err = run("table4", *SAMPLE, "--examples", 28, "--json")
    assert "cell 1/2: sample, 28 examples, PET (weighting=weighted)  already done" in err
    assert values(out)["", "PET weighted", "sample"] == results["|T| = 28", "PET", "sample"]


def test_a_command_that_was_stopped_goes_on_where_it_was(run, tmp_path, monkeypatch):
    """Hours of members must not be lost because the last step was not reached."""

    def stop(*inputs):
        raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("clozify.pipeline.train.train_classifier", stop)
        status, _, err = run("table4", *SAMPLE, "--examples", 28)
    assert status == 2
    assert not (tmp_path / "out" / "table4.md").exists()
    assert not (tmp_path / "out" / "cells").exists()
    status, _, err = run("table4", *SAMPLE, "--examples", 28)
    assert status == 0
    assert len(re.findall("member .* already done", err)) == 12
    assert not re.search("member .* loss", err)


def test_pairs_without_training_fill_lines_1_and_2_of_table_1_uncalibrated(run, model):
    """As in the paper: `clozify zero-shot` calibrates these rows by default, which changes both numbers."""
    import clozify
    from clozify.data.rows import read_rows
    from clozify.reproduce.datasets import subsample

    status, out, err = run("table1", *SAMPLE, "--methods", "unsupervised", "--json")
    assert status == 0, err
    results = values(out)
    shown = [results["|T| = 0", f"unsupervised ({kind})", "sample"] for kind in ("avg", "max")]
    rows = subsample(read_rows("builtin:test", clozify.load_task("debian")), 30)
    raw, default = (clozify.zero_shot("debian", rows, model, None, how, None, 24) for how in (False, None))
    assert shown == pytest.approx([100 * raw.accuracy.mean, 100 * raw.accuracy.best])
    assert default.calibrated
    assert clozify.load_recipe("paper").ipet.calibrate is False


@pytest.mark.slow
def test_searched_words_are_those_that_pet_is_trained_with(run, tmp_path):
    """Table 7's row under AVS would otherwise be PET with the hand-made words once more."""
    status, out, err = run("table8", *SAMPLE, "--examples", 28, "--json")
    assert status == 0, err
    words = values(out)["", "database", "Top verbalizers"].split(", ")
    status, out, err = run("table7", *SAMPLE, "--examples", 28, "--methods", "pet", "--json")
    assert status == 0, err
    results = values(out)
    assert results["", "supervised", "sample"] is None
    assert results["", "PET + AVS", "sample"] is not None
    (run_folder,) = (tmp_path / "out" / "runs").iterdir()
    trained = json.loads((run_folder / "run.json").read_text())["task"]["verbalizers"][0]["words"]["database"]
    assert trained[: len(words)] == words
    assert "searching words" not in err


@pytest.mark.slow
def test_the_figures_are_drawn_from_their_cells(run, tmp_path):
    status, out, err = run("figure4", *SAMPLE, "--json", few=[*FEW, "ipet.generations=2"])
    assert status == 0, err
    results = values(out)
    assert results["", "sample", "M^2"] is not None
    assert results["", "sample, skipping 2 and 3", "M^1"] == results["", "sample", "M^1"]
    status, out, err = run("figure5", *SAMPLE, "--examples", 28, "--methods", "supervised", "--json")
    assert status == 0, err
    assert {row for (_, row, _), value in values(out).items() if value is not None} == {"sup.", "sup. + PT"}
    assert (tmp_path / "out" / "models").is_dir()
    for name in ("figure4", "figure5"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "out" / f"{name}.html").read_text()


@pytest.fixture
def xstance(tmp_path):
    folder = tmp_path / "data" / "xstance"
    expected = {"test_set": "new_comments_defr"}
    write_jsonl(folder / "train.jsonl", stance("de", 40) + stance("fr", 30))
    write_jsonl(
        folder / "test.jsonl",
        stance("de", 15, **expected) + stance("fr", 11, **expected) + stance("it", 9, test_set="new_comments_it"),
    )
    return folder.parent


@pytest.mark.slow
def test_italian_is_the_mean_of_what_the_german_and_the_french_models_reach(run, xstance, tmp_path):
    """The mean of their probabilities, or one model's score, would be another number than the paper's."""
    from clozify.metrics import macro_f1

    few = [*FEW, *EPOCHS, "repetitions=2"]
    options = ["--data", xstance, "--output", "out", "--methods", "supervised", "--examples", "8,full,joint"]
    status, out, err = run("table3", *options, "--json", few=few)
    assert status == 0, err
    results = values(out)
    for group in ("|T| = 8", "T_De, T_Fr", "T_De + T_Fr"):
        assert all(results[group, "supervised", column] is not None for column in ("De", "Fr", "It"))
    truth = np.arange(9) % 2
    of_languages = []
    for language, others in (("de", 15), ("fr", 11)):
        cell = next(
            result
            for path in (tmp_path / "out" / "cells").iterdir()
            for result in [json.loads(path.read_text())]
            if (result["cell"]["task"], result["cell"]["examples"]) == (f"xstance-{language}", 8)
        )
        (folder,) = (tmp_path / "out" / "runs").glob(f"xstance-{language}-*")
        scores = [np.load(path) for path in folder.glob("classifiers/*/test.npy")]
        reached = [macro_f1(truth, of[others:].argmax(axis=-1), 2) for of in scores]
        assert cell["numbers"]["it"]["classifier"][0] in [
            pytest.approx(np.mean([a, b])) for a in reached for b in reached
        ]
        of_languages.append(cell["numbers"]["it"]["classifier"][0])
    assert results["|T| = 8", "supervised", "It"] == pytest.approx(100 * np.mean(of_languages))
    assert "quoted (76.8)" in (tmp_path / "out" / "table3.md").read_text()


@pytest.mark.slow
def test_without_italian_rows_the_column_is_not_run_and_the_reason_stands_below(run, xstance, tmp_path):
    rows = [line for line in (xstance / "xstance/test.jsonl").read_text().splitlines() if '"it"' not in line]
    (xstance / "xstance/test.jsonl").write_text("\n".join(rows) + "\n")
    options = ["--data", xstance, "--output", "out", "--examples", "8", "--json"]
    status, out, err = run("table3", *options, few=[*FEW, *EPOCHS])
    assert status == 0, err
    results = {(p["row"], p["column"]): p for p in json.loads(out)["cells"] if p["group"] == "|T| = 8"}
    assert results["PET", "De"]["value"] is not None
    assert results["PET", "It"]["not_run"] == "the data has no Italian rows."


def test_a_method_that_is_not_there_and_too_few_rows_are_cells_that_were_not_run(run, monkeypatch, tmp_path):
    monkeypatch.setattr("clozify.pipeline.prepare.METHODS", ("pet", "ipet", "supervised"))
    status, out, err = run("table2", *SAMPLE, "--examples", "28", "--methods", "uda,pet", "--json")
    assert status == 0, err
    results = {p["row"]: p for p in json.loads(out)["cells"] if (p["group"], p["column"]) == ("|T| = 28", "sample")}
    assert "UDA is not part of this version" in results["UDA"]["not_run"]
    assert results["PET"]["value"] is not None
    status, out, err = run("table1", *SAMPLE, "--examples", "1000", "--methods", "supervised")
    assert status == 0
    assert "has 280 rows for 1,000 examples over 14 labels" in (tmp_path / "out" / "table1.md").read_text()


def test_table_2_runs_uda_and_mixtext_and_says_where_their_text_and_their_steps_are_from(run, tmp_path):
    few = "augment.method=rewriting augment.share=1 uda.steps_to_try=[1,2] mixtext.max_steps=1".split()
    status, out, err = run(
        "table2", *SAMPLE, "--examples", "28", "--methods", "uda,mixtext", "--json", few=[*FEW, *few]
    )
    assert status == 0, err
    results = values(out)
    assert 0 <= results["|T| = 28", "UDA", "sample"] <= 100
    assert 0 <= results["|T| = 28", "MixText", "sample"] <= 100
    assert results["|T| = 28", "PET", "sample"] is None
    text = (tmp_path / "out" / "table2.md").read_text()
    assert "MixText: augmented text by rewriting 15% of the tokens" in text
    assert re.search(r"28 examples, UDA.*: [12] steps, best on the test set", text)
    assert "MixText: 1 steps" not in text


def test_a_plan_counts_what_cells_share_once_and_writes_nothing(run, tmp_path):
    status, out, err = run("table4", *SAMPLE, "--examples", 28, "--plan", "--json")
    assert status == 0, err
    cost = json.loads(out)
    assert (cost["cells"], cost["done"]) == (2, 0)
    assert (cost["members"], cost["member_steps"]) == (6, 12)
    assert (cost["classifiers"], cost["classifier_steps"]) == (2, 4)
    assert cost["rows_to_score"] == 6 * (4 * 14 + 30)
    assert cost["seconds"] >= 0
    assert not (tmp_path / "out").exists()
    status, out, err = run("table1", *SAMPLE, "--examples", "0,28", "--plan")
    assert status == 0
    assert (
        "18 members, 36 fine-tuning steps" in out
    )  # PET's six, iPET's one generation after it, and one without examples


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["table5"], "There is no 'table5' to reproduce"),
        (["table1", "--tasks", "imdb"], "There is no task 'imdb' here"),
        (["table1", "--examples", "ten"], "--examples takes numbers, separated by commas"),
        (["table1", "--methods", "pett"], "There is no method 'pett' .did you mean 'pet'"),
        (["figure4", "--examples", "10"], "Nothing to run: figure4 has no cell"),
        (["table4", "--examples", "10,50"], "takes one number of examples"),
        (["figure6", "--tasks", "yelp,mnli"], "takes one task"),
        (["table1", "--data", "nowhere"], "The data folder 'nowhere' does not exist"),
        (["table1", "--data", ".", "--tasks", "yelp"], "has no folder for the task 'yelp'"),
        (["table1", "--data", "."], "has no folder for the task 'yelp'"),
        (["table1", "--set", "finetune.steps=3"], "There is no setting 'finetune.steps'"),
    ],
)
def test_what_is_asked_wrongly_ends_with_a_sentence_and_nothing_written(run, tmp_path, words, sentence):
    status, _, err = run(*words, "--output", "out")
    assert status == 2
    assert re.search(sentence, err), err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_found_is_told_before_anything_is_run(run, tmp_path):
    status, _, err = run("table4", *SAMPLE, model="no/such-model")
    assert status == 2
    assert "The model 'no/such-model' is neither a folder nor in the local cache" in err
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_a_figure_ends_with_the_sentence_that_mends_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run("figure4", *SAMPLE)
    assert status == 2
    assert "pip install 'clozify[reproduce]'" in err
