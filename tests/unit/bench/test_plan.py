"""What a bench is asked for: the cells that follow from it, and what is refused before anything is written."""

import subprocess

import pytest

from clozify.bench import cost
from clozify.bench.cost import plan_cost
from clozify.bench.datasets import DataSource
from clozify.bench.plan import BenchOptions, make_plan
from clozify.bench.rivals import RIVALS, finetune
from clozify.errors import ClozifyError
from tests.unit.bench.made import write_package


@pytest.fixture
def rows(tmp_path):
    """A file with rows of two labels."""
    path = tmp_path / "reviews.csv"
    path.write_text("label,text\n" + "".join(f"{('good', 'bad')[n % 2]},a text {n}\n" for n in range(40)))
    return path


def plan(rows, device="cpu", **changes):
    fields = {"output": rows.parent / "bench", "data": [DataSource(str(rows))], "draws": 1, "methods": ["setfit"]}
    return make_plan(BenchOptions(**fields | changes), device)


def environment(folder, version):
    return {"setfit": write_package(folder, "setfit", version)}


def test_a_rival_runs_again_with_another_version_and_replaces_the_earlier_cell(rows, tmp_path):
    cells = [
        plan(rows, environments=environment(tmp_path / version, version)).cells[0] for version in ("0.1.0", "0.2.0")
    ]
    assert cells[0].key != cells[1].key
    assert cells[0].spec.slot == cells[1].spec.slot


def test_the_pinned_version_in_a_named_environment_is_the_same_cell(rows, tmp_path):
    named = plan(rows, environments=environment(tmp_path / "packages", "1.2.0"))
    assert named.cells[0].key == plan(rows).cells[0].key
    assert not named.remarks


def test_another_version_than_the_pinned_one_is_noted(rows, tmp_path):
    notes = plan(rows, environments=environment(tmp_path / "packages", "0.1.0")).notes
    assert notes[0] == "SetFit runs with setfit 0.1.0; the bench was written for 1.2.0."


def test_an_environment_is_asked_for_its_version_once(rows, tmp_path, monkeypatch):
    run, commands = subprocess.run, []

    def counted(command, *args, **kwargs):
        commands.append(command)
        return run(command, *args, **kwargs)

    monkeypatch.setattr(subprocess, "run", counted)
    plan(rows, draws=3, per_label=[2, 4], environments=environment(tmp_path / "packages", "0.1.0"))
    assert len(commands) == 1


@pytest.mark.parametrize("name", [name for name, rival in RIVALS.items() if rival.REQUIREMENTS])
def test_the_first_requirement_pins_the_rival_s_own_package(name):
    package, _, version = RIVALS[name].REQUIREMENTS[0].partition("==")
    assert package.partition("[")[0] == RIVALS[name].PACKAGES[0]
    assert version


def test_a_folder_is_one_model_however_its_path_is_written(rows, tmp_path, monkeypatch):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    names = ("encoder", "./encoder", str(tmp_path / "encoder"))
    specs = {plan(rows, rival_options={"setfit-encoder": name}).cells[0].spec for name in names}
    assert {spec.model for spec in specs} == {str(tmp_path / "encoder")}


def test_settings_with_the_same_effect_are_one_column(rows):
    both = ["repetitions=1", "distill.max_steps=9"]
    choices = (both, both[::-1], ["repetitions=5", *both], ["repetitions = 1", both[1]])
    assert len({plan(rows, methods=["pet"], settings=settings).cells[0].spec for settings in choices}) == 1


def test_the_small_built_in_model_has_one_name(rows):
    assert len({plan(rows, methods=["pet"], model=name).cells[0].spec for name in ("builtin", "builtin:small")}) == 1


def test_options_that_no_method_reads_are_noted(rows):
    changes = {"model": "no/model", "rival_options": {"nli-model": "no/nli"}, "environments": {"setfit": "python3"}}
    assert plan(rows, methods=["tfidf"], **changes).remarks == [
        "--nli-model is not used, since --methods does not name 'nli'.",
        "--environment setfit=... is not used, since --methods does not name 'setfit'.",
        "--model is not used, since none of the methods has the bench's encoder.",
    ]


def test_an_environment_may_be_a_command(rows, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "somepython"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 7.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert "setfit 7.0" in plan(rows, environments={"setfit": "somepython"}).notes[0]


def test_wrong_requests_are_refused_with_what_to_write_instead(rows, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no program")
    (tmp_path / "bad.toml").write_text("model =\n")
    (tmp_path / "wrong.toml").write_text('modle = "x"\n')
    (tmp_path / "address.toml").write_text('model = "x"\nbase_url = "no address"\n')
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    llm = [
        ({"methods": ["llm"], "rival_options": {"llm": str(tmp_path / f"{name}.toml")}}, message)
        for name, message in (
            ("bad", "bad.toml' of --llm is not valid TOML"),
            ("wrong", r"entry 'modle' is not known \(did you mean 'model'"),
            ("address", "base_url that is no address"),
            ("bytes", "not UTF-8"),
        )
    ]
    for changes, message in (
        ({"settings": ["seed=9"]}, "write --seed instead"),
        ({"settings": ["max_seq_length = 128"]}, "write --max-length instead"),
        ({"environments": {"setfit": str(tmp_path / "nowhere")}}, "no such file; name a Python"),
        ({"environments": {"setfit": str(tmp_path / "text")}}, "cannot be started: Permission denied; name a Python"),
        ({"environments": {"setfit": str(tmp_path / "empty")}}, "does not have the package 'setfit'; install it"),
        ({"environments": {"tfidf": "python3"}}, "'tfidf', which runs in clozify's own Python; it takes 'model2vec'"),
        ({"data": [DataSource("sample")], "labels": ["a", "b"]}, "every --data here has a task"),
        ({"methods": ["nli"], "rival_options": {"nli-model": str(tmp_path / "empty")}}, "holds no model"),
        *llm,
    ):
        with pytest.raises(ClozifyError, match=message):
            plan(rows, **changes)


def test_times_are_estimated_with_the_length_that_cells_have(rows, monkeypatch):
    lengths = []

    class TimedError(Exception):
        pass

    def time_member(run_plan, context):
        lengths.append(run_plan.recipe.max_seq_length)
        raise TimedError

    monkeypatch.setattr(cost, "time_member", time_member)
    for max_length in (16, None):
        options = BenchOptions(
            rows.parent / "bench", [DataSource(str(rows))], methods=["pet"], max_length=max_length, devices="cpu"
        )
        with pytest.raises(TimedError):
            plan_cost(options)
    assert lengths == [16, 64]


def test_fine_tuning_takes_200_steps_or_20_epochs():
    assert [finetune.training_steps(rows) for rows in (16, 161, 1_000)] == [200, 220, 1_260]
