"""`clozify bench` with a tiny model: cells in processes of their own, resumed, failed, planned, and its page."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from clozify.bench.cost import plan_cost
from clozify.bench.datasets import DataSource
from clozify.bench.draws import DrawOptions
from clozify.bench.entries import Block
from clozify.bench.plan import BenchOptions
from clozify.bench.run import run_bench
from clozify.bench.terminal import show_bench
from clozify.cli import app
from clozify.errors import DataError, RunError
from tests.fake_llm_server import FakeLLM, last_text
from tests.integration.conftest import SETTINGS, TASK
from tests.unit.bench.made import write_package

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SETFIT = """
from pathlib import Path

class TrainingArguments:
    def __init__(self, **settings): pass

class Body:
    def float(self): pass

class SetFitModel:
    model_body = Body()
    @classmethod
    def from_pretrained(cls, body): return cls()
    def save_pretrained(self, folder): Path(folder).mkdir()
    def predict(self, texts, show_progress_bar): return [0] * len(texts)

class Trainer:
    def __init__(self, **settings): pass
    def train(self): pass
"""
OF_RECIPE = [setting for setting in SETTINGS if not setting.startswith("max_seq_length")]  # that is --max-length
QUICK = [*OF_RECIPE, "repetitions=1", *(f"{part}.max_steps=2" for part in ("finetune", "distill", "supervised"))]


@pytest.fixture
def data(tmp_path):
    """A data set of two labels with words of their own, as a file, and its task."""
    (tmp_path / "task.toml").write_text(TASK)
    words = {1: "slow broken tool", 2: "fine lovely game"}
    lines = [(1 + number % 2, f"{words[1 + number % 2]} number {number}") for number in range(80)]
    pd.DataFrame(lines, columns=["label", "text"]).to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


def options(data, **changes):
    fields = {
        "output": data / "bench",
        "data": [DataSource(str(data / "rows.csv"), str(data / "task.toml"))],
        "per_label": [4],
        "draws": 1,
        "methods": ["tfidf"],
        "recipe": "paper",
        "settings": QUICK,
        "max_length": 32,
        "devices": "cpu",
    }
    return BenchOptions(**fields | changes)


def accuracy(result, name, per_label=4):
    return result.summary.entry(Block("stars", per_label), name).accuracy.mean


def test_a_cell_runs_once_its_files_say_what_was_drawn_and_other_rows_need_another_folder(data):
    first = run_bench(options(data))
    assert (first.done, first.reused, first.failed) == (1, 0, 0)
    assert accuracy(first, "TF-IDF") == 1.0  # each label has words of its own
    (cell,) = (data / "bench" / "cells").iterdir()
    assert len(np.load(cell / "predictions.npy")) == 24  # 30% of the rows are held out
    written = json.loads(next((data / "bench" / "data").glob("*/data_set.json")).read_text())
    assert written["held_out"]
    assert len(written["test"]["row_numbers"]) == 24
    again = run_bench(options(data))
    assert (again.done, again.reused) == (0, 1)
    for refuse in (run_bench, plan_cost):
        for drawing in (DrawOptions(seed=1), DrawOptions(unlabeled_rows=3)):
            with pytest.raises(RunError, match="has other rows of 'stars'"):
                refuse(options(data, drawing=drawing))


def test_a_method_without_tokens_runs_once_for_every_length(data):
    assert run_bench(options(data, max_length=32)).done == 1
    assert run_bench(options(data, max_length=64)).reused == 1


def test_the_folder_of_a_training_is_refused_by_run_and_plan_alike(data):
    (data / "bench").mkdir()
    (data / "bench" / "run.json").write_text('{"kind": "train"}')
    for refuse in (run_bench, plan_cost):
        with pytest.raises(RunError, match="holds a run, not a bench"):
            refuse(options(data))


def test_a_plan_takes_times_of_cells_with_the_same_settings_only(data):
    options_of_cells = options(data, methods=["tfidf"])
    run_bench(options_of_cells)
    (path,) = (data / "bench" / "cells").glob("*/result.json")
    content = json.loads(path.read_text())
    path.rename(path.with_suffix(".old"))  # the cell is missing, and an earlier one of another size takes its time
    other = path.parent.with_name("other")
    other.mkdir()
    for changes, basis in (({"draw": 5}, "earlier cells"), ({"draw": 5, "per_label": 16}, "its start alone")):
        (other / "result.json").write_text(json.dumps(content | {"key": "other", "spec": content["spec"] | changes}))
        assert plan_cost(options_of_cells).methods[0].basis == basis


def test_cells_that_there_is_no_time_for_are_left_for_the_next_command(data):
    stopped = run_bench(options(data, hours=0.0))
    assert (stopped.done, stopped.left, stopped.files) == (0, 1, [])
    assert not (data / "bench" / "bench.html").exists()  # it would have empty tables
    console = Console()
    with console.capture() as capture:
        show_bench(console, stopped)
    assert capture.get() == "Out of time: 1 cell is left; the same command goes on.\n"
    assert run_bench(options(data)).done == 1


def test_a_rival_that_fails_is_shown_as_failed_with_its_log_and_tried_again(data, tiny_folder):
    packages = write_package(data / "packages", "setfit", "1.2.0", "import no_such_module")
    changes = {"methods": ["setfit"], "model": str(tiny_folder("bert")), "environments": {"setfit": packages}}
    result = run_bench(options(data, **changes))
    assert result.failed == 1
    (failure,) = result.summary.failures
    assert "No module named 'no_such_module'" in failure.reason
    assert "Traceback" in (data / "bench" / failure.file).read_text()
    assert "failed" in (data / "bench" / "bench.md").read_text()
    assert run_bench(options(data, **changes)).failed == 1


def test_a_rival_whose_environment_cannot_be_made_fails_with_the_reason_and_the_others_run(
    data, tiny_folder, monkeypatch
):
    def make_environment(rival, log):
        assert (data / "bench" / "run.json").is_file()  # a folder that is refused is refused before
        raise RunError("The environment for SetFit could not be made: No matching distribution; see pip.txt.")

    monkeypatch.setattr("clozify.bench.run.make_environment", make_environment)
    monkeypatch.setattr("clozify.bench.run.is_ready", lambda rival: False)
    result = run_bench(options(data, methods=["setfit", "tfidf"], model=str(tiny_folder("bert"))))
    assert (result.done, result.failed) == (1, 1)
    (failure,) = result.summary.failures
    reason = "The environment for SetFit could not be made: No matching distribution; see pip.txt"
    assert (failure.reason, failure.log) == (reason, reason)


def test_a_method_that_is_killed_fails_with_the_name_of_the_signal(data, tiny_folder):
    program = data / "python"
    program.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 1.2.0 && exit\necho half done\nkill -9 $$\n')
    program.chmod(0o755)
    changes = {"methods": ["setfit"], "model": str(tiny_folder("bert")), "environments": {"setfit": str(program)}}
    (failure,) = run_bench(options(data, **changes)).summary.failures
    assert failure.reason == "its process was ended by SIGKILL, probably out of memory"
    assert failure.log == "half done"


def test_a_rival_of_another_version_runs_again(data, tiny_folder):
    packages = {version: write_package(data / version, "setfit", version, SETFIT) for version in ("0.1", "0.2")}
    encoder = str(tiny_folder("bert"))
    changes = {"methods": ["setfit"], "model": encoder, "rival_options": {"setfit-encoder": encoder}}
    for version, folder in packages.items():
        result = run_bench(options(data, environments={"setfit": folder}, **changes))
        assert (result.done, result.reused) == (1, 0), result.summary.failures
        assert result.summary.methods[0].versions["setfit"] == version


def test_an_address_of_an_object_store_is_refused_as_it_was_typed(data, monkeypatch):
    command = ["bench", "--data", str(data / "rows.csv"), "--output", "s3://bucket/x", "--methods", "tfidf"]
    for more in ([], ["--plan"]):
        with pytest.raises(RunError, match="'s3://bucket/x'; name a folder"):
            app([*command, *more], standalone_mode=False)


def test_run_and_plan_refuse_the_same_folders(data):
    (data / "file").touch()
    for output, message in ((data / "file", "is a file"), (data, "but no bench")):
        for refuse in (run_bench, plan_cost):
            with pytest.raises(RunError, match=message):
                refuse(options(data, output=output))


def test_wrong_requests_are_refused_before_anything_is_written(data):
    for changes, message in (
        ({"methods": ["pett"]}, "did you mean 'pet'"),
        ({"methods": ["nli"]}, "needs --nli-model"),
        ({"per_label": [0]}, "at least 1"),
        ({"drawing": DrawOptions(held_out=2.0)}, "between 0 and 1"),
        ({"environments": {"setfitt": "python"}}, "did you mean 'setfit'"),
        ({"labels": ["1", "2"]}, "--labels names the labels of data without a task file"),
    ):
        with pytest.raises(DataError, match=message):
            run_bench(options(data, **changes))
    assert not (data / "bench").exists()


@pytest.mark.slow
def test_the_command_compares_tfidf_embeddings_supervised_training_and_pet(data, tiny_folder):
    words = ["--data", data / "rows.csv", "--task", data / "task.toml", "--per-label", "4", "--draws", "1"]
    words += [
        "--model",
        tiny_folder("bert"),
        "--recipe",
        "paper",
        "--max-length",
        "32",
        "--output",
        data / "bench",
        "--devices",
        "cpu",
    ]
    words += [word for setting in QUICK for word in ("--set", setting)]
    command = [sys.executable, "-m", "clozify", "bench", *map(str, words)]
    plan = subprocess.run([*command, "--plan"], capture_output=True, text=True, check=True).stdout
    assert "4 cells, 0 of them done." in plan
    assert not (data / "bench").exists()
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "TF-IDF  embeddings  supervised  PET" in shown.replace("   ", "  ")
    results = json.loads((data / "bench" / "results.json").read_text())
    assert {entry["method"] for entry in results["entries"]} == {"tfidf", "embeddings", "supervised", "pet"}
    for entry in results["entries"]:
        assert entry["training_seconds"] > 0
        assert entry["rows_per_second"] > 0
        assert entry["size_bytes"] > 0
        assert entry["memory_bytes"] > 0


@pytest.mark.slow
def test_untrained_methods_and_plain_fine_tuning_run(data, tiny_folder):
    methods = ["zero-shot", "finetune", "frozen"]
    result = run_bench(options(data, methods=methods, model=str(tiny_folder("bert"))))
    assert result.failed == 0, result.summary.failures


@pytest.mark.slow
def test_an_encoder_may_be_named_by_a_relative_path(data, tiny_folder, monkeypatch):
    """Cells run in folders of their own."""
    shutil.copytree(tiny_folder("bert"), data / "encoder")
    monkeypatch.chdir(data)
    result = run_bench(options(data, methods=["embeddings"], model="encoder"))
    assert result.done == 1, result.summary.failures


@pytest.mark.slow
def test_a_recipe_may_be_named_by_a_relative_path(data, tiny_folder, monkeypatch):
    (data / "mine.toml").write_text("repetitions = 1\n[supervised]\nmax_steps = 2\n")
    monkeypatch.chdir(data)
    changes = {"methods": ["supervised"], "model": str(tiny_folder("bert")), "recipe": "mine.toml", "settings": []}
    result = run_bench(options(data, **changes))
    assert result.done == 1, result.summary.failures


def cell_is_running(folder):
    """Whether a cell's process, whose job is in this folder, has been started."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            commands.append(path.read_bytes())
    return any(f"{folder}/".encode() in command and b"worker.py" in command for command in commands)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_killed_bench_keeps_its_cells_and_resumes(data):
    words = ["--data", data / "rows.csv", "--task", data / "task.toml", "--per-label", "4", "--draws", "6"]
    words += ["--methods", "tfidf", "--recipe", "paper", "--output", data / "bench", "--devices", "cpu"]
    words += [word for setting in QUICK for word in ("--set", setting)]
    (data / "tmp").mkdir()
    command = [sys.executable, "-m", "clozify", "bench", *map(str, words)]
    process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(data / "tmp")})
    deadline = time.monotonic() + 120
    while not list((data / "bench" / "cells").glob("[!.]*/result.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    while not cell_is_running(data / "tmp") and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while list((data / "tmp").glob("*/job.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list((data / "tmp").glob("*/job.json"))  # a cell's process removes its folder
    finished = (data / "bench" / "cells").glob("[!.]*/result.json")  # what is being written starts with a dot
    before = {path: path.read_bytes() for path in finished}
    assert before
    result = run_bench(options(data, draws=6))
    assert result.reused >= len(before)
    assert result.reused + result.done == 6
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.slow
def test_cells_run_in_several_processes(data):
    result = run_bench(options(data, draws=3, at_once=2))
    assert result.done == 3
    assert result.summary.at_once == 2


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_fits_a_phone_and_a_wide_screen_in_light_and_dark(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    from clozify.bench.results import read_results
    from clozify.bench.summary import summarize
    from clozify.bench.write import write_bench
    from tests.unit.bench.made import grid, write

    write(tmp_path, grid())
    page_path = write_bench(summarize(read_results(tmp_path), tmp_path, ["clozify bench"]), tmp_path)[0]
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (360, 1280):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
                requests, errors = [], []
                page.on("request", lambda request, requests=requests: requests.append(request.url))
                page.on("console", lambda message, errors=errors: errors.append(message.text))
                page.goto(page_path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator("svg.chart").count() == 5
                assert len(requests) == 1  # nothing is loaded
                assert not errors
                page.close()
        browser.close()


@pytest.mark.slow
def test_an_nli_model_and_an_llm_answer_without_training(data, tiny_folder, monkeypatch):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    names = {"id2label": {0: "entailment", 1: "not_entailment"}, "label2id": {"entailment": 0, "not_entailment": 1}}
    model = AutoModelForSequenceClassification.from_pretrained(tiny_folder("bert"), **names)
    model.save_pretrained(data / "nli")
    AutoTokenizer.from_pretrained(tiny_folder("bert")).save_pretrained(data / "nli")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with FakeLLM(lambda body: "1" if "slow" in last_text(body) else "2") as server:
        (data / "llm.toml").write_text(f'model = "m"\nbase_url = "{server.url}"\n')
        chosen = {"nli-model": str(data / "nli"), "llm": str(data / "llm.toml")}
        result = run_bench(options(data, methods=["nli", "llm"], rival_options=chosen))
    assert result.failed == 0, result.summary.failures
    assert accuracy(result, "LLM") == 1.0
    assert accuracy(result, "NLI zero-shot") <= 1.0
    assert not any(b"sk-secret" in path.read_bytes() for path in (data / "bench").rglob("*") if path.is_file())
