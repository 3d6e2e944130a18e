"""A cell of a table: one training (or none) on one training set, and the numbers that come of it.

In: a `Cell`, which says the task, |T|, the method and what the table changes in the recipe. Out: a result, plain
numbers ready for JSON, kept in `cells/KEY.json`, so that no cell is run twice. All cells of a task and a model work in
one run folder, where members are named by what went into them: PET, iPET's first generation and the combinations of
table 4 share theirs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import DataError, ModelError
from clozify.reproduce.data_locations import TITLES, XSTANCE
from clozify.reproduce.datasets import Data, Examples, TaskData
from clozify.runs.folder import hash_key
from clozify.runs.plan import Plan
from clozify.utils.atomic import atomic_write_text

TRAINED = ("supervised", "pet", "ipet", "uda", "mixtext")
METHODS = ("unsupervised", *TRAINED)
NAMES = {
    "unsupervised": "unsupervised",
    "supervised": "supervised",
    "pet": "PET",
    "ipet": "iPET",
    "uda": "UDA",
    "mixtext": "MixText",
    "words": "verbalizer search",
}
EPOCHS = [  # appendix B: x-stance is always trained for three epochs
    f"{section}.num_train_epochs=3" for section in ("finetune", "finetune_without_lm", "distill", "supervised")
]


class NotRunError(DataError):
    """A cell that cannot be run here; the sentence says why."""


@dataclass(frozen=True)
class Cell:
    """What is run: everything but the data's place, the model and the recipe, which all cells share."""

    task: str
    examples: Examples
    method: str  # one of METHODS, or 'words' for the verbalizer search alone
    settings: tuple[str, ...] = ()  # what the table changes in the recipe
    share: float = 1.0  # of D
    pretrained: bool = False  # the model goes on reading D first
    found_words: bool = False  # the labels' words come from the verbalizer search

    def __str__(self) -> str:
        size = "the whole training set" if self.examples == "full" else f"{self.examples} examples"
        name = NAMES[self.method] + " + AVS" * self.found_words + " + PT" * self.pretrained
        changed = f" ({', '.join(self.settings)})" if self.settings else ""
        return f"{TITLES.get(self.task, self.task)}, {size}, {name}{changed}"


class Cells:
    """Runs cells, and remembers what they gave."""

    def __init__(
        self,
        output: Path,
        data: Data,
        model: str,
        recipe: Recipe | str | Path = "paper",
        settings: Sequence[str] = (),
        say: Callable[[str], None] = lambda line: None,
        devices: str = "auto",
        at_once: int | None = None,
    ) -> None:
        self.devices, self.at_once = devices, at_once
        self.output, self.data, self.model, self.say = output, data, model, say
        self._base, self.settings = load_recipe(recipe), list(settings)
        load_recipe(self._base, self.settings)  # a wrong setting is told before anything is run
        self._model_key = Plan.model_key(model)

    def recipe(self, cell: Cell) -> Recipe:
        """The recipe of a cell: the one given, three epochs for x-stance, the user's settings, then the table's."""
        epochs = EPOCHS if cell.task in XSTANCE else []
        return load_recipe(self._base, [*epochs, *self.settings, *cell.settings])

    def key(self, cell: Cell) -> str:
        """A short name for a cell and all that goes into it."""
        recipe = self.recipe(cell).model_dump()  # settings that change nothing make no other cell
        asked = asdict(replace(cell, settings=()))
        return hash_key(cell=asked, data=self.data.key(cell.task), model=self._model_key, recipe=recipe)

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a cell that was run before."""
        try:
            path = self.output / "cells" / f"{self.key(cell)}.json"
        except DataError:
            return None
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def check(self, cell: Cell) -> TaskData:
        """The cell's data; `NotRunError` where the cell cannot be run at all."""
        from clozify.pipeline.train import METHODS as PRESENT

        if cell.method in TRAINED and cell.method not in PRESENT:
            raise NotRunError(f"The method {NAMES[cell.method]} is not part of this version of clozify.")
        if cell.examples == 0 and cell.method not in ("unsupervised", "ipet"):
            raise NotRunError(f"The method {NAMES[cell.method]} needs labelled examples.")
        data = self.data.load(cell.task)
        try:
            data.split(cell.examples, self.recipe(cell), cell.share)
        except DataError as error:
            name = TITLES.get(cell.task, cell.task)
            raise NotRunError(f"{name}, {cell.examples} examples: {' '.join(error.problems)}") from None
        return data

    def run(self, cell: Cell) -> dict[str, Any]:
        """The result of a cell, run now if it was not before."""
        found = self.find(cell)
        if found is not None:
            return found
        data, began = self.check(cell), time.monotonic()
        result = self._work(cell, data)
        result |= {"cell": asdict(cell), "model": self.model, "notes": data.notes, "lacking": data.lacking}
        result["seconds"] = round(time.monotonic() - began, 1)
        place = self.output / "cells" / f"{self.key(cell)}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(place, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        return result

    def _work(self, cell: Cell, data: TaskData) -> dict[str, Any]:
        recipe = self.recipe(cell)
        labeled, pile = data.split(cell.examples, recipe, cell.share)
        if cell.method == "unsupervised":
            return {"numbers": self._unsupervised(data, recipe)}
        if cell.method == "words":
            return self._words(data.task, labeled, pile, recipe)

        from clozify.pipeline.train import train
        from clozify.reproduce.numbers import numbers_of

        task = data.task
        if cell.found_words:
            task = Task.model_validate(self.run(replace(cell, method="words", found_words=False))["task"])
        model = self._pretrained(cell, data, recipe) if cell.pretrained else self.model
        folder = self.output / "runs" / _file_name(f"{cell.task}-{Path(model).name}")
        metrics = train(
            task,
            labeled,
            folder,
            self.devices,
            self.at_once,
            unlabeled=None if cell.method == "supervised" else pile,
            test=data.test,
            model=model,
            method=cell.method,
            recipe=recipe,
            allow_overlap=labeled is pile,  # D = T
            say=self.say,
        )
        found = numbers_of(metrics, folder, data.test, data.slices())
        of_method = metrics.get(cell.method, {})
        told = {name: of_method[name] for name in ("augmentation", "steps", "chosen") if name in of_method}
        return found | {"rows": metrics["rows"], "warnings": metrics["warnings"], **told}

    def _unsupervised(self, data: TaskData, recipe: Recipe) -> dict[str, Any]:
        """The pairs without any training (lines 1 and 2 of table 1): their mean with its spread, and the best."""
        from clozify.methods.score import score_rows
        from clozify.metrics import basic_metrics
        from clozify.models.cloze import load_model
        from clozify.models.task_prompts import compile_task
        from clozify.reproduce.numbers import spread_of

        breaks = [*data.task.line_breaks, "\\"] if recipe.backslashes_to_spaces else data.task.line_breaks
        task = data.task.changed(line_breaks=breaks)
        rows: Rows = data.test.with_task(task)
        model = load_model(self.model)
        questions = compile_task(model, task, rows, recipe.wording)
        parts = [part for _, part in score_rows(model, questions, rows, recipe.max_seq_length)]
        predicted = np.concatenate(parts, axis=1).argmax(axis=-1)  # (pairs, rows)
        metric = task.metric.replace("-", "_")
        numbers = {}
        for part, where in data.slices().items():
            each = [getattr(basic_metrics(rows.labels[where], of[where], len(task.labels)), metric) for of in predicted]
            numbers[part] = {"avg": spread_of(each), "max": [max(each), 0.0], "each": each}
        return numbers

    def _words(self, task: Task, labeled: Rows | None, pile: Rows, recipe: Recipe) -> dict[str, Any]:
        from clozify.pipeline.find_words import find_words

        assert labeled is not None
        self.say("searching words for the labels")
        found, report = find_words(task, labeled, pile, model=self.model, recipe=recipe)
        words = {label: [entry["word"] for entry in of_label] for label, of_label in report["labels"].items()}
        return {"task": found.model_dump(), "words": words, "warnings": report["warnings"]}

    def _pretrained(self, cell: Cell, data: TaskData, recipe: Recipe) -> str:
        """The model after reading the pile (section 5); its folder is made once for a task."""
        from clozify.pipeline.pretrain import pretrain

        _, pile = data.split(0, recipe)
        how = {"pretrain": recipe.pretrain.model_dump(), "seed": recipe.seed, "dropout": recipe.attention_dropout}
        key = hash_key(data=self.data.key(cell.task), model=self._model_key, how=how)
        folder = self.output / "models" / _file_name(f"{cell.task}-{Path(self.model).name}-{key[:8]}")
        pretrain(pile, folder, model=self.model, recipe=recipe, say=self.say)
        return str(folder)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)


def check_model(model: str) -> None:
    """Fail before the work where the model cannot be found."""
    from clozify.models.cloze import BUILTIN
    from clozify.utils import libraries

    place = BUILTIN if model == "builtin" else Path(model)
    if place.is_dir() or libraries.hub_reachable():
        return
    from transformers import AutoConfig

    try:
        with libraries.quiet_transformers():
            AutoConfig.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError):
        raise ModelError(
            f"The model '{model}' is neither a folder nor fetched before, and the hub cannot be reached; name a folder "
            "with --model, or 'builtin'."
        ) from None
