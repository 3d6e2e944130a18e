"""`PetClassifier`: training by PET (sections 3.1 to 3.4 of the paper) as a scikit-learn estimator.

Texts and labels come from memory: lists, arrays, Series or DataFrames.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted

from clozify import __version__
from clozify.config.recipe import Recipe
from clozify.config.task import SEPARATOR, Task, TaskSource, build_task, has_labels, load_task, read_task
from clozify.data.in_memory import (
    InputError,
    encode_label_sets,
    encode_labels,
    extract_columns,
    label_set_names,
    label_texts,
    make_rows,
)
from clozify.data.rows import Rows
from clozify.data.task_labels import sorted_labels
from clozify.errors import ClozifyError, DataError, RunError, quoted
from clozify.inference.abstaining import AbstainOptions
from clozify.inference.finished_run import FinishedRun
from clozify.inference.training import train
from clozify.runs.folder import RunFolder
from clozify.runs.metrics import Metrics
from clozify.runs.records import EnsembleRecord
from clozify.runs.reliability import RELIABILITY_FILE
from clozify.runs.results import find_results
from clozify.utils.atomic import atomic_folder

ESTIMATOR_FILE = "estimator.json"


class PetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A text classifier trained by PET, as a scikit-learn estimator.

    Parameters:

    - `task`: a shipped task's name, a task file, a dict with the entries of one, or a `Task`. The labels of a task
      that has none are those of `y`, with their names as words.
    - `unlabeled`: the unlabelled rows, a file's name or rows as `fit` takes them; without them the ensemble predicts.
    - `model`, `student`, `method`, `recipe`, `settings`: as in `clozify.train`.
    - `teachers`: who votes besides the patterns and the task's own rules and teachers, as in `clozify.train`.
    - `random_state`: the recipe's first seed; `None` leaves the recipe's own.
    - `min_confidence`, `max_risk` or `coverage`: `predict` answers `abstain_label` for uncertain rows, as in
      `clozify.predict`.
    - `abstain_label`: the answer for them, None or a value that is no label, such as "unknown" or -1.
    - `output`: a run folder to keep, in which training resumes; by default nothing is kept.
    - `verbose`: print progress lines.

    Attributes after `fit`:

    - `classes_`: all of the task's labels, sorted, of the type that `y` had; where rows may have several, in the
      task's order.
    - `task_`: the `Task`.
    - `metrics_`: the run's `Metrics`.
    - `n_features_in_`: the number of fields.
    - `run_`: a temporary folder with the trained model, removed with the estimator.
    """

    def __init__(
        self,
        task: TaskSource,
        *,
        unlabeled: Any = None,
        model: str = "builtin",
        student: str | None = None,
        method: str = "pet",
        recipe: str | Path | Recipe = "auto",
        settings: Sequence[str] = (),
        teachers: Sequence[Any] = (),
        random_state: Any = None,
        output: str | Path | None = None,
        verbose: bool = False,
        min_confidence: float | None = None,
        max_risk: float | None = None,
        coverage: float | None = None,
        abstain_label: Any = None,
    ) -> None:
        self.task = task
        self.unlabeled = unlabeled
        self.model = model
        self.student = student
        self.method = method
        self.recipe = recipe
        self.settings = settings
        self.teachers = teachers
        self.random_state = random_state
        self.output = output
        self.verbose = verbose
        self.min_confidence = min_confidence
        self.max_risk = max_risk
        self.coverage = coverage
        self.abstain_label = abstain_label

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = tags.input_tags.dict = True
        tags.input_tags.two_d_array = False  # means one of numbers; columns of text are accepted
        with suppress(ClozifyError):  # a task that cannot be read is reported by fit
            tags.classifier_tags.multi_label = tags.target_tags.two_d_labels = load_task(self.task).multilabel
        return tags

    def fit(self, X: Any, y: Any, unlabeled: Any = None) -> Self:  # noqa: N803
        """Train on texts `X` and their labels `y`; `unlabeled` replaces the constructor's.

        `X` is a list of texts for a task with one field; for any task a DataFrame, a list of dicts, or a 2-D array of
        texts with columns in the order of the task's fields. `y` holds the task's labels, numbers that read like them,
        or aliases. Where rows may have several labels, `y` is a matrix of 0 and 1 with a column for each label in the
        task's order (a DataFrame's columns may be in any), a list of lists of labels, or texts such as `a|b`.
        """
        self._abstain_options()  # an error before the training
        task = _load_task(self.task, y)
        self._check_abstaining(task)
        columns = extract_columns(X, task, "X")
        names: Sequence[str | None]
        if task.multilabel:
            names = encode_label_sets(y, task)
            classes, class_indices = np.array(task.labels), np.arange(len(task.labels))
        else:
            names, classes, class_indices = encode_labels(y, task)
        if len(names) != (count := len(next(iter(columns.values())))):
            raise InputError(f"X has {count} rows, but y has {len(names)} labels; each row needs one.")
        unlabeled = self.unlabeled if unlabeled is None else unlabeled
        if unlabeled is not None and not isinstance(unlabeled, (str, Path, Rows)):
            unlabeled = make_rows(extract_columns(unlabeled, task, "unlabeled"), task, "unlabeled")
        fitted = FittedFolder()
        with tempfile.TemporaryDirectory(prefix="clozify-") as tmp_folder:
            run = Path(self.output or tmp_folder)

            def log(line: str) -> None:
                if self.verbose:
                    print(line.removesuffix(f"; the run is in {tmp_folder}"))

            try:
                train(
                    task,
                    labeled=make_rows(columns | {task.label: names}, task, "X"),
                    output=run,
                    unlabeled=unlabeled,
                    model=str(self.model),
                    student=None if self.student is None else str(self.student),
                    method=self.method,
                    recipe=self.recipe,
                    settings=self._settings_with_seed(),
                    teachers=self.teachers,
                    replace=True,
                    log=log,
                )
            except DataError as error:
                raise InputError(error.problems) from None
            with RunFolder(run):  # locked, so that no other process changes it
                fitted.copy_result(run, self.method)
        self._set_fitted(task, classes, class_indices, fitted)
        return self

    def _abstain_options(self, sets: float | None = None) -> AbstainOptions:
        """Which rows `predict` abstains from; a value out of range is an `InputError`."""
        try:
            return AbstainOptions(self.min_confidence, self.max_risk, self.coverage, sets)
        except RunError as error:
            raise InputError(error.problems) from None

    def _check_abstaining(self, task: Task) -> None:
        """Raise an `InputError` where `predict` returns a matrix and shall leave rows out."""
        names = [name for name in ("min_confidence", "max_risk", "coverage") if getattr(self, name) is not None]
        if task.multilabel and names:
            raise InputError(
                f"Rows of this task may have several labels, so that predict returns a matrix of 0 and 1, which cannot "
                f"leave rows out; remove {quoted(names)}, or use clozify.predict with the folder `run_`."
            )

    def _settings_with_seed(self) -> list[str]:
        """The recipe's settings, with `random_state` as its seed."""
        settings = [self.settings] if isinstance(self.settings, str) else list(self.settings)
        if self.random_state is not None:
            rng = check_random_state(self.random_state)  # raises where it is no seed
            seed = rng.randint(2**31) if isinstance(self.random_state, np.random.RandomState) else self.random_state
            settings.append(f"seed={int(seed)}")
        return settings

    def _set_fitted(
        self, task: Task, classes: NDArray[Any], class_indices: NDArray[np.int64], fitted: FittedFolder
    ) -> None:
        self.classes_, self.task_, self.n_features_in_ = classes, task, len(task.fields)
        self.metrics_ = Metrics.load(fitted.path / "metrics.json")
        self._class_indices, self._fitted = class_indices, fitted  # indices of `classes_` in `task.labels`

    @property
    def run_(self) -> Path:
        """The folder with the trained model, which `clozify predict` reads too."""
        check_is_fitted(self)
        return self._fitted.path

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Each row's probabilities, (rows, labels); the columns are those of `classes_`."""
        check_is_fitted(self)
        run = self._fitted.run
        rows = make_rows(
            extract_columns(X, self.task_, "X"), run.task, "X"
        )  # the run's task cleans texts as training did
        return run.probabilities(rows)[:, self._class_indices]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Each row's most probable label, of the type that `y` had; `abstain_label` for rows that are abstained from.

        With an `abstain_label` of another type than the labels', such as None, the array has the type `object`. Where
        rows may have several labels, a matrix of 0 and 1, (rows, labels), with a column for each of `classes_`.
        """
        check_is_fitted(self)
        self._check_abstaining(self.task_)
        abstainer = self._fitted.run.abstainer(self._abstain_options())
        probabilities = self.predict_proba(X)
        if self.task_.multilabel:
            return self._fitted.run.decision.predict(probabilities).astype(np.int64)
        predicted: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        if not abstainer.abstains:
            return predicted
        labels = abstainer.answers(probabilities).keep(predicted.tolist())
        answers = [self.abstain_label if label is None else label for label in labels]
        same_type = {type(label) for label in self.classes_.tolist()} == {type(self.abstain_label)}
        return np.array(answers, dtype=None if same_type else object)

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:  # noqa: N803
        """Whether each of `classes_` is in a row's prediction set, (rows, labels).

        The set contains the true label, or all true labels, for a fraction `level` of the rows.
        """
        check_is_fitted(self)
        abstainer = self._fitted.run.abstainer(self._abstain_options(level))
        sets = abstainer.answers(self.predict_proba(X)).sets
        assert sets is not None  # a level was asked for
        return sets

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Accuracy: the share of rows whose label is predicted; of several labels, all of them.

        Every row counts with its most probable label, whether `predict` abstains from it or not.
        """
        check_is_fitted(self)
        if self.task_.multilabel:
            cells = encode_label_sets(y, self.task_)
            columns: dict[str, list[Any]] = dict.fromkeys(self.task_.fields, [""] * len(cells))
            truth = make_rows(columns | {self.task_.label: cells}, self.task_, "y").label_matrix
            return float(accuracy_score(truth, self.predict(X), sample_weight=sample_weight))
        classes = self.classes_.tolist()
        if unknown := sorted({str(value) for value in column_or_1d(y).tolist() if value not in classes}):
            raise InputError(
                f"y holds {quoted(unknown, 5)}, but the labels in fit were {quoted(classes)}; use the same."
            )
        predicted = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return float(accuracy_score(column_or_1d(y), predicted, sample_weight=sample_weight))

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator as JSON and safetensors, without unlabelled rows that were passed in memory."""
        check_is_fitted(self)
        path = Path(folder).resolve()
        if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / ESTIMATOR_FILE).is_file()):
            raise RunError(f"'{folder}' exists and holds no estimator; name a new or an empty folder to save to.")
        params = self.get_params(deep=False) | {"task": self.task_.model_dump()}
        if isinstance(self.recipe, Recipe):
            params["recipe"] = self.recipe.model_dump()
        if not isinstance(self.unlabeled, (str, Path)):
            params["unlabeled"] = None
        if not isinstance(self.random_state, (int, np.integer)):
            params["random_state"] = None
        del params["teachers"]  # objects of Python are not stored; what they taught is in the model
        content = {
            "clozify": __version__,
            "params": params,
            "classes": self.classes_.tolist(),
            "class_indices": self._class_indices.tolist(),
        }
        with atomic_folder(path) as tmp_path:
            shutil.copytree(self.run_, tmp_path, dirs_exist_ok=True)
            (tmp_path / ESTIMATOR_FILE).write_text(json.dumps(content, indent=2, default=_to_json), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a fitted estimator that `save` wrote; it predicts the same."""
        path = Path(folder)
        try:
            content = json.loads((path / ESTIMATOR_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RunError(f"The folder '{folder}' holds no estimator; name one that save wrote.") from None
        params = content["params"]
        params["task"] = task = Task.model_validate(params["task"])
        if isinstance(params["recipe"], dict):
            params["recipe"] = Recipe.model_validate(params["recipe"])
        estimator = cls(**params)
        fitted = FittedFolder()
        shutil.copytree(path, fitted.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(ESTIMATOR_FILE))
        estimator._set_fitted(task, np.array(content["classes"]), np.array(content["class_indices"]), fitted)
        return estimator


class FittedFolder:
    """A temporary folder with one fit's trained model, removed with this object; copies and pickles contain its files.

    The run folder cannot serve: another fit into the same `output` replaces its classifier.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="clozify-estimator-"))
        weakref.finalize(self, _remove, self.path, os.getpid())

    def copy_result(self, run: Path, method: str) -> None:
        """Copy a finished run's result: the classifier or, where none was distilled, the members."""
        results = find_results(run, method)
        names = ["run.json", "metrics.json"]
        names += [RELIABILITY_FILE] if (results / RELIABILITY_FILE).is_file() else []
        if (results / "classifier").is_dir():
            names.append("classifier")
        else:
            names.append("ensemble.json")
            for member in EnsembleRecord.load(results).weights:
                name = f"members/{member.member}"
                shutil.copytree(run / name, self.path / name)
        for name in names:
            copy = shutil.copytree if (results / name).is_dir() else shutil.copy2
            copy(results / name, self.path / name)

    @cached_property
    def run(self) -> FinishedRun:
        """The result, ready to predict."""
        return FinishedRun(self.path)

    def __getstate__(self) -> dict[str, bytes]:
        files = [file for file in sorted(self.path.rglob("*")) if file.is_file()]
        return {file.relative_to(self.path).as_posix(): file.read_bytes() for file in files}

    def __setstate__(self, files: dict[str, bytes]) -> None:
        self.__init__()  # type: ignore[misc]
        for name, content in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(content)


def _load_task(task: TaskSource, y: Any) -> Task:
    """The task; the labels of one that has none are those of `y`."""
    content, source = read_task(task)
    if isinstance(task, Task) or has_labels(content):
        return load_task(task).model_copy()  # a `Task` caches properties, but fit must not alter a parameter
    if content.get("multilabel") is True:
        return build_task(content, source, sorted_labels(label_set_names(y, str(content.get("separator", SEPARATOR)))))
    return build_task(content, source, sorted_labels(set(label_texts(y)[1])))


def _to_json(value: object) -> object:
    """NumPy's numbers as Python's, anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _remove(folder: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked process has a copy of the object, but does not own the folder
        shutil.rmtree(folder, ignore_errors=True)
