"""Runs whose members are adapters: small, resumed, used by predict, and refused in a sentence where peft is missing."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from clozify.cli import app
from clozify.config.recipe import load_recipe
from clozify.errors import RecipeError, RunError
from clozify.inference.finished_run import FinishedRun
from clozify.models.cloze import load_model
from clozify.pipeline.member_jobs import MemberJob, MemberSpec
from clozify.pipeline.members import first_generation
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
    from clozify.pipeline import member_jobs, scoring
    from clozify.runs import worker

    scored, looks = [], []
    score, basic_metrics = scoring.score_data_set, worker.basic_metrics

    def falling(*inputs):
        looks.append(inputs)
        return basic_metrics(*inputs).model_copy(update={"accuracy": -len(looks)})

    monkeypatch.setattr(worker, "basic_metrics", falling)
    for module in (member_jobs, scoring):
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


def member_files(folder, name):
    return {path.name: np.load(path / name) for path in (folder / "members").iterdir()}


def member_folders(folder):
    """The folders of members by pair and seed."""
    records = {path: json.loads((path / "member.json").read_text()) for path in (folder / "members").iterdir()}
    return {(record["pair"], record["seed"]): path for path, record in records.items()}


def test_members_of_a_group_are_stored_and_score_as_those_trained_alone(run, files, tiny_folder, tmp_path):
    """Whether members share a batch is a matter of speed; the ensemble must be the same."""
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.0}))
    lines, ways = [], {"alone": 1, "together": 3}
    for name, at_once in ways.items():
        settings = [*LORA, f"adapter.members_at_once={at_once}", "attention_dropout=0.0", "adapter.learning_rate=0.001"]
        run(name, unlabeled=None, model=str(folder), settings=settings, log=lines.append)
    assert sum("member 1/4 to 2/4  losses" in line for line in lines) == 1  # four members in two groups, not 3 and 1
    alone, together = (member_folders(files / name) for name in ways)
    assert alone.keys() == together.keys()
    assert len({np.load(path / "test.npy").tobytes() for path in alone.values()}) == 4
    for member in alone:
        paths = [alone[member], together[member]]
        assert np.allclose(*(np.load(path / "test.npy") for path in paths), atol=1e-2)  # Adam magnifies rounding errors
        assert paths[0].name != paths[1].name  # with dropout they would differ
        records = [json.loads((path / "member.json").read_text()) for path in paths]
        assert records[1]["loss"] == pytest.approx(records[0]["loss"], abs=1e-3)
        timed = {"loss", "training_seconds", "seconds"}
        assert {name: value for name, value in records[1].items() if name not in timed} == {
            name: value for name, value in records[0].items() if name not in timed
        }
        assert len({tuple(sorted(file.name for file in path.rglob("*"))) for path in paths}) == 1
    rows = prepare(TrainInputs(files / "task.toml", files / "labeled.csv", test=files / "test.csv")).test
    probabilities = [FinishedRun(files / name).probabilities(rows) for name in ways]
    assert np.allclose(*probabilities, atol=1e-2)


def test_a_stopped_run_writes_the_missing_members_of_a_group_as_if_it_had_not_been_stopped(run, files):
    """With dropout, which is drawn for the whole group; what is finished stays as it is."""
    settings = [*LORA, "adapter.members_at_once=4"]
    run("run", unlabeled=None, settings=settings)
    before = member_files(files / "run", "test.npy")
    kept, *removed = sorted((files / "run" / "members").iterdir())
    for path in removed[:2]:
        shutil.rmtree(path)
    written = {path.name: path.stat().st_mtime_ns for path in (kept, removed[2])}
    lines = []
    run("run", unlabeled=None, settings=settings, log=lines.append)
    assert sum("already done" in line for line in lines) == 2
    after = member_files(files / "run", "test.npy")
    assert after.keys() == before.keys()
    for key, scores in before.items():
        assert np.array_equal(after[key], scores)
    assert {name: (files / "run" / "members" / name).stat().st_mtime_ns for name in written} == written


def test_a_group_that_does_not_fit_into_memory_is_trained_in_halves(run, files, monkeypatch):
    """A GPU with less memory trains fewer members at once, instead of none."""
    from clozify.pipeline import member_groups

    sizes, finetune_group = [], member_groups.finetune_group

    def limited(model, members, on_step):
        sizes.append(len(members))
        if len(members) > 2:
            raise torch.OutOfMemoryError
        return finetune_group(model, members, on_step)

    monkeypatch.setattr(member_groups, "finetune_group", limited)
    lines = []
    run("run", unlabeled=None, settings=[*LORA, "adapter.members_at_once=4"], log=lines.append)
    assert sizes == [4, 2, 2]
    assert len(member_files(files / "run", "test.npy")) == 4
    assert any("2 at once, since memory was short" in line for line in lines)


def test_members_are_trained_alone_where_a_group_would_not_be_the_same(worker):
    """Development rows end trainings at different steps; frozen layers and other models have steps of their own."""
    from dataclasses import replace
    from types import SimpleNamespace

    from clozify.pipeline.member_groups import group_members

    def sizes(device="cpu", workers=1, members=12, **changes):
        plan = replace(worker.plan, recipe=load_recipe("paper", [f"{name}={value}" for name, value in changes.items()]))
        plan = replace(plan, dev=plan.labeled) if device == "dev" else plan
        context = SimpleNamespace(device="cuda" if device == "dev" else device)
        run = SimpleNamespace(plan=plan, context=context, executor=SimpleNamespace(workers=workers))
        return [len(group) for group in group_members(run, [MemberSpec(0, seed) for seed in range(members)])]

    lora = {"adapter.method": "lora"}
    assert sizes("cuda", **lora) == [6, 6]
    assert sizes("cuda", members=7, **lora) == [4, 3]
    assert sizes("cuda", workers=4, **lora) == [3] * 4
    assert sizes("cuda", **lora, **{"adapter.members_at_once": 2}) == [2] * 6
    assert sizes("cpu", **lora, **{"adapter.members_at_once": 12}) == [12]
    for alone in (sizes("cpu", **lora), sizes("cuda"), sizes("dev", **lora)):
        assert alone == [1] * 12
    assert sizes("cuda", **lora, **{"finetune_without_lm.frozen_layers": 0.5}) == [1] * 12
