"""Experiments: one method on one training set, which gives one or more cells of a table.

A result is kept in `cells/KEY.json`, so no experiment runs twice. All experiments with the same task and model use one
run folder, whose jobs are named by a hash of their inputs: PET, iPET's first generation and the rows of table 4 share
their members.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import DataError, ModelError
from clozify.reproduce.data_locations import TITLES, XSTANCE_LANGUAGES
from clozify.reproduce.datasets import Examples, PaperData, TaskData
from clozify.reproduce.scores import Measures, RunScores, mean_and_std
from clozify.runs.keys import hash_key, model_key
from clozify.runs.results import find_results
from clozify.utils.atomic import atomic_write_text

TRAINED = ("supervised", "pet", "ipet", "uda", "mixtext")
METHODS = ("unsupervised", *TRAINED)
METHOD_NAMES = {
    "unsupervised": "unsupervised",
    "supervised": "supervised",
    "pet": "PET",
    "ipet": "iPET",
    "uda": "UDA",
    "mixtext": "MixText",
    "words": "verbalizer search",
}
XSTANCE_SETTINGS = [  # appendix B: on x-stance every training has three epochs
    f"{section}.num_train_epochs=3" for section in ("finetune", "finetune_without_lm", "distill", "supervised")
]


class NotRunError(DataError):
    """An experiment that cannot be run; the message says why."""


@dataclass(frozen=True)
class Experiment:
    """What is run; the data, the model and the recipe are the same for all experiments of a table."""

    task: str
    examples: Examples
    method: str  # one of METHODS, or 'words' for the verbalizer search alone
    settings: tuple[str, ...] = ()  # changes of the recipe
    unlabeled_fraction: float = 1.0  # of D
    pretrained: bool = False  # with in-domain pretraining on D
    searched_words: bool = False  # with the words of the verbalizer search

    def __str__(self) -> str:
        size = "the whole training set" if self.examples == "full" else f"{self.examples} examples"
        name = METHOD_NAMES[self.method] + " + AVS" * self.searched_words + " + PT" * self.pretrained
        settings = f" ({', '.join(self.settings)})" if self.settings else ""
        return f"{TITLES.get(self.task, self.task)}, {size}, {name}{settings}"


class ExperimentResult(BaseModel):
    """The content of `cells/KEY.json`."""

    model_config = ConfigDict(frozen=True)

    cell: Experiment | None = None
    model: str = ""
    seconds: float = 0.0
    numbers: dict[str, Measures] = {}  # by test set
    generations: dict[str, dict[str, float]] = {}  # by test set: generation -> mean of its members
    pair_scores: dict[str, list[float]] = {}  # by test set, of the untrained pairs
    task: Task | None = None  # with the words of the verbalizer search
    words: dict[str, list[str]] = {}  # label -> words of the verbalizer search
    rows: dict[str, int] = {}
    augmentation: str | None = None  # of UDA and MixText, as the following two
    steps: int | None = None
    chosen: str | None = None  # how the number of steps was chosen
    missing: dict[str, str] = {}  # test set that the data lacks -> why
    notes: list[str] = []  # where the data differs from the paper's
    warnings: list[str] = []


@dataclass
class ExperimentRunner:
    """Runs experiments and keeps their results in `output`."""

    output: Path
    data: PaperData
    model: str
    recipe: Recipe | str | Path = "paper"
    settings: Sequence[str] = ()
    log: Callable[[str], None] = lambda line: None
    devices: str = "auto"
    at_once: int | None = None
    _base_recipe: Recipe = field(init=False)
    _model_key: str = field(init=False)

    def __post_init__(self) -> None:
        self._base_recipe = load_recipe(self.recipe)
        load_recipe(self._base_recipe, self.settings)  # report a wrong setting before anything runs
        self._model_key = model_key(self.model)

    def experiment_recipe(self, experiment: Experiment) -> Recipe:
        """The recipe with three epochs for x-stance, the user's settings, then the experiment's."""
        xstance = XSTANCE_SETTINGS if experiment.task in XSTANCE_LANGUAGES else []
        return load_recipe(self._base_recipe, [*xstance, *self.settings, *experiment.settings])

    def key(self, experiment: Experiment) -> str:
        """A hash of an experiment and all its inputs."""
        recipe = self.experiment_recipe(experiment).model_dump()  # settings that equal the recipe's change nothing
        fields = asdict(replace(experiment, settings=()))
        return hash_key(cell=fields, data=self.data.key(experiment.task), model=self._model_key, recipe=recipe)

    def find(self, experiment: Experiment) -> ExperimentResult | None:
        """The result of an experiment that was run before."""
        try:
            path = self.output / "cells" / f"{self.key(experiment)}.json"
        except DataError:
            return None
        return ExperimentResult.model_validate_json(path.read_bytes()) if path.is_file() else None

    def check(self, experiment: Experiment) -> TaskData:
        """The experiment's data; `NotRunError` if it cannot be run."""
        from clozify.pipeline.prepare import METHODS as AVAILABLE

        if experiment.method in TRAINED and experiment.method not in AVAILABLE:
            raise NotRunError(f"The method {METHOD_NAMES[experiment.method]} is not part of this version of clozify.")
        if experiment.examples == 0 and experiment.method not in ("unsupervised", "ipet"):
            raise NotRunError(f"The method {METHOD_NAMES[experiment.method]} needs labelled examples.")
        data = self.data.load(experiment.task)
        try:
            self._select(experiment, data)
        except DataError as error:
            name = TITLES.get(experiment.task, experiment.task)
            raise NotRunError(f"{name}, {experiment.examples} examples: {' '.join(error.problems)}") from None
        return data

    def run(self, experiment: Experiment) -> ExperimentResult:
        """The result of an experiment, which runs now if it did not before."""
        result = self.find(experiment)
        if result is not None:
            return result
        data, started = self.check(experiment), time.monotonic()
        common = {"cell": experiment, "model": self.model, "notes": data.notes, "missing": data.missing}
        result = self._run(experiment, data).model_copy(update=common)
        result = result.model_copy(update={"seconds": round(time.monotonic() - started, 1)})
        path = self.output / "cells" / f"{self.key(experiment)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, result.model_dump_json(indent=2, exclude_defaults=True) + "\n")
        return result

    def _select(self, experiment: Experiment, data: TaskData) -> tuple[Rows | None, Rows]:
        recipe = self.experiment_recipe(experiment)
        return data.select(experiment.examples, recipe, experiment.unlabeled_fraction)

    def _run(self, experiment: Experiment, data: TaskData) -> ExperimentResult:
        if experiment.method == "unsupervised":
            return self._unsupervised(experiment, data)
        if experiment.method == "words":
            return self._search_words(experiment, data)
        return self._train(experiment, data)

    def _train(self, experiment: Experiment, data: TaskData) -> ExperimentResult:
        from clozify.inference.training import train

        labeled, unlabeled = self._select(experiment, data)
        task = data.task
        if experiment.searched_words:
            searched = self.run(replace(experiment, method="words", searched_words=False)).task
            assert searched is not None
            task = searched
        model = self._pretrain(experiment, data) if experiment.pretrained else self.model
        folder = self.output / "runs" / _file_name(f"{experiment.task}-{Path(model).name}")
        metrics = (
            train(
                task,
                labeled,
                folder,
                devices=self.devices,
                at_once=self.at_once,
                unlabeled=None if experiment.method == "supervised" else unlabeled,
                test=data.test,
                model=model,
                method=experiment.method,
                recipe=self.experiment_recipe(experiment),
                allow_overlap=labeled is unlabeled,  # D = T
                replace=True,  # experiments share the folder
                log=self.log,
            )
        ).metrics
        scores = RunScores(folder, find_results(folder, experiment.method), data.test, data.test_slices())
        semi_supervised = metrics.uda or metrics.mixtext
        return ExperimentResult(
            numbers=scores.measures(metrics),
            generations=scores.generations(metrics),
            rows=metrics.rows,
            warnings=metrics.warnings,
            augmentation=semi_supervised.augmentation if semi_supervised else None,
            steps=semi_supervised.steps if semi_supervised else None,
            chosen=semi_supervised.chosen if semi_supervised else None,
        )

    def _unsupervised(self, experiment: Experiment, data: TaskData) -> ExperimentResult:
        """The untrained pairs (lines 1 and 2 of table 1): their mean and standard deviation, and the best."""
        from clozify.methods.score import score_rows
        from clozify.metrics import basic_metrics
        from clozify.models.cloze import load_model
        from clozify.models.task_prompts import compile_task

        recipe = self.experiment_recipe(experiment)
        breaks = [*data.task.line_breaks, "\\"] if recipe.backslashes_to_spaces else data.task.line_breaks
        task = data.task.with_changes(line_breaks=breaks)
        rows: Rows = data.test.with_task(task)
        model = load_model(self.model)
        prompts = compile_task(model, task, rows, recipe.wording)
        chunks = [scores for _, scores in score_rows(model, prompts, rows, recipe.max_seq_length)]
        predictions = np.concatenate(chunks, axis=1).argmax(axis=-1)  # (pairs, rows)
        metric = task.metric.replace("-", "_")
        pair_scores: dict[str, list[float]] = {
            test_set: [
                getattr(basic_metrics(rows.labels[part], predicted[part], len(task.labels)), metric)
                for predicted in predictions
            ]
            for test_set, part in data.test_slices().items()
        }
        numbers: dict[str, Measures] = {
            test_set: {"avg": mean_and_std(scores), "max": (max(scores), 0.0)}
            for test_set, scores in pair_scores.items()
        }
        return ExperimentResult(numbers=numbers, pair_scores=pair_scores)

    def _search_words(self, experiment: Experiment, data: TaskData) -> ExperimentResult:
        from clozify.pipeline.find_words import find_words

        labeled, unlabeled = self._select(experiment, data)
        assert labeled is not None
        self.log("searching words for the labels")
        recipe = self.experiment_recipe(experiment)
        task, report = find_words(data.task, labeled, unlabeled, model=self.model, recipe=recipe)
        words = {label: [entry.word for entry in entries] for label, entries in report.labels.items()}
        return ExperimentResult(task=task, words=words, warnings=report.warnings)

    def _pretrain(self, experiment: Experiment, data: TaskData) -> str:
        """The folder of the model after in-domain pretraining on D (section 5), which runs once for a task."""
        from clozify.pipeline.pretrain import pretrain

        recipe = self.experiment_recipe(experiment)
        _, unlabeled = data.select(0, recipe)
        settings: dict[str, Any] = {
            "pretrain": recipe.pretrain.model_dump(),
            "seed": recipe.seed,
            "dropout": recipe.attention_dropout,
        }
        key = hash_key(data=self.data.key(experiment.task), model=self._model_key, how=settings)
        folder = self.output / "models" / _file_name(f"{experiment.task}-{Path(self.model).name}-{key[:8]}")
        pretrain(unlabeled, folder, model=self.model, recipe=recipe, log=self.log)
        return str(folder)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)


def check_model(model: str) -> None:
    """Raise a `ModelError` if the model is neither on this machine nor can be downloaded."""
    from clozify.models.loading import load_config, model_path
    from clozify.utils import libraries

    if Path(model_path(model)).is_dir() or libraries.hub_reachable():
        return
    try:
        with libraries.quiet_transformers():
            load_config(model)
    except ModelError:
        raise ModelError(
            f"The model '{model}' is neither a folder nor in the local cache, and the hub cannot be reached; name a "
            "folder with --model, or 'builtin'."
        ) from None
