"""The command as a process: under another locale, and interrupted."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from clozify.config.task import load_task
from tests.integration.conftest import SETTINGS

FAKE_PREDICT = """
import sys
import numpy as np
from clozify.inference.finished_run import FinishedRun
FinishedRun.probabilities = lambda self, rows: np.array([[0.25, 0.75]] * len(rows))
from clozify.cli import main
sys.argv = ["clozify", "predict", *sys.argv[1:]]
main()
"""
WAIT = """
import sys, time
from clozify.cli import app, main

class Slow:
    def __del__(self):
        time.sleep(1)

@app.command()
def wait():
    slow = Slow()
    try:
        print("started", flush=True)
        time.sleep(60)
    finally:
        del slow

sys.argv = ["clozify", "wait"]
main()
"""


def test_labels_beyond_ascii_are_written_under_a_locale_that_lacks_them(tmp_path):
    task = {"fields": ["text"], "labels": {"übel": "bad", "schön 😀": "great"}, "patterns": ["It was {mask}. {text}"]}
    (tmp_path / "classifier").mkdir()
    load_task(task).save(tmp_path / "classifier" / "task.toml")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", FAKE_PREDICT, str(tmp_path), "--text", "x"]
    printed = subprocess.run(command, env=os.environ | locale, capture_output=True, check=True).stdout
    assert json.loads(printed)["prediction"] == "schön 😀"


@pytest.mark.slow
def test_paths_and_texts_beyond_ascii_work_under_a_locale_that_lacks_them(files, tiny_folder):
    """Tokenizers and safetensors take UTF-8 paths alone, whatever the locale."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    model = ["--model", str(tiny_folder("bert")), *[word for setting in SETTINGS for word in ("--set", setting)]]

    def run(*words):
        command = [sys.executable, "-m", "clozify", *words]
        return subprocess.run(command, env=os.environ | locale, capture_output=True, check=True, cwd=files).stdout

    run("train", "task.toml", "--labeled", "labeled.csv", "--method", "supervised", "--output", "rün", *model)
    assert (files / "rün" / "classifier" / "model.safetensors").is_file()
    answer = json.loads(run("predict", "rün", "--text", "é 😀", "--with-text"))
    assert answer["text"] == "é 😀"


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_second_interrupt_does_not_disturb_the_cleaning_up():
    with subprocess.Popen(
        [sys.executable, "-c", WAIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        error = process.stderr.read().decode()
        assert process.wait(30) == 130
    assert "Exception ignored" not in error
    assert "Traceback" not in error
