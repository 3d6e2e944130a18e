"""The rows of a studio's run, its input files and the arguments of `clozify train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clozify.config.auto import Conditions, fit_recipe
from clozify.config.budget import parse_budget
from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task
from clozify.data.label_matrix import join_labels
from clozify.data.readers import open_data
from clozify.data.rows import Rows, read_rows
from clozify.errors import DataError
from clozify.studio.draft import TaskDraft
from clozify.studio.labels import identity_task
from clozify.studio.rows import ProjectRows, absolute
from clozify.studio.state import saving

TASK_FILE, LABELED_FILE, UNLABELED_FILE = "task.toml", "labeled.csv", "unlabeled.csv"


@dataclass(frozen=True)
class RunSettings:
    """What the user chooses for a run."""

    method: str = "pet"
    recipe: str = "auto"
    unlabeled: int = 600  # the largest number of unlabelled rows to use; 0: none
    examples: int = 0  # the number of labelled rows to use; 0: all
    unlabeled_file: str = ""  # the file with the unlabelled rows; else those of the loaded file are used
    test: str = ""  # a file with labelled rows
    recipe_settings: str = ""  # NAME=VALUE, separated by spaces
    budget: str = ""  # of LLMs, as --budget; none without

    def load_recipe(self) -> Recipe:
        """The recipe with its settings."""
        return load_recipe(self.recipe, self.recipe_settings.split())

    def expected_models(self, task: Task) -> int:
        """The number of models that a run trains; 0: unknown."""
        recipe = self.load_recipe()
        if recipe.adapt:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            conditions = Conditions(
                device, 0, len(task.labels), self.examples, self.unlabeled, self.method, task.multilabel
            )
            recipe = fit_recipe(recipe, conditions)
        folds = recipe.multilabel.folds if task.multilabel and recipe.multilabel.threshold is None else 0
        if self.method == "pet":
            pairs = min(len(task.pairs), recipe.max_pairs or len(task.pairs))
            return (pairs + int(recipe.distillation and self.unlabeled > 0)) * recipe.repetitions + folds
        return recipe.repetitions + folds if self.method == "supervised" else 0


class RunInputs:
    """Selects a run's rows and writes them to the project's folder."""

    def __init__(self, folder: Path, data: ProjectRows, draft: TaskDraft, model_option: Sequence[str] = ()) -> None:
        self.folder, self.data, self.draft, self.model_option = folder, data, draft, list(model_option)

    def unlabeled(self, examples: int = 0, file: str = "", seed: int | None = None) -> Rows:
        """The rows that a run can use as unlabelled ones: all whose text no labelled row of the run has."""
        other = None
        if file:
            other = Rows(open_data(absolute(file)), identity_task(tuple(sorted(self.draft.fields))), file)
        return self.data.without(self.draft, self.data.labeled(self.draft, examples, seed), other)

    def write_labeled(self) -> int:
        """Write `labeled.csv`, the fields and labels of all labelled rows; returns the number of rows."""
        indices = self.data.labeled(self.draft)
        keys = self.data.row_keys(self.draft, indices)
        columns = {field: [dict(key)[field] for key in keys] for field in self.draft.fields}
        labels = self.data.label_indices(self.draft, indices)
        columns[self.draft.label] = [self._label_name(label) for label in labels]
        write_csv(self.folder / LABELED_FILE, columns)
        return len(indices)

    def _label_name(self, label: Any) -> str:
        """A row's label by its index, or its labels by 0 and 1 for each."""
        names = self.draft.labels
        if not self.draft.multilabel:
            return str(names[label])
        return join_labels([name for name, has in zip(names, label, strict=True) if has], self.draft.separator)

    def write(self, settings: RunSettings) -> list[str]:
        """Write the CSV files; returns the arguments of `clozify train`."""
        if min(settings.unlabeled, settings.examples) < 0:
            raise DataError("The numbers of unlabelled rows and of examples cannot be negative; choose 0 or more.")
        labeled = self.write_labeled()
        if not labeled and settings.method != "ipet":
            raise DataError("No row has a label yet; label a few rows first.")
        arguments = [TASK_FILE, *(["--labeled", LABELED_FILE] if labeled else [])]
        arguments += ["--method", settings.method, "--recipe", settings.recipe]
        test = settings.test.strip()
        if settings.method == "ipet" and not settings.unlabeled:
            raise DataError("iPET needs unlabelled rows; choose more than 0, or another method.")
        if settings.method != "supervised" and settings.unlabeled:
            self._write_unlabeled(settings, test)
            arguments += ["--unlabeled", UNLABELED_FILE]
        if settings.examples:
            arguments += ["--examples", str(settings.examples)]
        if test:
            _ = read_rows(absolute(test), self.draft.to_task()).targets  # a wrong file fails now
            arguments += ["--test", absolute(test)]
        arguments += self.model_option
        for setting in settings.recipe_settings.split():
            arguments += ["--set", setting]
        if settings.budget.strip():
            parse_budget(settings.budget)
            arguments += ["--budget", settings.budget.strip()]
        return arguments

    def _write_unlabeled(self, settings: RunSettings, test: str) -> None:
        """Write at most as many unlabelled rows as asked for, evenly spaced."""
        recipe = settings.load_recipe()
        seed = recipe.seed if recipe.selection == "random" else None
        rows = self.unlabeled(settings.examples, settings.unlabeled_file.strip(), seed)
        if test:
            rows = rows.excluding(read_rows(absolute(test), rows.task))
        if not len(rows):
            raise DataError(
                "Every row is a labelled or a test row, so no unlabelled row is left; set their number to 0, or name a "
                "file with unlabelled rows."
            )
        selected = np.linspace(0, len(rows) - 1, min(settings.unlabeled, len(rows))).astype(np.int64)
        rows = rows.select(selected)
        write_csv(self.folder / UNLABELED_FILE, {field: rows.texts(field) for field in self.draft.fields})


def write_csv(path: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Write a CSV file atomically."""
    import pandas as pd

    with saving(path) as tmp_path:
        pd.DataFrame(columns).to_csv(tmp_path, index=False)
