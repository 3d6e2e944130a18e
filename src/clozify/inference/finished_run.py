"""Using a finished run: predictions and numbers for new rows, behind `clozify predict` and `clozify evaluate`.

In: a run's folder (or a classifier's) and rows. Out: scores from the classifier or, where a run had no pile to distill
from, from its ensemble of members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.recipe import Recipe
from clozify.config.task import Task, load_task
from clozify.data.predictions import check_output, write_predictions
from clozify.data.rows import Rows, read_rows
from clozify.errors import RunError
from clozify.methods.ensemble import combine_scores
from clozify.methods.score import TOKENS_PER_BATCH, score_rows
from clozify.metrics import detailed_metrics
from clozify.models.classifier import TASK_FILE, Classifier, load_classifier
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.lora import Base, base_of
from clozify.models.task_prompts import TaskPrompts, compile_task
from clozify.runs.plan import Plan, with_labels
from clozify.runs.stored_folder import local_copy
from clozify.utils.progress import progress


@dataclass(frozen=True)
class Member:
    """One model of an ensemble, and how much it weighs."""

    model: ClozeModel
    question: TaskPrompts
    max_length: int
    weight: float
    switch: Callable[[], None]  # to its adapter, where the model is shared

    def scores(self, rows: Rows, advance: Callable[[int], None] = lambda count: None) -> NDArray[np.float32]:
        """(rows, labels)."""
        self.switch()
        parts = [part for _, part in score_rows(self.model, self.question, rows, self.max_length, advance=advance)]
        scores: NDArray[np.float32] = np.concatenate(parts, axis=1)[0]
        return scores


class FinishedRun:
    """A finished run, or a classifier's folder by itself."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = local_copy(folder)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._bases: dict[Base, ClozeModel] = {}  # what adapters belong to
        inside = self.folder / "classifier"
        self.classifier = inside if inside.is_dir() else self.folder if (self.folder / TASK_FILE).is_file() else None
        if self.classifier is None and not (self.folder / "ensemble.json").is_file():
            what = "is a run that has not finished" if (self.folder / "run.json").is_file() else "holds no run"
            raise RunError(f"The folder '{folder}' {what}; name the folder that clozify train wrote to --output.")

    @property
    def task(self) -> Task:
        """The task that was trained for."""
        if self.classifier is not None:
            return load_task(self.classifier / TASK_FILE)
        return Task.model_validate(json.loads((self.folder / "ensemble.json").read_text())["task"])

    def probabilities(self, rows: Rows) -> NDArray[np.float64]:
        """(rows, labels)."""
        scores = self._by_classifier(rows) if self.classifier is not None else self._by_ensemble(rows)
        probabilities: NDArray[np.float64] = softmax(scores.astype(np.float64), axis=-1)
        return probabilities

    def _by_classifier(self, rows: Rows) -> NDArray[np.float32]:
        with progress("predicting", len(rows)) as advance:
            parts = [part for _, part in self.loaded.score_rows(rows, TOKENS_PER_BATCH[self.device], advance)]
        return np.concatenate(parts)

    @cached_property
    def loaded(self) -> Classifier:
        """The classifier, where there is one."""
        assert self.classifier is not None
        return load_classifier(self.classifier, self.device)

    def members(self) -> Iterator[Member]:
        """The ensemble's members, loaded one after the other."""
        known = json.loads((self.folder / "ensemble.json").read_text())
        recipe = Recipe.model_validate(known["recipe"])
        names = [pair.name for pair in self.task.pairs]
        for member in known["weights"]:
            model, switch = self._member(member["member"])
            question = compile_task(model, self.task, wording=recipe.wording).for_pair(names.index(member["pair"]))
            yield Member(model, question, recipe.max_seq_length, member["weight"], switch)

    def _by_ensemble(self, rows: Rows) -> NDArray[np.float64]:
        count = len(json.loads((self.folder / "ensemble.json").read_text())["weights"])
        scores, weights = [], []
        with progress("predicting", len(rows) * count) as advance:
            for member in self.members():
                scores.append(member.scores(rows, advance))
                weights.append(member.weight)
        return combine_scores(scores, weights)

    def _member(self, key: str) -> tuple[ClozeModel, Callable[[], None]]:
        """A member: a model of its own, or the one model that all adapters share and how it is switched to this one."""
        place = self.folder / "members" / key / "model"
        if (base := base_of(place)) is None:
            return load_model(place, self.device), lambda: None
        if base not in self._bases:
            self._bases[base] = load_model(base.model, self.device)
            if Plan.model_key(base.model) != base.key:
                raise RunError(
                    f"The members of '{self.folder}' are adapters of the model '{base.model}', which is not what it "
                    "was: they would answer at random; put it back as it was, or train again."
                )
        model = self._bases[base]
        model.use_adapter(place, key)
        return model, partial(model.use_adapter, place, key)


def predict(
    folder: str | Path,
    data: str | Path,
    output: str | Path | None = None,
    column_mapping: Mapping[str, str] | None = None,
) -> tuple[Rows, NDArray[np.float64]]:
    """Probabilities of every row's labels, (rows, labels); `output` also writes them to a file."""
    if output is not None:
        check_output(Path(output), data)
    finished = FinishedRun(folder)
    rows = read_rows(data, finished.task, column_mapping)
    probabilities = finished.probabilities(rows)
    if output is not None:
        chunks = ((start, probabilities[start:stop]) for start, stop in rows.chunks())
        write_predictions(Path(output), rows, chunks)
    return rows, probabilities


def evaluate(folder: str | Path, data: str | Path, column_mapping: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Accuracy, macro-F1, each label's precision and recall, the confusion matrix and the calibration error."""
    finished = FinishedRun(folder)
    warnings: list[str] = []
    rows = with_labels(read_rows(data, finished.task, column_mapping), warnings, "test")
    found = detailed_metrics(rows.labels, finished.probabilities(rows), finished.task.labels).model_dump()
    return {"data": str(data), "rows": len(rows), **found, "warnings": warnings + rows.warnings}
