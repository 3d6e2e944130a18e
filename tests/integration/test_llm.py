"""An LLM behind an address in the commands, and real servers on loopback with SmolLM2."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import filelock
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app, main
from clozify.data.in_memory import make_rows
from clozify.teachers.base import ScoringContext
from clozify.teachers.llm_cache import FILE
from clozify.teachers.openai import OpenAITeacher
from tests.fake_llm_server import FakeLLM, error, last_text
from tests.smollm2 import pip, skip_without_index, smollm2_gguf

KEY = "sk-very-secret-4711"
ENTRY = """
[[teachers]]
kind = "openai"
model = "m"
base_url = "{url}"
input_price = 1.0
output_price = 1.0
"""
RULES = """
[[rules]]
label = "1"
any = ["game", "mail", "music"]
[[rules]]
label = "2"
any = ["tool", "fonts", "data"]
"""


@pytest.fixture
def server(files, monkeypatch):
    """A server of a task's teacher, which knows the labels of even and odd rows."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(files / "cache"))
    with FakeLLM(lambda body: "12"[int(last_text(body).split()[-1]) % 2]) as fake:
        path = files / "task.toml"
        path.write_text(path.read_text() + ENTRY.format(url=fake.url))
        yield fake


def files_with_key(folder):
    return [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_an_llm_votes_in_a_run_that_resumes_for_nothing_and_keeps_no_key(start_run, files, server):
    log = []
    metrics = start_run(log=log.append).metrics
    votes = {teacher.name: teacher for teacher in metrics.teachers}["m"]
    assert votes.votes_on_labeled == votes.correct_on_labeled == 10
    assert votes.coverage == 1.0
    asked = [last_text(body) for body in server.requests if "logprobs" not in body]
    assert len(asked) == len(set(asked)) == 100  # T, the unlabelled and the test rows
    sent = len(server.requests)
    start_run(log=log.append)
    assert len(server.requests) == sent
    assert not files_with_key(files)
    assert KEY not in "\n".join(log)


def test_a_budget_limits_a_run_and_a_higher_one_pays_for_the_difference(start_run, server):
    start_run(budget="25requests")
    sent = len(server.requests)
    assert sent == 25 + 1  # one that asks for log-probabilities, in vain
    with pytest.raises(clozify.ClozifyError, match="replace"):
        start_run(budget="30requests", replace=False)
    start_run(budget="30requests")
    assert len(server.requests) == sent + 5


def command(files, tiny_folder, *arguments):
    model = ("--model", str(tiny_folder("bert")))
    return CliRunner().invoke(app, [arguments[0], str(files / "task.toml"), *model, *arguments[1:]])


def test_the_plan_says_what_an_llm_costs_and_sends_nothing(files, tiny_folder, server):
    data = ("--labeled", str(files / "labeled.csv"), "--unlabeled", str(files / "unlabeled.csv"))
    result = command(files, tiny_folder, "train", *data, "--output", str(files / "run"), "--plan")
    assert result.exit_code == 0, result.output
    assert "60" in result.output  # requests
    assert not server.requests


def _without_notes(output):
    return [line for line in output.splitlines() if not line.startswith("note: m:")]


def test_zero_shot_asks_an_llm(files, tiny_folder, server):
    arguments = ("zero-shot", "--data", str(files / "test.csv"), "--budget", "7requests")
    result = command(files, tiny_folder, *arguments)
    assert result.exit_code == 0, result.output
    assert len([body for body in server.requests if "logprobs" not in body]) == 7
    sent = len(server.requests)
    again = command(files, tiny_folder, *arguments)
    assert _without_notes(again.output) == _without_notes(result.output)
    assert len(server.requests) == sent
    assert "0 requests sent" in again.output
    assert not files_with_key(files)


def test_an_ensemble_asks_its_llm_within_a_budget_only(start_run, files, server):
    start_run(unlabeled=None)
    sent, rows = len(server.requests), ["a slow tool number 201", "mail for all number 202"]
    silent = clozify.load_run(files / "run")
    without = silent.predict(rows).probabilities
    assert len(server.requests) == sent
    assert any("'m' is asked within a budget only (2 requests, about" in note for note in silent.notes)
    asking = clozify.load_run(files / "run", budget="10requests")
    asked = asking.predict(rows).probabilities
    assert len(server.requests) == sent + 2
    assert any("2 requests sent" in note for note in asking.notes)
    assert asked[0, 1] > without[0, 1]  # its vote is that of the row's number
    assert asked[1, 0] > without[1, 0]
    prompts = [body["messages"][0]["content"] for body in server.requests[-2:]]
    assert all("a fine game number 0" in prompt for prompt in prompts)  # an example from T, as in training
    again = clozify.load_run(files / "run", budget="10requests").predict(rows).probabilities
    np.testing.assert_allclose(again, asked)
    assert len(server.requests) == sent + 2
    test = clozify.load_run(files / "run", budget="100requests").evaluate(files / "test.csv")
    assert len(server.requests) == sent + 2  # the run has paid for these answers
    assert test.accuracy == start_run(unlabeled=None).metrics.ensemble.accuracy


def test_a_budget_where_no_llm_is_asked_is_an_error(start_run, files, server):
    start_run()
    with pytest.raises(clozify.ClozifyError, match="ask no LLM; leave the budget out"):
        clozify.load_run(files / "run", budget="10requests")


def test_under_a_limit_the_run_says_what_its_test_figures_lack(start_run, files, server):
    path = files / "task.toml"
    path.write_text(path.read_text() + "rows = 20\n")
    result = start_run()
    (warning,) = [warning for warning in result.metrics.warnings if "lack its votes" in warning]
    assert warning.startswith("'m' is asked about a limited number of rows and not about test rows")
    assert "The classifier's figures are those of all" in warning
    assert "lack its votes" in result.report.read_text()
    gains = {teacher.name: teacher.gain for teacher in result.metrics.teachers}
    assert gains["m"] is None
    assert gains["patterns"] is not None
    assert not set(map(last_text, server.requests)) & set(pd.read_csv(files / "test.csv")["text"])


@pytest.mark.parametrize("answers", ["log-probabilities", "several"])
def test_a_label_that_an_llm_prefers_in_any_text_is_corrected_for(files, tiny_folder, server, answers):
    """Its answers name the first label in every row, less surely where the second is right; rules know better."""

    def probabilities(body):
        is_second = int(last_text(body).split()[-1]) % 2
        return {"1": 0.55, "2": 0.45} if is_second else {"1": 0.95, "2": 0.05}

    server.top = probabilities
    path = files / "task.toml"
    if answers == "several":  # five of nine answers, or all
        server.answer = lambda body: "12"[int(probabilities(body)["2"] > 0.4 and body["seed"] % 2)]
        path.write_text(path.read_text() + "answers = 9\n")
    else:
        server.logprobs = "give"
    path.write_text(path.read_text() + RULES)
    result = clozify.zero_shot(files / "task.toml", files / "test.csv", str(tiny_folder("bert")))
    teachers = [teacher.name for teacher in result.teachers]  # the patterns are the first
    assert result.teachers[teachers.index("m")].accuracy == 0.5  # as it votes
    offsets = result.scores.weights[teachers.index("m")].offsets
    assert offsets[0] < offsets[1]
    raw = result.scores.other_scores[teachers.index("m") - 1]
    assert ((raw + np.array(offsets)).argmax(axis=1) == result.rows.labels).all()


@pytest.mark.parametrize(
    ("fault", "said"), [(error(401, f"bad key {KEY}"), "OPENAI_API_KEY"), (error(404, "nothing here"), "base_url")]
)
def test_a_wrong_key_or_address_is_one_sentence_and_status_2(
    files, tiny_folder, server, fault, said, monkeypatch, capsys
):
    server.faults = [fault] * 10
    arguments = ["zero-shot", str(files / "task.toml"), "--data", str(files / "test.csv")]
    monkeypatch.setattr(sys, "argv", ["clozify", *arguments, "--model", str(tiny_folder("bert"))])
    with pytest.raises(SystemExit) as caught:
        main()
    output = capsys.readouterr()
    assert caught.value.code == 2, output.err
    assert said in output.err
    assert KEY not in output.out + output.err


SCORING = """
import sys
from pathlib import Path
import numpy as np
from tests.integration.test_llm import score_reviews
np.save(sys.argv[3], score_reviews(sys.argv[1], sys.argv[2], Path(sys.argv[4]), answers=2))
"""
TEXTS = [
    f"The {thing} was {word}."
    for thing in ("soup", "waiter", "room", "wine")
    for word in ("delightful", "awful", "perfect")
]


def score_reviews(url, model, cache, **settings):
    """The scores of a dozen short reviews."""
    from clozify.config.task import load_task
    from clozify.config.teachers import OpenAIEntry

    labels = {"positive": "great", "negative": "terrible"}
    task = load_task({"fields": ["text"], "patterns": ["{text} It was {mask}."], "labels": labels})
    labeled = {"text": ["What an evening!", "The worst pizza."], "label": ["positive", "negative"]}
    context = ScoringContext(make_rows(labeled, task, "T"), "cpu", cache, print)
    entry = OpenAIEntry(kind="openai", model=model, base_url=url, concurrency=2, timeout=300, **settings)
    return OpenAITeacher(entry, task).score(make_rows({"text": TEXTS}, task, "D"), context)


@contextmanager
def running(command, log_path, health):
    """A server process on a free port (the last argument of the command); yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log_path.open("w") as log:
        process = subprocess.Popen([*command, str(port)], stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            deadline = time.monotonic() + 300
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, log_path.read_text()[-2000:]
                    assert time.monotonic() < deadline, log_path.read_text()[-2000:]
                    time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def posts(log_path):
    """How many requests a server has answered, by its log."""
    return log_path.read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')


@pytest.fixture(scope="module")
def smollm2_folder(request, tmp_path_factory):
    """SmolLM2 as a folder of Transformers: its server loads no GGUF file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf, folder = smollm2_gguf(request.config), tmp_path_factory.mktemp("models") / "smollm2"
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, quantization_config=dense)
    model.hf_quantizer = None  # Transformers would refuse to save it, although its weights are plain now
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_transformers_serve_answers_and_a_killed_run_continues(smollm2_folder, tmp_path):
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    serve = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve"]
    log = tmp_path / "server.log"
    with running([*serve, str(smollm2_folder), "--device", "cpu", "--port"], log, "/health") as url:
        arguments = [url, str(smollm2_folder), str(tmp_path / "scores.npy"), str(tmp_path / "cache")]
        scoring = [sys.executable, "-c", SCORING, *arguments]
        process = subprocess.Popen(scoring, env=environment, cwd=root)
        deadline = time.monotonic() + 300
        while posts(log) < 8 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = posts(log)
        assert 8 <= before < 2 * len(TEXTS)
        with closing(sqlite3.connect(tmp_path / "cache" / FILE)) as database:
            ((kept,),) = database.execute("SELECT COUNT(*) FROM answers")
        assert before - kept <= 2  # as many as are under way at a time
        done = subprocess.run(scoring, env=environment, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        asked_again = int(done.stdout.split(" requests sent")[0].split()[-1].replace(",", ""))
        assert asked_again <= posts(log) - kept <= asked_again + 2
        scores = np.load(tmp_path / "scores.npy")
        voted = np.isfinite(scores).any(axis=1)
        assert voted.any()
        np.testing.assert_allclose(np.exp(scores[voted]).sum(axis=1), 1, rtol=1e-5)
        again = subprocess.run(scoring, env=environment, cwd=root, capture_output=True, text=True, check=True)
        assert "0 requests sent" in again.stdout
        np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), scores)


@pytest.fixture(scope="module")
def llama_cpp_python(request):
    """The interpreter of an environment with llama-cpp-python and its server, compiled from source once."""
    folder = Path(request.config.cache.mkdir("llama-cpp-python"))
    python = folder / "venv" / "bin" / "python"
    with filelock.FileLock(folder / "lock"):
        if not (folder / "built").exists():
            if shutil.which("c++") is None:
                pytest.skip("there is no C++ compiler for llama-cpp-python")
            skip_without_index(folder / "wheels", "diskcache")  # small, and needed as well
            subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
            # not for this processor alone: the folder may be used on another one
            flags = os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DGGML_AVX512=OFF"}
            done = pip("install", "--quiet", "llama-cpp-python[server]", python=str(python), env=flags)
            assert done.returncode == 0, done.stderr[-3000:]
            (folder / "built").touch()
    return python


@pytest.mark.slow
def test_llama_cpp_gives_log_probabilities(llama_cpp_python, request, tmp_path):
    log = tmp_path / "server.log"
    serve = [str(llama_cpp_python), "-m", "llama_cpp.server", "--model", str(smollm2_gguf(request.config))]
    with running([*serve, "--n_ctx", "2048", "--n_threads", "1", "--port"], log, "/v1/models") as url:
        scores = score_reviews(url, "smollm2", tmp_path / "cache", logprobs=True)
        assert posts(log) == len(TEXTS)
        assert np.isfinite(scores).all()
        assert np.unique(scores[:, 0]).size > 2  # probabilities, not votes
        np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(score_reviews(url, "smollm2", tmp_path / "cache", logprobs=True), scores)
        assert posts(log) == len(TEXTS)
