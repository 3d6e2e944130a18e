"""A finished run as a model: implements `clozify predict`, `clozify evaluate` and `clozify.load_run`.

Scores come from the run's classifier (section 3.3 of the paper) or, for a run without unlabelled rows, from its
ensemble of members (section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.decision import Decision
from clozify.data.few_shot import select_labeled
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.predictions import check_output, text_columns, write_predictions
from clozify.data.rows import Rows
from clozify.errors import ModelError, RunError, quoted
from clozify.inference.abstaining import Abstainer, AbstainOptions, ScoredChunk, Tally, choose_thresholds
from clozify.inference.predictions import EvaluationResult as EvaluationResult
from clozify.inference.predictions import Predictions as Predictions
from clozify.inference.scope import load_run_scope, probabilities_and_scope, run_states
from clozify.methods.scope import Scope
from clozify.metrics import detailed_metrics
from clozify.models.classifier_folder import (
    EXPORT_FILE,
    ONNX_FILE,
    PRECISIONS,
    TASK_FILE,
    load_classifier_task,
    load_decision,
)
from clozify.models.static_classifier import StaticClassifier, is_static, load_static_classifier
from clozify.prompts.encode import TOKENS_PER_BATCH
from clozify.runs.metrics import Metrics
from clozify.runs.reliability import Reliability, load_reliability
from clozify.runs.results import METHOD_NAMES, check_finished, first_method, is_stale, trained_methods
from clozify.runs.stored_folder import local_copy
from clozify.utils.progress import progress

if TYPE_CHECKING:  # these import PyTorch, which a static classifier does without
    from clozify.inference.finished_ensemble import FinishedEnsemble
    from clozify.models.classifier import Classifier


class FinishedRun:
    """A finished run, ready to predict; a classifier's folder or an ONNX export serves too.

    `method` chooses between the results of a run that was trained by several methods; by default, the first. The
    classifier scores in `precision`: "auto" is int8 on a CPU where that is faster and close to float32, else float32.
    An ensemble asks its LLM only within a `budget`, as `train` has one; without, it predicts without its votes.
    """

    def __init__(
        self, folder: str | Path, method: str | None = None, precision: str = "auto", budget: str | None = None
    ) -> None:
        if precision not in PRECISIONS:
            raise RunError(f"There is no precision '{precision}'; choose of {quoted(PRECISIONS)}.")
        self.precision = precision
        self.folder = local_copy(folder, method)
        inside = self.folder / "classifier"
        self.classifier = inside if inside.is_dir() else self.folder if (self.folder / TASK_FILE).is_file() else None
        if self.classifier is None and not (self.folder / "ensemble.json").is_file():
            state = "is a run that has not finished" if (self.folder / "run.json").is_file() else "holds no run"
            raise RunError(f"The folder '{folder}' {state}; name the folder that clozify train wrote to --output.")
        if (self.folder / "run.json").is_file():
            check_finished(self.folder)
        self.budget = budget
        if budget is not None and (self.classifier is not None or self.ensemble.teachers is None):
            raise RunError(f"The predictions of '{folder}' ask no LLM; leave the budget out.")

    @property
    def method(self) -> str | None:
        """The method that the run was trained by; None for the folder of a classifier or an export."""
        return first_method(self.folder)

    @property
    def description(self) -> str:
        """What answers, such as "the classifier trained by PET in runs/x"."""
        if self.classifier is not None and (self.classifier / ONNX_FILE).is_file():
            return f"the ONNX export in {self.folder}"
        kind = "ensemble" if self.classifier is None else "static classifier" if self.is_static else "classifier"
        trained_by = "" if self.method is None else f" trained by {METHOD_NAMES[self.method]}"
        loaded = vars(self).get("loaded_classifier")  # None until rows were predicted
        in_int8 = ", in int8" if loaded is not None and loaded.precision == "int8" else ""
        return f"the {kind}{trained_by} in {self.folder}{in_int8}"

    @property
    def notes(self) -> list[str]:
        """Which other methods' results the run has, and whether an export is of an earlier classifier."""
        parent = self.folder.parent
        if (self.folder / EXPORT_FILE).is_file() and (parent / "run.json").is_file():
            is_old = is_stale(self.folder, parent / "classifier")
            return [f"'{self.folder}' was exported from an earlier classifier of '{parent}'; export again."] * is_old
        others = trained_methods(self.folder)[1:]
        teachers = None if self.classifier is not None else self.ensemble.teachers
        notes = [] if teachers is None else teachers.warnings
        return notes + ([f"The run also has the results of {quoted(others)}: choose with --method."] if others else [])

    @cached_property
    def task(self) -> Task:
        """The task that the run was trained for."""
        if self.classifier is not None:
            return load_classifier_task(self.classifier)
        return self.ensemble.task

    @cached_property
    def decision(self) -> Decision:
        """How scores become probabilities and labels; with several labels a row, the run's thresholds."""
        if self.classifier is not None:
            return load_decision(self.classifier)
        return self.ensemble.decision

    @property
    def metrics(self) -> Metrics:
        """What the run measured; only a run's own folder has it."""
        return Metrics.load(self._file("metrics.json"))

    @cached_property
    def reliability(self) -> Reliability | None:
        """The held-out scores of the labelled rows; None where the run has none."""
        folders = [self.folder] + ([] if self.classifier is None else [self.classifier])
        return next((record for folder in folders if (record := load_reliability(folder)) is not None), None)

    def abstainer(self, options: AbstainOptions) -> Abstainer:
        """The thresholds for what is asked for; raises a `RunError` where the run lacks what they need."""
        load_scope = partial(load_run_scope, self)
        return choose_thresholds(options, str(self.folder), self.decision, self.reliability, load_scope)

    @property
    def report(self) -> Path:
        """The run's report, an HTML page."""
        return self._file("report.html")

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise RunError(f"The folder '{self.folder}' has no {name}; name the folder that clozify train wrote to.")
        return path

    def predict(
        self,
        data: RowSource,
        output: str | Path | None = None,
        column_mapping: Mapping[str, str] | None = None,
        with_text: bool = False,
        top: int | None = None,
        min_confidence: float | None = None,
        max_risk: float | None = None,
        coverage: float | None = None,
        sets: float | None = None,
        reject_out_of_scope: float | bool | None = None,
    ) -> Predictions:
        """Predict rows: a file's name, or texts, dicts by field or a DataFrame; parameters as of `clozify.predict`."""
        if output is not None:
            check_output(Path(output), *([data] if isinstance(data, (str, Path)) else []))
        abstainer = self.abstainer(AbstainOptions(min_confidence, max_risk, coverage, sets, reject_out_of_scope))
        rows = load_rows(data, self.task, column_mapping)
        if with_text:
            text_columns(rows)  # fails before the work, not after it
        probabilities, scores = probabilities_and_scope(self, rows, abstainer.scope)
        predictions = Predictions(rows, probabilities, self.decision, abstainer.answers(probabilities, scores))
        if output is not None:
            predictions.save(output, with_text, top)
        return predictions

    def evaluate(
        self, data: RowSource, labels: Any = None, column_mapping: Mapping[str, str] | None = None
    ) -> EvaluationResult:
        """Measure the run on labelled rows; `labels` are for rows in memory that have no label column."""
        warnings = list[str]()
        rows = select_labeled(load_rows(data, self.task, column_mapping, labels), warnings, "test")
        task, probabilities = self.task, self.probabilities(rows)
        predicted = self.decision.predict(probabilities)
        evaluation = detailed_metrics(rows.targets, probabilities, task.labels, task.label_groups, predicted)
        return EvaluationResult(
            model=self.description,
            data=rows.source,
            rows=len(rows),
            warnings=self.notes + warnings + rows.warnings,
            **evaluation.model_dump(),
        )

    def predict_to_file(
        self,
        data: RowSource,
        output: str | Path,
        column_mapping: Mapping[str, str] | None = None,
        with_text: bool = False,
        top: int | None = None,
        abstainer: Abstainer | None = None,
        tally: Tally | None = None,
    ) -> Rows:
        """Predict rows like `predict`, but write them chunk by chunk; memory does not grow with the rows.

        Returns the rows; what the abstainer decides is counted in `tally`. An ensemble's scores are held for all rows.
        """
        check_output(Path(output), *([data] if isinstance(data, (str, Path)) else []))
        rows = load_rows(data, self.task, column_mapping)
        if with_text:
            text_columns(rows)  # fails before the work, not after it
        abstainer = abstainer or Abstainer(self.decision)
        chunks = abstainer.decide(self.score_chunks(rows, abstainer.scope), tally or Tally())
        write_predictions(Path(output), rows, chunks, with_text, top, self.decision)
        return rows

    def score_chunks(self, rows: Rows, scope: Scope | None = None) -> Iterator[ScoredChunk]:
        """Yield `(start, probabilities, out-of-scope scores)` of consecutive rows; the latter with a `scope` alone."""
        if self.classifier is None or not len(rows):
            probabilities = self.probabilities(rows)
            outside = None if scope is None else scope.scores(run_states(self, rows))
            for start, stop in rows.chunks():
                yield start, probabilities[start:stop], None if outside is None else outside[start:stop]
            return
        classifier, budget, decision = self.loaded_classifier, TOKENS_PER_BATCH[self.device], self.decision
        with progress("predicting", len(rows)) as advance:
            if scope is None or isinstance(classifier, StaticClassifier):  # a static classifier has no scope
                for start, scores in classifier.score_rows(rows, budget, advance):
                    yield start, decision.probabilities(scores), None
                return
            for start, scores, states in classifier.embed_rows(rows, budget, advance):
                yield start, decision.probabilities(scores), scope.scores(states[:, 1])

    def probabilities(self, rows: Rows) -> NDArray[np.float64]:
        """q(l | x) of each row, (rows, labels)."""
        scores = self.ensemble.scores(rows) if self.classifier is None else self._classifier_scores(rows)
        return self.decision.probabilities(scores)

    @property
    def is_static(self) -> bool:
        """Whether a static classifier answers, which runs on the CPU without PyTorch."""
        return self.classifier is not None and is_static(self.classifier)

    @cached_property
    def device(self) -> str:
        """Where the run's models compute, "cpu" or "cuda"."""
        if self.is_static:
            return "cpu"
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def loaded_classifier(self) -> Classifier | StaticClassifier:
        """The classifier in memory; only where `classifier` is not None."""
        assert self.classifier is not None
        if self.is_static:
            if self.precision == "int8":
                raise ModelError("A static classifier has no layers to run in int8; choose the precision 'float32'.")
            return load_static_classifier(self.classifier)
        from clozify.models.classifier import load_classifier

        return load_classifier(self.classifier, self.device, self.precision)

    @cached_property
    def ensemble(self) -> FinishedEnsemble:
        """The ensemble; only where `classifier` is None."""
        from clozify.inference.finished_ensemble import FinishedEnsemble

        return FinishedEnsemble(self.folder, self.budget)

    def _classifier_scores(self, rows: Rows) -> NDArray[np.float32]:
        budget = TOKENS_PER_BATCH[self.device]
        with progress("predicting", len(rows)) as advance:
            chunks = [chunk for _, chunk in self.loaded_classifier.score_rows(rows, budget, advance)]
        return np.concatenate(chunks)  # (rows, labels)


def load_run(
    folder: str | Path, method: str | None = None, precision: str = "auto", budget: str | None = None
) -> FinishedRun:
    """Open a finished run's folder or address, a classifier's folder, or an export's.

    `method` chooses between the results of a run that was trained by several methods; by default, the first. The
    classifier scores in `precision`: "auto" is int8 on a CPU where that is faster and close to float32, else float32.
    An ensemble asks its LLM only within a `budget`, as `train` has one; without, it predicts without its votes.
    """
    return FinishedRun(folder, method, precision, budget)


def predict(
    run: str | Path | FinishedRun,
    data: RowSource,
    output: str | Path | None = None,
    column_mapping: Mapping[str, str] | None = None,
    with_text: bool = False,
    top: int | None = None,
    min_confidence: float | None = None,
    max_risk: float | None = None,
    coverage: float | None = None,
    sets: float | None = None,
    reject_out_of_scope: float | bool | None = None,
) -> Predictions:
    """Predict rows with a finished run.

    - `run`: the run's folder or address, a classifier's folder, an export's, or what `load_run` returned.
    - `data`: a file, a folder of shards or `NAME@SPLIT` of the hub; or rows in memory: a list of texts (for a task
      with one field), a list of dicts by field, or a DataFrame.
    - `output`: a file to write to as well: .csv, .jsonl or .parquet.
    - `column_mapping`: the data's column for a field, as in `{"text": "body"}`.
    - `with_text`: write the rows' texts to `output` as well.
    - `top`: write each row's `top` likeliest labels to `output` instead of every label's probability.
    - `min_confidence`: rows whose most probable label is less probable get no prediction; of several labels, it is the
      probability of exactly the predicted ones. Instead of it, `max_risk`
      (the most predictions that may be wrong, as 0.05) or `coverage` (how many rows get a prediction, as 0.8) choose
      the threshold on held-out scores of the run's labelled rows.
    - `sets`: also a set of labels for each row, which contains the true one, or all true ones, for this fraction of the
      rows, as 0.9.
    - `reject_out_of_scope`: rows that are like none of the training get no prediction; True, or the fraction of rows
      of the task that may be rejected.
    """
    chosen = (min_confidence, max_risk, coverage, sets, reject_out_of_scope)
    return _opened(run).predict(data, output, column_mapping, with_text, top, *chosen)


def evaluate(
    run: str | Path | FinishedRun,
    data: RowSource,
    labels: Any = None,
    column_mapping: Mapping[str, str] | None = None,
) -> EvaluationResult:
    """Measure a finished run on labelled rows: accuracy, macro-F1, calibration, each label, the confusion matrix.

    `labels` are those of rows in memory; a file or a DataFrame has them in the task's label column. The other
    parameters are those of `predict`.
    """
    return _opened(run).evaluate(data, labels, column_mapping)


def _opened(run: str | Path | FinishedRun) -> FinishedRun:
    return run if isinstance(run, FinishedRun) else FinishedRun(run)
