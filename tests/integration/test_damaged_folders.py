"""Classifiers and models from strangers, or damaged ones: no code of theirs runs, and a fault is one sentence."""

import io
import json
import re
import shutil
import stat
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from clozify import cli
from clozify.errors import ModelError
from clozify.models.classifier import load_classifier
from clozify.models.cloze import load_model
from tests.integration.conftest import TASK
from tests.integration.serving import save_classifier

HOSTILE_CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
Path({marker!r}).touch()
from transformers import BertConfig as C, BertForSequenceClassification as M, PreTrainedTokenizerFast as T
"""


@pytest.fixture(scope="module")
def original(tiny_folder, tmp_path_factory):
    return save_classifier(tiny_folder("bert"), TASK, tmp_path_factory.mktemp("classifier"))


@pytest.fixture
def classifier(original, tmp_path):
    return shutil.copytree(original, tmp_path / "classifier")


@pytest.fixture
def command(capfd, monkeypatch):
    """Run a command in this process, with `y` on standard input: (status, stdout, stderr)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["clozify", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capfd.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return run


def make_hostile(folder, marker):
    """Let the config and the tokenizer of a folder name classes of a Python file in it."""
    (folder / "evil.py").write_text(HOSTILE_CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "evil.C", "AutoModelForSequenceClassification": "evil.M", "AutoModelForMaskedLM": "evil.M"}
    config |= {"model_type": "evilx", "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("use", ["predict", "serve", "export", "--student", "--model"])
def test_no_code_of_a_folder_runs_even_if_standard_input_agrees(use, command, files, classifier, tiny_folder):
    marker = files / "ran"
    data = ["--labeled", files / "labeled.csv", "--unlabeled", files / "unlabeled.csv", "--output", files / "out"]
    settings = ["--set", "repetitions=1", "--set", "finetune.max_steps=1", "--set", "max_seq_length=40", "--quiet"]
    if use.startswith("--"):
        hostile = make_hostile(shutil.copytree(tiny_folder("bert"), files / "hostile"), marker)
        other = ["--model", tiny_folder("bert")] if use == "--student" else []
        words = ["train", files / "task.toml", "--recipe", "paper", *data, *settings, *other, use, hostile]
    else:
        hostile = make_hostile(classifier, marker)
        words = [use, hostile, *{"predict": ["--data", files / "test.csv"], "serve": ["--port", 0]}.get(use, [])]
    status, _, errors = command(*words)
    assert not marker.exists()
    assert status == 2
    assert errors.strip().splitlines()[-1].startswith("error: The model in")
    assert "config.json" in errors


def test_a_config_cannot_name_kernels_of_the_hub(classifier):
    config = json.loads((classifier / "config.json").read_text())
    (classifier / "config.json").write_text(json.dumps(config | {"attn_implementation": "somebody/kernels"}))
    with pytest.raises(ModelError, match="asks for code of the hub"):
        load_classifier(classifier, "cpu")


def as_pickle(folder):
    """Replace a folder's safetensors by PyTorch's own format."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_pickled_weights_of_a_classifier_or_a_member_are_not_read(classifier, tiny_folder, tmp_path):
    with pytest.raises(ModelError, match=r"has no model\.safetensors \(pytorch_model\.bin is not read\)"):
        load_classifier(as_pickle(classifier), "cpu")
    member = as_pickle(shutil.copytree(tiny_folder("bert"), tmp_path / "member"))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is not read"):
        load_model(member, "cpu", safetensors_only=True)


def test_a_model_with_pickled_weights_is_loaded_with_a_warning_and_without_its_code(tiny_folder, tmp_path):
    folder = as_pickle(shutil.copytree(tiny_folder("bert"), tmp_path / "model"))
    with pytest.warns(UserWarning, match=r"read from pytorch_model\.bin, in which PyTorch accepts tensors only"):
        model = load_model(folder, "cpu")
    expected = load_model(tiny_folder("bert"), "cpu").model.state_dict()
    assert all(torch.equal(expected[name], weight) for name, weight in model.model.state_dict().items())

    class Hostile:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"weight": Hostile()}, folder / "pytorch_model.bin")
    with (
        pytest.raises(ModelError, match=r"because of its pytorch_model\.bin"),
        pytest.warns(UserWarning, match="tensors"),
    ):
        load_model(folder, "cpu")
    assert not (tmp_path / "ran").exists()


def rewrite(path, change):
    content = path.read_bytes()
    path.write_bytes(change(content))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def put_nan(folder):
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def drop_head(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


THREE_LABELS = TASK + '3 = "okay"\n'
DAMAGE = {
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json"),
    "an empty tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), r"tokenizer\.json"),
    "a cut tokenizer": (lambda f: rewrite(f / "tokenizer.json", lambda c: c[: len(c) // 2]), r"tokenizer\.json"),
    "no tokenizer config": (lambda f: (f / "tokenizer_config.json").unlink(), r"tokenizer_config\.json"),
    "a length that is a word": (
        lambda f: (f / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "BertTokenizer", "model_max_length": "abc"}'
        ),
        r"tokenizer_config\.json",
    ),
    "cut weights": (lambda f: rewrite(f / "model.safetensors", lambda c: c[: len(c) // 2]), r"model\.safetensors"),
    "garbled weights": (lambda f: rewrite(f / "model.safetensors", lambda c: b"?" * len(c)), r"model\.safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors"),
    "weights that are not numbers": (put_nan, "not finite numbers"),
    "weights without a head": (drop_head, "lacks some of its weights"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json"),
    "a garbled config": (lambda f: (f / "config.json").write_text('{"model_type": '), r"config\.json"),
    "a config that is a list": (lambda f: (f / "config.json").write_text("[1]"), r"config\.json"),
    "a config with more labels": (
        lambda f: edit_config(f, id2label={"0": "1", "1": "2", "2": "3"}),
        r"model\.safetensors|config\.json",
    ),
    "a config with swapped labels": (lambda f: edit_config(f, id2label={"0": "2", "1": "1"}), r"config\.json"),
    "no task": (lambda f: (f / "task.toml").unlink(), r"task\.toml"),
    "a task with more labels": (lambda f: (f / "task.toml").write_text(THREE_LABELS), r"task\.toml"),
    "a garbled task": (lambda f: (f / "task.toml").write_text("name = "), r"task\.toml"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_classifier_is_one_sentence_that_names_the_file(what, classifier, files, command):
    damage, file = DAMAGE[what]
    run = files / "run"
    run.mkdir()
    damage(shutil.move(classifier, run / "classifier"))
    for words in (
        ["predict", run, "--data", files / "test.csv"],
        ["evaluate", run, "--data", files / "test.csv"],
        ["serve", run, "--port", 0],
        ["export", run, "--output", files / "onnx", "--data", files / "test.csv"],
    ):
        status, out, errors = command(*words)
        assert (status, out) == (2, ""), words
        (line,) = errors.strip().splitlines()
        assert line.startswith("error: ")
        assert re.search(file, line), line
        assert not line.endswith("..")
    assert not (files / "onnx").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", None), ("config.json", "{"), ("tokenizer.json", None), ("tokenizer.json", "{}")],
)
def test_a_damaged_export_is_one_sentence_too(name, content, classifier):
    """The graph itself is checked by ONNX Runtime; `tests/integration/test_export.py` breaks it."""
    (classifier / "model.onnx").write_bytes(b"a graph")
    (classifier / name).unlink() if content is None else (classifier / name).write_text(content)
    with pytest.raises(ModelError, match=re.escape(name)):
        load_classifier(classifier, "cpu")


def test_weights_have_the_permissions_of_the_files_next_to_them(classifier, tiny, tmp_path):
    tiny("bert").save(tmp_path / "model")
    for folder in (classifier, tmp_path / "model"):
        modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert len(modes) == 1


def test_the_system_s_own_full_stop_is_not_doubled(command, files, monkeypatch):
    def fail(*_):
        raise OSError("The disk is gone.")

    monkeypatch.setattr("clozify.inference.finished_run.FinishedRun.__init__", fail)
    status, _, errors = command("predict", files, "--data", files / "test.csv")
    assert (status, errors) == (2, "error: The system reports an error: The disk is gone.\n")
