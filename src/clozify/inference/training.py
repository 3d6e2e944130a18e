"""Implements `clozify.train`: trains by `pipeline/train.py` and returns the finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozify.config.recipe import Recipe
from clozify.config.task import TaskSource
from clozify.data.in_memory import RowSource
from clozify.executors.accelerate_launch import is_worker_rank, run_worker_rank
from clozify.inference.finished_run import FinishedRun, Predictions
from clozify.pipeline import train as pipeline
from clozify.pipeline.prepare import TrainInputs
from clozify.runs.context import no_log
from clozify.runs.metrics import Metrics
from clozify.utils.checked_files import read_parquet

if TYPE_CHECKING:
    import pyarrow as pa


class TrainResult:
    """A finished training: its metrics, its soft labels and its classifier, loaded when they are first used."""

    def __init__(self, folder: str | Path, method: str, metrics: Metrics | None = None, results: str = "") -> None:
        self.folder = folder  # the run's folder or address
        self.method = method
        self.results = results or str(folder)  # the folder or address of the method's results
        self._metrics = metrics

    @cached_property
    def run(self) -> FinishedRun:
        """The finished run, as `load_run` returns it."""
        return FinishedRun(self.folder, self.method)

    @property
    def metrics(self) -> Metrics:
        """What the run measured: the content of metrics.json."""
        return self._metrics or self.run.metrics

    @property
    def labels(self) -> pa.Table | None:
        """The unlabelled rows' ids, labels and probabilities as an Arrow table; None without unlabelled rows."""
        import pyarrow as pa

        path = self.run.folder / "labels.parquet"
        return pa.Table.from_batches(read_parquet(path)) if path.is_file() else None

    @property
    def classifier(self) -> Path | None:
        """The folder of the final classifier, a Transformers model; None where the ensemble is the result."""
        return self.run.classifier

    @property
    def report(self) -> Path:
        """The run's report, an HTML page."""
        return self.run.report

    def predict(self, data: RowSource) -> Predictions:
        """Predict texts, dicts by field, a DataFrame or a file, with the classifier or else with the ensemble."""
        return self.run.predict(data)


def train(
    task: TaskSource,
    labeled: RowSource | None,
    output: str | Path,
    unlabeled: RowSource | None = None,
    test: RowSource | None = None,
    dev: RowSource | None = None,
    examples: int | None = None,
    method: str = "pet",
    model: str | Path = "builtin",
    student: str | Path | None = None,
    recipe: str | Path | Recipe = "auto",
    settings: Sequence[str] | Mapping[str, Any] = (),
    column_mapping: Mapping[str, str] | None = None,
    augmented: RowSource | None = None,
    allow_overlap: bool = False,
    trackers: Sequence[str] = (),
    devices: str | int = "auto",
    at_once: str | int | None = None,
    executor: str = "local",
    address: str | None = None,
    replace: bool = False,
    teachers: Sequence[Any] = (),
    budget: str | None = None,
    log: Callable[[str], None] = no_log,
) -> TrainResult:
    """Train a classifier; a run that was stopped resumes when the same call is made again.

    - `task`: a task file, the name of a shipped task, a dict with the entries of a task file, or a `Task`.
    - `labeled`: the labelled rows, T: a file, a folder or a data set of the hub (`NAME@SPLIT`); or rows in memory: a
      DataFrame, a list of dicts, or a list of tuples that end in the label, `[("a text", "label"), ...]`. None is for
      the methods `ipet` and `frozen`.
    - `output`: the run's folder, or an address such as `s3://bucket/run`.
    - `unlabeled`: the unlabelled rows, D; in memory also a list of texts. Without them the ensemble is the result.
    - `test`: labelled rows to measure on; `dev`: labelled rows that decide when training stops.
    - `examples`: how many of the labelled rows to train on: the first of each label.
    - `method`: `pet`, `ipet`, `frozen`, `supervised`, `uda` or `mixtext`.
    - `model`: a folder, a name on the hub, or `builtin`; `student`: another model for the final
      classifier, or `static`: one of word vectors, a hundred times as fast, that needs no PyTorch.
    - `recipe`: `auto`, `paper`, `quick`, `original-code`, a file or a `Recipe`; `settings`: changes to it, as
      `{"distill.max_steps": 500}` or `["distill.max_steps=500"]`.
    - `column_mapping`: the data's column for a field, as in `{"text": "body"}`.
    - `augmented`: paraphrases of the unlabelled rows, for UDA and MixText.
    - `allow_overlap`: keep labelled and test rows among the unlabelled rows.
    - `trackers`: names of trackers that Accelerate supports, such as `tensorboard`.
    - `devices`: `auto` (every GPU, else the CPU), `cpu`, or a number of GPUs; `at_once`: how many models are trained
      at a time on each of them, or `auto`: as many as fit, by a trial.
    - `executor`: `local`, or `ray` for a cluster, at `address`.
    - `replace`: replace the method's finished results in `output` where they are of other inputs, which is an error
      otherwise. Another method's results are never replaced: each method has its own.
    - `teachers`: who votes besides the patterns and the task's own rules and teachers: functions decorated with
      `clozify.rule`, scikit-learn estimators, or objects with the methods of `clozify.teachers.base.Teacher`.
    - `budget`: the most that an LLM behind an API may cost: `500requests`, `200000tokens`, or money as `1.50`.
    - `log`: called with every message.

    Under Accelerate's launcher every process returns a result; all but the first read what the first has written.
    """
    if is_worker_rank():
        run_worker_rank(devices)
        return TrainResult(output, method)
    inputs = TrainInputs(
        task=task,
        labeled=labeled,
        unlabeled=unlabeled,
        test=test,
        dev=dev,
        examples=examples,
        method=method,
        model=model,
        student=student,
        recipe=recipe,
        settings=settings,
        column_mapping=column_mapping,
        augmented=augmented,
        allow_overlap=allow_overlap,
        teachers=teachers,
        budget=budget,
    )
    metrics, results = pipeline.train(inputs, output, devices, at_once, executor, address, trackers, replace, log)
    return TrainResult(output, method, metrics, results)
