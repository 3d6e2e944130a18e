"""Runs whose members are adapters: small, resumed, used by predict, and refused in a sentence where peft is missing."""

import importlib.util

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from clozify.cli import app
from clozify.errors import RecipeError, RunError
from clozify.inference.finished_run import FinishedRun
from clozify.models.cloze import load_model
from clozify.pipeline.members import MemberJob, first_generation
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.worker import Worker
from tests.integration.conftest import SETTINGS
from tests.tiny import make_model

LORA = [*SETTINGS, "adapter.method=lora", "adapter.r=1"]


def bytes_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_members_are_small_and_predict_as_they_scored(run, files):
    """Weights that are saved and loaded otherwise than they scored would show only as a worse classifier."""
    messages = []
    metrics = run("lora", unlabeled=None, settings=LORA)
    run("full", unlabeled=None)
    members = sorted((files / "lora" / "members").iterdir())
    whole = next((files / "full" / "members").iterdir())
    assert len(members) == 4
    assert not {path.name for path in members} & {path.name for path in (files / "full" / "members").iterdir()}
    for member in members:
        assert bytes_of(member / "model") < bytes_of(whole / "model") / 10
        assert not list((member / "model").glob("tokenizer*"))
    finished = FinishedRun(files / "lora")
    rows = prepare(TrainInputs(files / "task.toml", files / "labeled.csv", test=files / "test.csv")).test
    again = [finished.probabilities(rows), finished.probabilities(rows)]
    scores = [np.load(member / "test.npy") for member in members]
    assert len({score.tobytes() for score in scores}) == 4
    assert np.array_equal(again[0], again[1])
    assert float((again[0].argmax(axis=1) == rows.labels).mean()) == metrics["ensemble"]["accuracy"]
    assert len(finished.ensemble.loader.base_models) == 1  # one copy of the weights for all
    (base,) = finished.ensemble.loader.base_models.values()
    assert set(base.model.peft_config) == {member.name for member in members}
    for member in members:
        base.use_adapter(member / "model", member.name)
    resumed = run("lora", unlabeled=None, settings=LORA, log=messages.append)
    assert sum("already done" in line for line in messages) == 4
    assert resumed["ensemble"] == metrics["ensemble"]


def test_other_adapter_settings_are_other_members_and_the_classifier_is_whole(run, files):
    """A key without the adapter would hand one setting's scores out as another's."""
    run("run", settings=LORA)
    first = {path.name for path in (files / "run" / "members").iterdir()}
    run("run", settings=[*LORA, "adapter.alpha=3"])
    assert len({path.name for path in (files / "run" / "members").iterdir()} - first) == 4
    assert (files / "run" / "classifier" / "model.safetensors").is_file()


def test_every_member_starts_from_the_pretrained_answers_and_its_own_seed(files, tiny_folder):
    """A member that starts where another ended is no member of an ensemble."""
    plan = prepare(
        TrainInputs(
            files / "task.toml",
            files / "labeled.csv",
            files / "unlabeled.csv",
            model=str(tiny_folder("bert")),
            recipe="paper",
            settings=LORA,
        )
    )
    with RunFolder(files / "run") as folder:
        worker = Worker(plan, folder, RunContext("cpu"))
        before = {name: tensor.clone() for name, tensor in worker.pretrained_model(7).model.state_dict().items()}
        MemberJob("one", "key", first_generation(plan, [1.0, 1.0])[0]).run(worker)
        after = worker.model.model.state_dict()
        assert any(not torch.equal(after[name], tensor) for name, tensor in before.items() if "lora_B" in name)
        other = {name: tensor.clone() for name, tensor in worker.pretrained_model(8).model.state_dict().items()}
        again = worker.pretrained_model(7).model.state_dict()
        plain = load_model(tiny_folder("bert")).model.state_dict()
    for name, tensor in before.items():
        assert torch.equal(again[name], tensor), name
        assert torch.equal(other[name], tensor) != ("lora_A" in name), name
        if "lora_" not in name:
            assert torch.equal(tensor, plain[name.replace(".base_layer", "")])
        elif "lora_B" in name:
            assert not tensor.any()


def test_development_rows_choose_among_adapters_too(run, files, monkeypatch):
    """The first of three looks is said to be the best: the member scores as it did then."""
    from clozify.pipeline import members, scoring
    from clozify.runs import worker

    scored, looks = [], []
    score, basic_metrics = scoring.score_data_set, worker.basic_metrics

    def falling(*inputs):
        looks.append(inputs)
        return basic_metrics(*inputs).model_copy(update={"accuracy": -len(looks)})

    monkeypatch.setattr(worker, "basic_metrics", falling)
    for module in (members, scoring):
        monkeypatch.setattr(module, "score_data_set", lambda *inputs: scored.append(score(*inputs)) or scored[-1])
    run("run", unlabeled=None, dev=files / "test.csv", settings=[*LORA, "dev.every=2", "adapter.learning_rate=0.05"])
    count = len(list((files / "run" / "members").iterdir()))
    assert len(looks) == 3 * count
    for number in range(count):
        first, _, last, kept = scored[len(scored) - 4 * (count - number) :][
            :4
        ]  # the development rows are the test rows
        assert np.allclose(kept, first, atol=1e-5)
        assert not np.allclose(kept, last, atol=1e-3)


def test_a_model_that_was_changed_since_is_not_given_the_old_adapters(run, files, tmp_path):
    """Adapters on other weights answer at random, without a word."""
    folder = make_model("bert", tmp_path / "model")
    run("run", unlabeled=None, model=str(folder), settings=[*LORA, "repetitions=1"])
    rows = prepare(TrainInputs(files / "task.toml", files / "labeled.csv")).labeled
    FinishedRun(files / "run").probabilities(rows)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("}", "\n}"))
    with pytest.raises(RunError, match="has changed since"):
        FinishedRun(files / "run").probabilities(rows)


def test_without_peft_a_sentence_says_what_to_install(run, monkeypatch):
    result = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "peft" else result(name, *more)
    )
    with pytest.raises(RecipeError, match=r"pip install 'clozify\[peft\]'"):
        run(settings=LORA)


def test_a_method_without_members_says_that_the_adapter_is_not_used(files):
    plan = prepare(TrainInputs(files / "task.toml", files / "labeled.csv", method="supervised", settings=LORA))
    assert any("has no members" in warning for warning in plan.warnings)


def test_the_command_takes_an_adapter_by_name(files, tiny_folder):
    inputs = ["train", str(files / "task.toml"), "--labeled", str(files / "labeled.csv"), "--output", str(files / "r")]
    few = [part for setting in SETTINGS for part in ("--set", setting)]
    wrong = CliRunner().invoke(app, [*inputs, *few, "--adapter", "lor"])
    assert isinstance(wrong.exception, RecipeError)
    assert "'adapter.method' is 'lor'" in str(wrong.exception)
    right = CliRunner().invoke(app, [*inputs, *few, "--model", str(tiny_folder("bert")), "--adapter", "lora", "--plan"])
    assert right.exit_code == 0, right.output
