"""Using a finished run: predictions and numbers for new rows, behind `clozify predict` and `clozify evaluate`.

In: a run's folder (or a classifier's) and rows. Out: scores from the classifier or, where a run had no pile to distill
from, from its ensemble of members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.adapters import Base, base_of
from clozify.classifier import TASK_FILE, Classifier, load_classifier
from clozify.cloze import ClozeModel, load_model
from clozify.data import Rows, read
from clozify.errors import RunError
from clozify.metrics import in_detail, softmax
from clozify.plan import Plan, with_labels
from clozify.predictions import check_output, write_predictions
from clozify.progress import progress
from clozify.questions import ask
from clozify.recipe import Recipe
from clozify.steps.annotate import TOKENS_A_BATCH, annotate
from clozify.steps.combine import combine
from clozify.task import Task, load_task


class Finished:
    """A finished run, or a classifier's folder by itself."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
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
        return softmax(scores.astype(np.float64))

    def _by_classifier(self, rows: Rows) -> NDArray[np.float32]:
        with progress("predicting", len(rows)) as advance:
            parts = [part for _, part in self._loaded.annotate(rows, TOKENS_A_BATCH[self.device], advance)]
        return np.concatenate(parts)

    @cached_property
    def _loaded(self) -> Classifier:
        assert self.classifier is not None
        return load_classifier(self.classifier, self.device)

    def _by_ensemble(self, rows: Rows) -> NDArray[np.float64]:
        known = json.loads((self.folder / "ensemble.json").read_text())["weights"]
        recipe = Recipe.model_validate(json.loads((self.folder / "ensemble.json").read_text())["recipe"])
        names = [pair.name for pair in self.task.pairs]
        scores = []
        with progress("predicting", len(rows) * len(known)) as advance:
            for member in known:
                model = self._member(member["member"])
                question = ask(model, self.task, wording=recipe.wording).only(names.index(member["pair"]))
                parts = [part for _, part in annotate(model, question, rows, recipe.max_seq_length, advance=advance)]
                scores.append(np.concatenate(parts, axis=1)[0])
        return combine(scores, [member["weight"] for member in known])

    def _member(self, key: str) -> ClozeModel:
        """A member: a model of its own, or the one model that all adapters share, switched to this one's."""
        place = self.folder / "members" / key / "model"
        if (base := base_of(place)) is None:
            return load_model(place, self.device)
        if base not in self._bases:
            self._bases[base] = load_model(base.model, self.device)
            if Plan.model_key(base.model) != base.key:
                raise RunError(
                    f"The members of '{self.folder}' are adapters of the model '{base.model}', which is not what it "
                    "was: they would answer at random; put it back as it was, or train again."
                )
        self._bases[base].use_adapter(place, key)
        return self._bases[base]


def predict(
    folder: str | Path, data: str | Path, output: str | Path | None = None, column_of: Mapping[str, str] | None = None
) -> tuple[Rows, NDArray[np.float64]]:
    """Probabilities of every row's labels, (rows, labels); `output` also writes them to a file."""
    if output is not None:
        check_output(Path(output), data)
    finished = Finished(folder)
    rows = read(data, finished.task, column_of)
    probabilities = finished.probabilities(rows)
    if output is not None:
        stretches = ((start, probabilities[start:stop]) for start, stop in rows.stretches())
        write_predictions(Path(output), rows, stretches)
    return rows, probabilities


def evaluate_run(folder: str | Path, data: str | Path, column_of: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Accuracy, macro-F1, each label's precision and recall, the confusion matrix and the calibration error."""
    finished = Finished(folder)
    warnings: list[str] = []
    rows = with_labels(read(data, finished.task, column_of), warnings, "test")
    found = in_detail(rows.labels, finished.probabilities(rows), finished.task.labels)
    return {"data": str(data), "rows": len(rows), **found, "warnings": warnings + rows.warnings}
