"""The methods of the bench: their names, their environments, and the process of a cell."""

import ast
import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from clozify.bench import environments
from clozify.bench.environments import choose_environment, environment_folder
from clozify.bench.rivals import RIVALS, choose_rivals, fastfit, setfit
from clozify.bench.rivals.worker import Job, load_rival, read_job, size_on_disk, versions
from clozify.errors import DataError, RunError

NAMES = ("NAME", "TITLE", "SETTINGS", "VERSION", "REQUIREMENTS", "PACKAGES", "ENCODER", "UNLABELED", "NEEDS")


@pytest.mark.parametrize("name", RIVALS)
def test_a_method_has_every_name_that_the_bench_reads(name):
    rival = RIVALS[name]
    for attribute in (*NAMES, "train", "load_libraries"):
        assert hasattr(rival, attribute)
    assert name == rival.NAME
    assert rival.ENCODER in ("model", "folder", "none")


@pytest.mark.parametrize("name", [name for name, rival in RIVALS.items() if rival.REQUIREMENTS] + ["worker"])
def test_what_runs_in_an_environment_of_its_own_imports_nothing_of_clozify(name):
    path = Path(setfit.__file__).with_name("worker.py") if name == "worker" else Path(RIVALS[name].__file__)
    tree = ast.parse(path.read_text())
    checking = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(child) for node in checking for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("clozify")
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("clozify") for alias in node.names)


def test_methods_come_in_the_order_of_their_cost_and_unknown_ones_are_named():
    assert [rival.NAME for rival in choose_rivals(["pet", "tfidf"])] == ["tfidf", "pet"]
    with pytest.raises(DataError, match="did you mean 'setfit'"):
        choose_rivals(["setfitt"])


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 1], [0, 1, 2], [0, 0, 0, 0, 1]])
def test_setfit_s_pairs_are_counted_as_it_draws_them(labels):
    pairs = [first == second for first, second in combinations(labels, 2)]
    assert setfit.all_pairs(labels) == 2 * max(sum(pairs), len(pairs) - sum(pairs))


def test_a_method_without_requirements_runs_in_this_python(monkeypatch):
    environment = choose_environment(RIVALS["tfidf"], None)
    assert environment.python == sys.executable
    assert "PYTHONPATH" in environment.variables()


def test_a_rival_runs_in_the_cache_or_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", "not/for/it")
    rival = RIVALS["setfit"]
    made = choose_environment(rival, None)
    assert Path(made.python).is_relative_to(environment_folder(rival))
    assert environment_folder(rival).is_relative_to(tmp_path / "cache")
    assert "PYTHONPATH" not in made.variables()
    packages = choose_environment(rival, str(tmp_path))
    assert packages.variables()["PYTHONPATH"] == str(tmp_path.resolve())
    with pytest.raises(RunError, match="no such file"):
        choose_environment(rival, str(tmp_path / "missing"))


def test_other_requirements_get_another_environment(monkeypatch):
    first = environment_folder(setfit)
    monkeypatch.setattr(setfit, "REQUIREMENTS", ("setfit==9",))
    assert environment_folder(setfit) != first
    assert not environments.is_ready(setfit)


def test_a_job_reads_rows_and_joins_fields(tmp_path):
    (tmp_path / "labeled.jsonl").write_text('{"a": "one", "b": "two\\u2028three", "label": "y"}\n')
    job = {
        "module": "m",
        "fields": ["a", "b"],
        "labels": ["x", "y"],
        "label": "label",
        "labeled": str(tmp_path / "labeled.jsonl"),
        "unlabeled": None,
        "test": "",
        "task": "",
        "model": "",
        "encoder": "",
        "device": "cpu",
        "seed": 0,
        "max_length": 8,
        "output": "",
        "work": "",
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    read = read_job(tmp_path / "job.json")
    assert isinstance(read, Job)
    assert read.texts("labeled") == ["one two\u2028three"]
    assert read.label_indices == [1]
    assert read.texts("unlabeled") == []


def test_a_module_is_loaded_by_its_path_and_does_not_hide_the_package_of_its_name(tmp_path):
    rival = load_rival(setfit.__file__)
    assert rival.NAME == "setfit"
    assert "setfit" not in sys.modules


def test_sizes_and_versions_are_of_what_is_there(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"12345")
    np.save(tmp_path / "b.npy", np.zeros(3))
    assert size_on_disk([tmp_path / "folder"]) == 5
    assert size_on_disk([tmp_path / "b.npy"]) == (tmp_path / "b.npy").stat().st_size
    assert set(versions(["numpy", "no-such-package"])) == {"python", "numpy"}


def test_fastfit_gets_a_tokenizer_that_earlier_versions_know(tmp_path):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend", "x": 1}')
    folder = fastfit.readable_encoder(str(tmp_path / "encoder"), tmp_path / "copy")
    content = json.loads((Path(folder) / "tokenizer_config.json").read_text())
    assert content == {"tokenizer_class": "PreTrainedTokenizerFast", "x": 1}
