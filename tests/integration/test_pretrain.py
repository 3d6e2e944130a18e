"""Pretraining as a person starts it, with tiny models: what it leaves, that it resumes, what it refuses."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from clozify.errors import ClozifyError, DataError, RunError
from clozify.methods import pretrain as step
from clozify.models.cloze import load_model
from clozify.pipeline import pretrain as pretraining
from clozify.pipeline.pretrain import pretrain
from clozify.runs.folder import RunFolder
from tests.integration.checks import assert_metrics_are_those_of_the_scores

SETTINGS = ["pretrain.max_steps=6", "pretrain.block_size=24", "pretrain.learning_rate=1e-3"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small only wait for their threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def go(files, tiny_folder):
    """A function that pretrains a tiny model on fifty short texts, with a checkpoint every two steps."""

    def start(output="model", kind="bert", **changes):
        inputs = {"data": files / "unlabeled.csv", "model": tiny_folder(kind), "settings": SETTINGS, "save_every": 2}
        return pretrain(output=files / output, **(inputs | changes))

    return start


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def same_weights(one: Path, other: Path) -> bool:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_the_result_is_a_model_folder_with_its_head_and_nothing_pickled(kind, go, files, tiny_folder, capfd):
    """A folder that lacks the head or the tokenizer would load, and answer at random."""
    lines = []
    tiny_folder(kind)
    capfd.readouterr()  # what the libraries print when the model to start from is made
    result = go(kind=kind, log=lines.append)
    folder = files / "model"
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    model, before = load_model(folder), load_model(tiny_folder(kind))
    embeddings = model.model.get_input_embeddings().weight
    assert model.model.get_output_embeddings().weight.data_ptr() == embeddings.data_ptr()  # still tied
    assert not torch.equal(embeddings, before.model.get_input_embeddings().weight)
    assert model.tokenizer.encode("a fine game") == before.tokenizer.encode("a fine game")
    assert result.steps == 6
    assert result.held_out == 1 + result.blocks // 40
    assert json.loads((folder / "pretrain.json").read_text()) == result.model_dump(mode="json")
    assert any("before training" in line for line in lines)
    assert any("after training" in line for line in lines)
    assert capfd.readouterr() == ("", "")  # no chatter of the libraries'


def test_unlabelled_data_that_is_learned_is_predicted_better(go, files):
    unlabeled_rows = pd.read_csv(files / "unlabeled.csv")
    pd.concat([unlabeled_rows] * 40).to_csv(files / "long.csv", index=False)  # so that enough of it is held out to tell
    result = go(data=files / "long.csv", settings=[*SETTINGS[1:], "pretrain.max_steps=40"], save_every=1000)
    assert result.held_out > 20
    assert result.after < result.before - 0.2


def test_nothing_is_written_but_to_the_output(go, files, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    before = {path.name for path in files.iterdir()}
    go()
    assert not list(elsewhere.iterdir())
    assert {path.name for path in files.iterdir()} - before == {"model"}


class StoppedError(Exception):
    pass


def stop_at(monkeypatch, where):
    """Make the process fail at one place of a pretraining, as if it were killed there."""

    def fail(*_, **__):
        raise StoppedError

    if isinstance(where, int):

        def on_save(self, args, state, control, **_):
            if state.global_step == where:
                raise StoppedError

        monkeypatch.setattr(step._Progress, "on_save", on_save)
    elif where == "first step":
        monkeypatch.setattr(step._Progress, "on_step_end", fail)
    else:
        replace = Path.replace

        def once(path, target):
            replace(path, target)
            if path.name == "model.safetensors":
                raise StoppedError

        monkeypatch.setattr(Path, "replace", once)


SLOW_MOMENTS = [pytest.param(moment, marks=pytest.mark.slow) for moment in ("first step", 6, "placing")]


@pytest.mark.parametrize("where", [4, *SLOW_MOMENTS])
def test_a_stopped_pretraining_goes_on_and_ends_with_the_same_weights(where, go, files, monkeypatch):
    """A resumed training with other masks or another dropout would be a training that nobody can repeat."""
    whole = go("whole")
    with monkeypatch.context() as patched:
        stop_at(patched, where)
        with pytest.raises(StoppedError):
            go()
    with pytest.raises(ClozifyError):
        load_model(files / "model")  # half a model is none
    if where == 4:  # a checkpoint that a kill left half-written
        (files / "model" / "work" / "checkpoints" / "checkpoint-6").mkdir()
    lines = []
    result = go(log=lines.append)
    assert any("resumes at step" in line for line in lines) == isinstance(where, int)
    assert same_weights(files / "whole", files / "model")
    assert (result.before, result.after) == (whole.before, whole.after)
    assert [at for at, _ in result.course] == [at for at, _ in whole.course]
    assert names(files / "model") == names(files / "whole")


def test_given_again_the_command_answers_at_once(go, monkeypatch):
    first = go()
    monkeypatch.setattr(pretraining, "load_model", None)
    lines = []
    assert go(log=lines.append) == first
    assert lines[0].startswith("already done")


def test_a_folder_with_something_else_is_refused(go, files, monkeypatch):
    go()
    with pytest.raises(RunError, match="pretrained otherwise \\(other: 'pretrain.max_steps'\\)"):
        go(settings=["pretrain.max_steps=7", *SETTINGS[1:]])
    with pytest.raises(RunError, match="'data.texts'"):
        go(data=files / "test.csv", fields=["text"])
    (files / "own").mkdir()
    (files / "own" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="holds 'letter.txt'"):
        go("own")
    with pytest.raises(RunError, match="that is a file"):
        go("unlabeled.csv")
    stop_at(monkeypatch, 4)
    with pytest.raises(StoppedError):
        go("half")
    with pytest.raises(RunError, match="unfinished pretraining with other inputs \\(other: 'seed'\\)"):
        go("half", settings=[*SETTINGS, "seed=1"])


def test_an_attempt_that_came_to_nothing_is_in_nobodys_way(go, files):
    with pytest.raises(DataError, match="less than two blocks of 62"):
        go(data=files / "labeled.csv", fields=["text"], kind="bert", settings=["pretrain.block_size=62"])
    go()


def test_a_second_process_is_refused(go, files):
    with RunFolder(files / "model" / "work"), pytest.raises(RunError, match="Another process"):
        go()
    go()


def test_a_full_disk_ends_with_a_sentence_and_the_training_goes_on(go, files, monkeypatch):
    """torch.save tells a full disk in words of its own, which nobody could mend by."""
    save, saved = torch.save, []

    def full(content, path, *more, **options):
        saved.append(path)
        if len(saved) > 5:
            raise RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file")
        return save(content, path, *more, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        with pytest.raises(RunError, match="no space left"):
            go()
    lines = []
    go(log=lines.append)
    assert "resumes at step 2 of 6" in lines


def test_what_is_read_is_the_only_text_column_or_what_is_named(go, files):
    frame = pd.DataFrame({"title": ["mail for all"] * 60, "text": ["fonts and more"] * 60, "year": range(60)})
    frame.to_parquet(files / "two.parquet")
    with pytest.raises(DataError, match="'title' and 'text'; name what to read with --field"):
        go(data=files / "two.parquet")
    frame[["year"]].to_parquet(files / "none.parquet")
    with pytest.raises(DataError, match="'year'"):
        go(data=files / "none.parquet")
    with pytest.raises(DataError, match="did you mean 'text'"):
        go(data=files / "two.parquet", fields=["texts"])
    with pytest.raises(DataError, match="give one of the two"):
        go(data=files / "two.parquet", fields=["text"], task=files / "task.toml")
    one = go("one", data=files / "two.parquet", fields=["text"])
    by_task = go("one", data=files / "two.parquet", task=files / "task.toml")
    assert by_task == one
    joined = pd.DataFrame({"all": ["mail for all fonts and more"] * 60})
    joined.to_parquet(files / "joined.parquet")
    joined.assign(id=range(60)).to_json(files / "joined.jsonl", orient="records", lines=True)
    both = go("both", data=files / "two.parquet", fields=["title", "text"])
    assert go("both", data=files / "joined.jsonl") == both  # numbers are no texts
    assert go("both", data=files / "joined.parquet") == both


def test_texts_that_are_all_empty_are_too_few(go, files):
    pd.DataFrame({"text": [" ", ""] * 9}).to_parquet(files / "empty.parquet")
    with pytest.raises(DataError, match="are 0 tokens"):
        go(data=files / "empty.parquet")


def test_long_blocks_are_cut_to_what_the_model_reads(go):
    """Positions that the model does not have would end in an error of the library's."""
    lines = []
    result = go(kind="roberta", settings=[SETTINGS[0]], log=lines.append)
    assert result.block_size == 64
    assert lines[0].startswith("note: the model reads 64 tokens at most")


def test_a_recipes_attention_dropout_is_for_training_only(go, files, tiny_folder):
    """Written to the folder, it would silently change every later training of the model."""
    go(settings=[*SETTINGS, "attention_dropout=0.0"])
    own = load_model(tiny_folder("bert")).model.config
    assert load_model(files / "model").model.config.attention_probs_dropout_prob == own.attention_probs_dropout_prob > 0


def test_training_takes_the_model_and_is_not_changed_by_the_pretraining_before_it(go, run, files):
    """Accelerate's state is shared by all of a process: what the Trainer sets must not reach other trainings."""
    alone = run("alone", method="supervised", unlabeled=None)
    go()
    assert run("after", method="supervised", unlabeled=None)["supervised"] == alone["supervised"]
    assert same_weights(files / "alone" / "classifier", files / "after" / "classifier")
    run("on-it", model=files / "model", unlabeled=None)
    assert_metrics_are_those_of_the_scores(files / "on-it", files / "test.csv")
