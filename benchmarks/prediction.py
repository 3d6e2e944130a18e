"""Rows per second of a classifier's predictions, by `clozify predict` and `clozify serve`, against SetFit's.

Both have the same encoder, truncation length, rows and threads; every side is loaded once, in a process of its own, and
they predict in turns. The rows are those of the sample data's test set, whole and the summaries alone. SetFit is
`SetFitModel.predict_proba`; it has no server, so the server, with several clients that send small requests at once, is
compared with SetFit within a process. `against SetFit` is by the clock; `by processor time` divides the seconds that
the processors worked for each side, which other programs on the machine disturb less. Without `--run`, the classifier
is the model with a head fitted to labelled rows. The last table compares the answers with float32's.

SetFit is installed or named as for `setfit_comparison.py`.

    python benchmarks/prediction.py [--model builtin] [--run DIR] [--rows 128] [--lengths 64,128] [--setfit-site FOLDER]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from setfit_comparison import python_path, setfit_way
from setfit_worker import make_body, seconds_of

HERE = Path(__file__).resolve().parent
REQUEST_ROWS = 4
SIDES = {"setfit": "SetFit", "float32": "clozify, float32", "auto": "clozify"}


class Worker:
    """A process that has loaded one side and predicts on request."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()  # it is loaded

    def seconds(self, kind: str) -> tuple[float, float]:
        """The seconds to predict all rows of a kind: by the clock, and of the processors."""
        assert self._process.stdin is not None
        print(kind, file=self._process.stdin, flush=True)
        wall, processors = self._answer().split()
        return float(wall), float(processors)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return line.removeprefix("answer ")
        sys.exit("A worker ended too early; see the messages above.")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def work(side: str, job: dict[str, Any]) -> None:
    """Load a side, then predict the rows of each kind that is read from the standard input and print the seconds."""
    predict = load_setfit(job) if side == "setfit" else load_clozify(side, job)
    print("answer loaded", flush=True)
    for line in sys.stdin:
        began = time.process_time()
        wall = seconds_of(partial(predict, line.strip()))
        print(f"answer {wall} {time.process_time() - began}", flush=True)


def load_setfit(job: dict[str, Any]) -> Any:
    """SetFit with the job's encoder and a head fitted to a few of its texts."""
    from setfit import SetFitModel

    make_body(job["model"], job["length"], Path(job["folder"]) / "body")
    model = SetFitModel.from_pretrained(str(Path(job["folder"]) / "body"), device="cpu")
    texts = {kind: [" ".join(row.values()).strip() for row in rows] for kind, rows in job["rows"].items()}
    few = texts["whole"][: 2 * len(job["labels"])]
    labels = np.resize(np.arange(len(job["labels"])), len(few))
    model.model_head.fit(model.encode(few), labels)
    return lambda kind: model.predict_proba(texts[kind], as_numpy=True, show_progress_bar=False)


def load_clozify(precision: str, job: dict[str, Any]) -> Any:
    """clozify's classifier in a precision."""
    from clozify.data.in_memory import load_rows
    from clozify.inference.finished_run import FinishedRun

    finished = FinishedRun(Path(job["folder"]) / "classifier", precision=precision)
    rows = {kind: load_rows(texts, finished.task) for kind, texts in job["rows"].items()}
    finished.loaded_classifier  # noqa: B018 - loads it
    return lambda kind: finished.probabilities(rows[kind])


def fit_head(model: str, length: int) -> Any:
    """The model as a classifier of the sample task, its last layer fitted to the labelled rows."""
    import torch
    from sklearn.linear_model import LogisticRegression

    from clozify.config.recipe import load_recipe
    from clozify.config.task import load_task
    from clozify.data.few_shot import few_shot
    from clozify.data.rows import read_rows
    from clozify.models.classifier import new_classifier

    torch.manual_seed(0)
    task = load_task("debian")
    classifier = new_classifier(model, task, load_recipe("quick", [f"max_seq_length={length}"]), "cpu")
    last = [module for module in classifier.model.modules() if isinstance(module, torch.nn.Linear)][-1]
    seen: list[torch.Tensor] = []
    labeled = few_shot(read_rows("builtin:labeled", task), 8 * len(task.labels))
    encoded = classifier.encode(labeled)
    with torch.inference_mode():
        classifier.scores(encoded.batch(np.arange(1)))  # at first the head runs more than once, to be tried out
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for start in range(0, len(labeled), 8):
            classifier.scores(encoded.batch(np.arange(start, min(start + 8, len(labeled)))), one_pass=True)
    hook.remove()
    fitted = LogisticRegression(C=10, max_iter=500).fit(torch.cat(seen).numpy(), labeled.labels)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(fitted.coef_))
        last.bias.copy_(torch.from_numpy(fitted.intercept_))
    return classifier


def save_classifier(run: Path | None, model: str, length: int, folder: Path) -> None:
    """Write the run's classifier, or the model with a fitted head, with a truncation length."""
    from clozify.models.classifier import load_classifier

    classifier = fit_head(model, length) if run is None else load_classifier(run / "classifier", "cpu")
    classifier.max_length = length
    classifier.save(folder)


@contextmanager
def serving(folder: Path, environment: dict[str, str]) -> Iterator[tuple[int, psutil.Process]]:
    """The port of `clozify serve` with a classifier, and its process."""
    command = [sys.executable, "-m", "clozify", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield int(line.split("http://127.0.0.1:")[1].split()[0]), psutil.Process(process.pid)
        finally:
            process.terminate()


def served_seconds(port: int, process: psutil.Process, rows: list[dict[str, str]], clients: int) -> tuple[float, float]:
    """The seconds until several clients, a few rows in each request, have all answers: by the clock, of the server."""
    import http.client

    bodies = [json.dumps({"rows": rows[n : n + REQUEST_ROWS]}) for n in range(0, len(rows), REQUEST_ROWS)]

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in bodies[number::clients]:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert len(json.loads(answer.read())["predictions"])
            assert answer.status == 200

    began, worked = time.perf_counter(), sum(process.cpu_times()[:2])
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(send, range(clients)))
    return time.perf_counter() - began, sum(process.cpu_times()[:2]) - worked


def answers(folder: Path, count: int) -> str:
    """A table line: how int8 answers the sample's test rows in comparison with float32."""
    from clozify.data.rows import read_rows
    from clozify.inference.finished_run import FinishedRun

    by_precision = {precision: FinishedRun(folder, precision=precision) for precision in ("float32", "auto")}
    rows = read_rows("builtin:test", by_precision["auto"].task)
    rows = rows.select(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))
    expected, actual = (finished.probabilities(rows) for finished in by_precision.values())
    right = [100 * float((p.argmax(axis=1) == rows.labels).mean()) for p in (expected, actual)]
    same = 100 * float((expected.argmax(axis=1) == actual.argmax(axis=1)).mean())
    chosen = by_precision["auto"].loaded_classifier.precision
    difference = float(np.abs(expected - actual).mean())
    return f"| {chosen} | {len(rows):,} | {same:.1f}% | {difference:.4f} | {right[0]:.1f} | {right[1]:.1f} |"


def measure(job: dict[str, Any], setfit: list[str], site: str | None, options: dict[str, int]) -> Iterator[str]:
    """The table lines of one truncation length."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(options["threads"]))
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    job_file = Path(job["folder"]) / "job.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    with ExitStack() as stack:
        workers = {}
        for side in SIDES:
            python = setfit if side == "setfit" else [sys.executable]
            extra = python_path(site) if side == "setfit" else {}
            command = [*python, str(HERE / "prediction.py"), "--worker", side, "--job", str(job_file)]
            workers[side] = Worker(command, environment | extra)
            stack.callback(workers[side].close)
        port, process = stack.enter_context(serving(Path(job["folder"]) / "classifier", environment))
        for kind, rows in job["rows"].items():
            seconds: dict[str, list[tuple[float, float]]] = {}
            for number in range(options["repeats"] + 1):  # the first is a warm-up
                turn = {side: worker.seconds(kind) for side, worker in workers.items()}
                turn["serve"] = served_seconds(port, process, rows, options["clients"])
                for name, value in turn.items() if number else ():
                    seconds.setdefault(name, []).append(value)
            for name, values in seconds.items():
                title = SIDES.get(name, f"clozify serve, {options['clients']} clients")
                rate = len(rows) / statistics.median(wall for wall, _ in values)
                pairs = list(zip(seconds["setfit"], values, strict=True))
                by_clock, by_processor = (statistics.median(base[n] / own[n] for base, own in pairs) for n in (0, 1))
                yield f"| {job['length']} | {kind} | {title} | {rate:.0f} | {by_clock:.2f} | {by_processor:.2f} |"


def main(
    model: Annotated[str, typer.Option(help="'builtin', a folder, or a name of the hub.")] = "builtin",
    run: Annotated[Path | None, typer.Option(help="A finished run of the task 'debian' with that model.")] = None,
    rows: Annotated[int, typer.Option(help="Test rows, evenly spread.")] = 128,
    lengths: Annotated[str, typer.Option(help="Truncation lengths, separated by commas.")] = "64,128",
    repeats: Annotated[int, typer.Option(help="Turns; medians count.")] = 5,
    compared: Annotated[int, typer.Option(help="Test rows that precisions are compared on.")] = 1_057,
    threads: Annotated[int, typer.Option(help="Threads of every side.")] = os.cpu_count() or 1,
    clients: Annotated[int, typer.Option(help="Clients of the server.")] = 8,
    cache: Annotated[Path, typer.Option(help="The folder of SetFit's environment.")] = Path("~/.cache/clozify-setfit"),
    python: Annotated[str | None, typer.Option("--setfit-python", help="A Python that has SetFit.")] = None,
    site: Annotated[str | None, typer.Option("--setfit-site", help="A folder with SetFit, for this Python.")] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
    job_file: Annotated[Path | None, typer.Option("--job", hidden=True)] = None,
) -> None:
    """Print Markdown tables of the speeds and of the answers."""
    if worker and job_file:
        work(worker, json.loads(job_file.read_text(encoding="utf-8")))
        return
    import torch

    from clozify.config.task import load_task
    from clozify.data.rows import read_rows
    from clozify.models.cloze import load_model

    task = load_task("debian")
    setfit = setfit_way(python, site, cache)
    test = read_rows("builtin:test", task)
    test = test.select(np.linspace(0, len(test) - 1, rows).astype(np.int64))
    summaries, descriptions = test.texts("summary"), test.texts("description")
    job: dict[str, Any] = {
        "labels": task.labels,
        "rows": {
            "whole": [{"summary": s, "description": d} for s, d in zip(summaries, descriptions, strict=True)],
            "summary": [{"summary": s, "description": ""} for s in summaries],
        },
    }
    options = {"repeats": repeats, "threads": threads, "clients": clients}
    print(f"{model}, {rows} rows, {threads} threads, torch {torch.__version__}, {os.getloadavg()[0]:.1f} load average")
    print("\n| length | rows | side | rows/s | against SetFit | by processor time |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "model"
        load_model(model, "cpu").save(source)  # as a folder in float32, which SetFit reads too
        for length in map(int, lengths.split(",")):
            folder = Path(scratch) / str(length)
            save_classifier(run, model, length, folder / "classifier")
            part = job | {"model": str(source), "length": length, "folder": str(folder)}
            for line in measure(part, setfit, site, options):
                print(line, flush=True)
        print(
            "\n| precision | rows | labels as in float32 | mean probability difference | accuracy, float32 | accuracy |"
        )
        print("|---|---|---|---|---|---|")
        print(answers(Path(scratch) / lengths.split(",")[0] / "classifier", compared))


if __name__ == "__main__":
    typer.run(main)
