"""Explains the most confident errors of a finished classifier, for the report: one job, of a few seconds.

The report reads a run's folder only and loads no model, so the words that moved these labels are computed here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.rows import Rows
from clozify.gpu.options import GpuOptions
from clozify.methods.explain import Occlusion, occlude_rows
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import Classifier, load_classifier
from clozify.models.static_classifier import StaticClassifier, is_static, load_static_classifier
from clozify.pipeline.run import Run
from clozify.prompts.reading import read_lengths
from clozify.report.run import RunRecord
from clozify.report.wrong_rows import confident_errors, result_test_scores
from clozify.runs.explanations import WRONG_ROWS_FILE, ExplainedPart, ExplainedRow, ExplainedRows
from clozify.runs.jobs import JobResult
from clozify.runs.keys import job_key
from clozify.runs.metrics import ClassifierMetrics
from clozify.runs.worker import Worker
from clozify.utils.checked_files import read_record

KIND = "explanations"
MAX_ROWS, MAX_PARTS = 12, 20  # errors that are explained, and parts of each that are left out in turn
MAX_WORK = 3e11  # tokens x parameters on a CPU: a few seconds; rows beyond are not explained
INT8_WORK = 1 / 3  # of a token in int8, where one in float32 is 1


def explain_errors(run: Run) -> None:
    """Write `wrong_rows.json` next to a finished classifier's metrics; an error is logged and does not fail the run."""
    run.folder.remove(run.prefix + WRONG_ROWS_FILE)  # of replaced results
    try:
        if (job := _make_job(run)) is None:
            return
        if not run.folder.has_job(KIND, job.key, run.context.log):
            run.run_jobs([job], "explanations")
        explained = read_record(run.folder.job_path(KIND, job.key) / WRONG_ROWS_FILE, ExplainedRows)
        run.folder.write_json(run.prefix + WRONG_ROWS_FILE, explained.to_json())
    except OSError:  # such as a full disk
        raise
    except Exception as error:
        run.context.log(f"note: the errors could not be explained ({type(error).__name__}: {error})")


def _make_job(run: Run) -> ExplainJob | None:
    """The job that explains the errors; None where there are none, or no classifier."""
    test = run.plan.test
    if test is None or not (run.results / "classifier").is_dir():
        return None
    record = RunRecord.load(run.results)
    scores = result_test_scores(record)
    if scores is None or not isinstance(record.result, ClassifierMetrics):
        return None
    errors = confident_errors(record, scores, test, MAX_ROWS)
    if not len(errors.rows):
        return None
    rows, labels = tuple(errors.rows.tolist()), tuple(errors.labels.tolist())
    classifier = record.result.jobs[record.result.kept or 0]
    key = job_key(
        "explain errors",
        classifier=classifier,
        names=run.plan.task.labels,
        rows=rows,
        labels=labels,
        texts=test.digest,
        limits=[MAX_PARTS, MAX_WORK],
        **GpuOptions.from_recipe(run.plan.recipe).numerics(run.context.device),
    )
    return ExplainJob("explaining errors", key, classifier, rows, labels)


@dataclass(frozen=True)
class ExplainJob:
    """Leaves out the words of some test rows in turn, and writes their effects."""

    name: str
    key: str
    classifier: str  # the key of its job
    rows: tuple[int, ...]  # indices of test rows
    labels: tuple[int, ...]  # of each row, the label to explain

    def run(self, worker: Worker) -> JobResult:
        """Load the classifier, explain the rows and write `wrong_rows.json`."""
        worker.release_model()
        plan, started = worker.plan, time.monotonic()
        assert plan.test is not None
        with worker.folder.reading("classifiers", self.classifier) as path:
            device = worker.context.device
            classifier: Classifier | StaticClassifier
            if is_static(path / "model"):
                classifier = load_static_classifier(path / "model")
            else:
                in_int8 = GpuOptions.from_recipe(plan.recipe).scores_in_int8(device)
                classifier = load_classifier(path / "model", device, "auto" if in_int8 else "float32")
        rows = plan.test.select(self.rows).with_task(classifier.task)
        occlusions = _occlude(classifier, rows, self.labels)
        explained = [
            ExplainedRow(row=row, label=plan.task.labels[label], parts=_parts(occlusion, label, plan.task.multilabel))
            for row, label, occlusion in zip(self.rows, self.labels, occlusions, strict=False)
        ]
        with worker.folder.writing(KIND, self.key) as tmp_path:
            content = ExplainedRows(texts=plan.test.digest, rows=explained).model_dump_json(indent=1)
            (tmp_path / WRONG_ROWS_FILE).write_text(content, encoding="utf-8")
        return JobResult(f"{len(explained)} test rows  in {time.monotonic() - started:.1f} s")


def _occlude(classifier: Classifier | StaticClassifier, rows: Rows, labels: Sequence[int]) -> list[Occlusion]:
    """The effects of the rows' words; on a CPU, of as many rows as `MAX_WORK` allows."""
    task = rows.task
    decision = Decision(task.labels, (0.5,) * len(task.labels) if task.multilabel else None)
    device = "cpu" if isinstance(classifier, StaticClassifier) else classifier.device.type

    def probabilities(variants: Rows) -> NDArray[np.float64]:
        chunks = [chunk for _, chunk in classifier.score_rows(variants, TOKENS_PER_BATCH[device])]
        return decision.probabilities(np.concatenate(chunks))

    if isinstance(classifier, StaticClassifier):  # which reads all of a text, and takes no time
        return occlude_rows(rows, probabilities, None, labels, MAX_PARTS)
    if device == "cpu":
        weights = classifier.encoder.state_dict().items()  # in int8 they are no parameters
        parameters = sum(tensor.numel() for name, tensor in weights if "embeddings" not in name)
        factor = INT8_WORK if classifier.precision == "int8" else 1.0
        work = np.cumsum(classifier.encode(rows).lengths * (1.0 + MAX_PARTS) * parameters * factor)
        rows = rows.select(np.arange(int((work <= MAX_WORK).sum())))
    if not len(rows):
        return []
    texts = {field: rows.texts(field) for field in task.fields}
    read = read_lengths(classifier.tokenizer, [classifier.template], classifier.max_length, texts)
    return occlude_rows(rows, probabilities, read, labels[: len(rows)], MAX_PARTS)


def _parts(occlusion: Occlusion, label: int, multilabel: bool) -> list[ExplainedPart]:
    """The effects of a row's parts that are read."""
    read = [part for part in occlusion.parts if part.read]
    effects = occlusion.effects(label, multilabel).log_odds
    return [
        ExplainedPart(field=part.field, start=part.start, end=part.end, effect=round(float(effect), 4))
        for part, effect in zip(read, effects, strict=True)
    ]
