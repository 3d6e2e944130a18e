"""The static student against the transformer that it learns from, and against Model2Vec: accuracy and rows a second.

PET trains a transformer on 100 labelled rows of AG's News (25 a label; the recipe auto) and labels the rows of
train_pool.csv; static classifiers learn from 1,000, 3,000, ... of these rows. Model2Vec distils the same encoder and
trains its classifier on the same 100 labelled rows. Every side then predicts test rows in turns, in a process of its
own, loaded once, with all processors: texts in memory in, labels out.

Everything is kept in WORK (the run, the labels in pieces of 500 rows, Model2Vec's model), so that a stopped benchmark
goes on where it was. With `--held-out` the accuracy is that on the last sixth of the labelled pool rows, which no
student is trained on: choose settings there. `--model2vec` is the Python of an environment with
`model2vec[distill,train,inference]`; without it there is no such line.

    CLOZIFY_AGNEWS_FOLDER=data python benchmarks/static_student.py WORK [--rows 30000] [--model2vec PYTHON]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.data.rows import Rows
    from clozify.inference.finished_run import FinishedRun
    from clozify.models.static_classifier import StaticClassifier

PIECE = 500  # rows that are labelled and kept at a time
HELD_OUT = 6  # of the labelled rows of the pool, the last sixth
SIZES = (1_000, 3_000, 10_000, 30_000)
TIMED = {"transformer": 100, "static": 7_600, "static, from a file": 7_600, "model2vec": 7_600}  # test rows
ROUNDS = 5


def data(name: str) -> Path:
    """A file of AG's News."""
    return Path(os.environ["CLOZIFY_AGNEWS_FOLDER"]) / name


def train_transformer(work: Path, examples: int, settings: list[str]) -> FinishedRun:
    """The run of PET."""
    import clozify

    if not (work / "run" / "metrics.json").is_file():
        clozify.train(
            "agnews",
            data("train_first1000_per_class.csv"),
            work / "run",
            unlabeled=data("train_pool.csv"),
            examples=examples,
            settings=["estimate.folds=0", *settings],
            log=lambda line: print(line, file=sys.stderr, flush=True),
        )
    return clozify.load_run(work / "run")


def label(work: Path, run: FinishedRun, name: str, rows: Rows, count: int) -> NDArray[np.float64]:
    """The transformer's probabilities of the first rows, (count, labels)."""
    (work / name).mkdir(parents=True, exist_ok=True)
    pieces = []
    for start in range(0, min(count, len(rows)), PIECE):
        path = work / name / f"{start:06d}.npy"
        if not path.is_file():
            began = time.monotonic()
            np.save(path, run.probabilities(rows.select(np.arange(start, min(start + PIECE, len(rows))))))
            seconds = time.monotonic() - began
            print(f"{name}: rows {start:,} and on labelled in {seconds:.0f} s", file=sys.stderr, flush=True)
        pieces.append(np.load(path))
    return np.concatenate(pieces)[:count]


def train_static(run: FinishedRun, rows: Rows, targets: NDArray[np.float64]) -> tuple[StaticClassifier, float, float]:
    """A static classifier of rows with these probabilities and of T, C, and the seconds that it took."""
    import clozify
    from clozify.data.few_shot import few_shot
    from clozify.data.label_matrix import indicators
    from clozify.methods.static_student import fit_static
    from clozify.models.static_classifier import StaticClassifier
    from clozify.pipeline.static_student import HELD_OUT as EVERY

    labeled = few_shot(clozify.read_rows(data("train_first1000_per_class.csv"), run.task), run.metrics.rows["labeled"])
    sources = [rows.select(np.arange(len(targets))), labeled]
    texts = {field: [text for each in sources for text in each.texts(field)] for field in run.task.fields}
    began = time.monotonic()
    fit = fit_static(texts, np.concatenate([targets, indicators(labeled)]), np.arange(0, len(targets), EVERY))
    seconds = time.monotonic() - began
    return StaticClassifier(fit.weights, run.task), fit.inverse_penalty, seconds


def accuracy(run: FinishedRun, scores: NDArray[Any], rows: Rows) -> float:
    """The share of rows whose likeliest label is right."""
    return float((run.decision.predict(scores) == rows.labels).mean())


def compare_accuracy(work: Path, run: FinishedRun, count: int, test_rows: int, held_out: bool) -> None:
    """Print the accuracy of the transformer and of static students of more and more rows; keep the last student."""
    import clozify

    pool = clozify.read_rows(data("train_pool.csv"), run.task)
    pool = pool.select(np.random.default_rng(0).permutation(len(pool)))  # the file begins with rows of one label
    of_pool = label(work, run, "train_pool", pool, count)
    if held_out:
        trained = len(of_pool) - len(of_pool) // HELD_OUT
        test, of_pool, of_test = pool.select(np.arange(trained, len(of_pool))), of_pool[:trained], of_pool[trained:]
    else:
        test = clozify.read_rows(data("test.csv"), run.task)
        test = test.select(np.arange(min(test_rows, len(test))))
        of_test = label(work, run, "test", test, len(test))
    transformer = accuracy(run, of_test, test)
    name = "held-out" if held_out else "test"
    print(f"| classifier | accuracy on {len(test):,} {name} rows | of the transformer's | agreement | C | training |")
    print("|---|---:|---:|---:|---:|---:|")
    print(f"| transformer | {100 * transformer:.1f} | 100% | 100% | | |")
    for size in [size for size in SIZES if size < len(of_pool)] + [len(of_pool)]:
        static, inverse_penalty, seconds = train_static(run, pool, of_pool[:size])
        scores = static.score_texts({field: test.texts(field) for field in run.task.fields})
        own, same = accuracy(run, scores, test), (scores.argmax(axis=1) == of_test.argmax(axis=1)).mean()
        print(
            f"| static, {size:,} rows | {100 * own:.1f} | {100 * own / transformer:.1f}% | {100 * same:.1f}% | "
            f"{inverse_penalty:g} | {seconds:.0f} s |",
            flush=True,
        )
    static.save(work / "static")
    size = (work / "static" / "model.safetensors").stat().st_size
    print(f"\nThe last one's file has {size / 1e6:.1f} MB and {len(static.weights.keys):,} words and pairs.\n")


def load_side(side: str, work: Path) -> Callable[[int], object]:
    """A function that predicts the first test rows."""
    if side == "model2vec":
        return load_model2vec(work)
    import clozify

    run = clozify.load_run(work / ("run" if side == "transformer" else "static"))
    rows = clozify.read_rows(data("test.csv"), run.task)
    if side != "static":
        return lambda count: run.decision.predict(run.probabilities(rows.select(np.arange(count))))
    texts = {field: rows.texts(field) for field in run.task.fields}
    classifier: Any = run.loaded_classifier

    def predict(count: int) -> object:
        scores = classifier.score_texts({field: of_field[:count] for field, of_field in texts.items()})
        return run.decision.predict(run.decision.probabilities(scores))

    return predict


def load_model2vec(work: Path) -> Callable[[int], object]:
    """Model2Vec's classifier, trained once; this runs in an environment without clozify."""
    from model2vec.inference import StaticModelPipeline

    job = json.loads((work / "model2vec.json").read_text())
    if not (work / "model2vec").is_dir():
        sys.path.insert(0, job["rivals"])
        texts = {"labeled": job["labeled"], "test": job["test"]}
        import_module("model2vec_rival").train(
            SimpleNamespace(
                encoder=str(work / "encoder"),
                device="cpu",
                seed=0,
                work=str(work),
                label_indices=job["labels"],
                texts=texts.__getitem__,
            )
        )
        (work / "trained").rename(work / "model2vec")
    pipeline = StaticModelPipeline.from_pretrained(str(work / "model2vec"))
    predicted = np.asarray([int(label) for label in pipeline.predict(job["test"])])
    print(f"accuracy {(predicted == np.asarray(job['truth'])).mean()}", flush=True)
    return lambda count: pipeline.predict(job["test"][:count])


def write_model2vec_job(work: Path, run: FinishedRun) -> None:
    """Write what Model2Vec's process reads: the encoder, the rows, and clozify's adapter of it."""
    import shutil

    import clozify
    from clozify.bench.rivals import model2vec
    from clozify.data.few_shot import few_shot

    if not (work / "encoder").is_dir():
        clozify.load_model("builtin").save(work / "encoder")
    labeled = few_shot(clozify.read_rows(data("train_first1000_per_class.csv"), run.task), run.metrics.rows["labeled"])
    test = clozify.read_rows(data("test.csv"), run.task)

    def joined(rows: Rows) -> list[str]:
        return [" ".join(fields) for fields in zip(*(rows.texts(field) for field in run.task.fields), strict=True)]

    (work / "rivals").mkdir(exist_ok=True)
    shutil.copyfile(str(model2vec.__file__), work / "rivals" / "model2vec_rival.py")
    job = {
        "rivals": str(work / "rivals"),
        "labeled": joined(labeled),
        "labels": labeled.labels.tolist(),
        "test": joined(test),
        "truth": test.labels.tolist(),
    }
    (work / "model2vec.json").write_text(json.dumps(job))


class Worker:
    """A process that has loaded one side and predicts on request."""

    def __init__(self, python: str, side: str, work: Path) -> None:
        command = [python, str(Path(__file__).resolve()), str(work), "--worker", side]
        variables = dict(os.environ)
        if side == "model2vec":
            variables.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.messages: list[str] = []
        self._answer()  # it is loaded

    def rates(self) -> tuple[float, float]:
        """Rows a second: by the clock, and a second of processor time."""
        assert self._process.stdin is not None
        print("predict", file=self._process.stdin, flush=True)
        wall, processors = self._answer().split()
        return float(wall), float(processors)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return line.removeprefix("answer ")
            self.messages.append(line.strip())
        sys.exit("A worker ended too early; see the messages above.")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def work_as(side: str, work: Path) -> None:
    """Load a side, then predict whenever a line is read, and print rows a second."""
    predict, count = load_side(side, work), TIMED[side]
    predict(min(count, 64))
    print("answer loaded", flush=True)
    for _ in sys.stdin:
        wall, processors = time.perf_counter(), time.process_time()
        predict(count)
        wall, processors = time.perf_counter() - wall, time.process_time() - processors
        print(f"answer {count / wall} {count / processors}", flush=True)


def compare_speed(work: Path, run: FinishedRun, model2vec: str | None) -> None:
    """Print the rows a second of every side; the median of some rounds in turns."""
    sides = ["transformer", "static", "static, from a file"]
    if model2vec is not None:
        write_model2vec_job(work, run)
        sides.append("model2vec")
    workers = {side: Worker(model2vec or "" if side == "model2vec" else sys.executable, side, work) for side in sides}
    rates: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, worker in workers.items():
            rates[side].append(worker.rates())
    for worker in workers.values():
        worker.close()
    medians = {side: [statistics.median(column) for column in zip(*rates[side], strict=True)] for side in sides}
    print("| classifier | rows a second | of the transformer's | a second of processor time | of the transformer's |")
    print("|---|---:|---:|---:|---:|")
    base = medians["transformer"]
    for side, (wall, processors) in medians.items():
        print(f"| {side} | {wall:,.0f} | {wall / base[0]:,.0f}x | {processors:,.0f} | {processors / base[1]:,.0f}x |")
    for worker in workers.values():
        for message in worker.messages:
            if message.startswith("accuracy "):
                print(f"\nModel2Vec's accuracy on the test rows: {100 * float(message.split()[1]):.1f}.")


def compare_reading(run: FinishedRun) -> None:
    """Print how fast texts become features: hashed words and pairs, and the token ids of the encoder's tokenizer."""
    from tokenizers import Tokenizer

    import clozify
    from clozify.models.builtin import builtin_folder
    from clozify.models.hashed_words import hash_texts

    texts = clozify.read_rows(data("test.csv"), run.task).texts("description")
    tokenizer = Tokenizer.from_file(str(builtin_folder("builtin") / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ways: dict[str, Callable[[], object]] = {
        "hashed words and pairs": lambda: list(hash_texts(texts)),
        "token ids, by tokenizers": lambda: [row.ids for row in tokenizer.encode_batch_fast(texts)],
    }
    print("\n| descriptions of AG's News as | rows a second | a second of processor time |\n|---|---:|---:|")
    for name, read in ways.items():
        rates = []
        for _ in range(ROUNDS):
            wall, processors = time.perf_counter(), time.process_time()
            read()
            rates.append((len(texts) / (time.perf_counter() - wall), len(texts) / (time.process_time() - processors)))
        wall, processors = (statistics.median(column) for column in zip(*rates, strict=True))
        print(f"| {name} | {wall:,.0f} | {processors:,.0f} |")


def main(
    work: Annotated[Path, typer.Argument(help="The folder that everything is kept in.")],
    examples: Annotated[int, typer.Option(help="Labelled rows.")] = 100,
    rows: Annotated[int, typer.Option(help="Rows of the pool that the transformer labels.")] = 30_000,
    test_rows: Annotated[int, typer.Option(help="Test rows that the accuracy is measured on.")] = 7_600,
    model2vec: Annotated[str | None, typer.Option(help="The Python of an environment with Model2Vec.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Settings of the recipe of PET.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Measure on the last rows of the pool.")] = False,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train, label and compare."""
    if not os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with the files of AG's News.")
    if worker is not None:
        work_as(worker, work)
        return
    work.mkdir(parents=True, exist_ok=True)
    run = train_transformer(work.resolve(), examples, settings or [])
    compare_accuracy(work.resolve(), run, rows, test_rows, held_out)
    if not held_out:
        compare_speed(work.resolve(), run, model2vec)
        compare_reading(run)


if __name__ == "__main__":
    typer.run(main)
