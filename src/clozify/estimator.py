"""scikit-learn's way in: `PetClassifier`, with `fit`, `predict`, `predict_proba`, `score`, `save` and `load`.

In: texts and labels from memory, as lists, arrays, Series or DataFrames. Out: an estimator that scikit-learn's tools
can clone, search over, cross-validate and put into a pipeline. It trains as `clozify train` does (sections 3.1 to 3.3).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted

from clozify import __version__
from clozify.config.recipe import Recipe
from clozify.config.task import Task, load_task
from clozify.data.in_memory import InputError, encode_labels, extract_columns, make_rows
from clozify.data.rows import Rows
from clozify.errors import DataError, RunError, quoted
from clozify.inference.finished_run import FinishedRun
from clozify.pipeline.train import train
from clozify.runs.folder import RunFolder
from clozify.utils.atomic import atomic_folder

ESTIMATOR_FILE = "estimator.json"


class PetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A text classifier trained by PET, as a scikit-learn estimator.

    - `task`: a shipped task's name, a file or a `Task`.
    - `unlabeled`: the pile, a file's name or rows as `fit` takes them; without one the ensemble itself predicts.
    - `model`, `student`, `method`, `recipe`, `settings`: as in `clozify.train`.
    - `random_state`: the recipe's first seed; `None` leaves it as the recipe has it.
    - `output`: a run folder, which resumes; without it, training leaves nothing behind.
    - `verbose`: print how training goes.

    Fitted, it has `classes_` (all of the task's labels, sorted, of the kind that `y` had), `task_`, `metrics_`,
    `n_features_in_` (the number of fields) and `run_`, a folder of its own that goes when the estimator goes.
    """

    def __init__(
        self,
        task: str | Path | Task,
        *,
        unlabeled: Any = None,
        model: str = "builtin",
        student: str | None = None,
        method: str = "pet",
        recipe: str | Path | Recipe = "paper",
        settings: Sequence[str] = (),
        random_state: Any = None,
        output: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.task = task
        self.unlabeled = unlabeled
        self.model = model
        self.student = student
        self.method = method
        self.recipe = recipe
        self.settings = settings
        self.random_state = random_state
        self.output = output
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = tags.input_tags.dict = True
        tags.input_tags.two_d_array = False  # of numbers; columns of text are welcome
        return tags

    def fit(self, X: Any, y: Any, unlabeled: Any = None) -> Self:  # noqa: N803
        """Train on texts `X` and their labels `y`; `unlabeled` goes before the constructor's.

        `X` holds texts for a task with one field; a DataFrame, dicts or a 2-D array of texts (columns in the order of
        the task's fields) serve any. `y` holds the task's labels, numbers that are written like them, or aliases.
        """
        task = load_task(self.task)
        columns = extract_columns(X, task, "X")
        names, classes, places = encode_labels(y, task)
        if len(names) != (rows := len(next(iter(columns.values())))):
            raise InputError(f"X has {rows} rows, but y has {len(names)} labels; each row needs one.")
        pile = self.unlabeled if unlabeled is None else unlabeled
        if pile is not None and not isinstance(pile, (str, Path, Rows)):
            pile = make_rows(extract_columns(pile, task, "unlabeled"), task, "unlabeled")
        settings = [self.settings] if isinstance(self.settings, str) else list(self.settings)
        if self.random_state is not None:
            rng = check_random_state(self.random_state)  # it refuses what is no seed
            seed = rng.randint(2**31) if isinstance(self.random_state, np.random.RandomState) else self.random_state
            settings.append(f"seed={int(seed)}")
        kept = Kept()
        with tempfile.TemporaryDirectory(prefix="clozify-") as scratch:
            run = Path(self.output or scratch)
            try:
                metrics = train(
                    task,
                    labeled=make_rows(columns | {task.label: names}, task, "X"),
                    output=run,
                    unlabeled=pile,
                    model=str(self.model),
                    student=None if self.student is None else str(self.student),
                    method=self.method,
                    recipe=self.recipe,
                    settings=settings,
                    log=lambda line: print(line.removesuffix(f"; the run is in {scratch}")) if self.verbose else None,
                )
            except DataError as error:
                raise InputError(error.problems) from None
            with RunFolder(run):  # nobody trains there meanwhile
                kept.take(run)
        self.task_, self.metrics_, self.n_features_in_ = task, metrics, len(task.fields)
        self.classes_, self._places, self._kept = classes, places, kept
        return self

    @property
    def run_(self) -> Path:
        """The folder with what was learned; `clozify predict` reads it too."""
        check_is_fitted(self)
        return self._kept.path

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Each row's probabilities, (rows, labels); the columns are those of `classes_`."""
        check_is_fitted(self)
        rows = make_rows(
            extract_columns(X, self.task_, "X"), self._kept.finished.task, "X"
        )  # its clean-up as in training
        return self._kept.finished.probabilities(rows)[:, self._places]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Each row's most probable label, of the kind that `y` had."""
        probabilities = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return predicted

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """The share of rows whose label is found: accuracy."""
        check_is_fitted(self)
        known = self.classes_.tolist()
        if unknown := sorted({str(value) for value in column_or_1d(y).tolist() if value not in known}):
            raise InputError(f"y holds {quoted(unknown, 5)}, but the labels in fit were {quoted(known)}; use the same.")
        return float(super().score(X, y, sample_weight))

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator as a folder of JSON and safetensors; a pile given as rows is left out."""
        check_is_fitted(self)
        place = Path(folder).resolve()
        if place.is_file() or (place.is_dir() and any(place.iterdir()) and not (place / ESTIMATOR_FILE).is_file()):
            raise RunError(f"'{folder}' is there and holds no estimator; name a new or an empty folder to save to.")
        params = self.get_params(deep=False) | {"task": self.task_.model_dump()}
        if isinstance(self.recipe, Recipe):
            params["recipe"] = self.recipe.model_dump()
        if not isinstance(self.unlabeled, (str, Path)):
            params["unlabeled"] = None
        if not isinstance(self.random_state, (int, np.integer)):
            params["random_state"] = None
        content = {"clozify": __version__, "params": params, "classes": self.classes_.tolist()}
        content["places"] = self._places.tolist()
        with atomic_folder(place) as tmp_path:
            shutil.copytree(self.run_, tmp_path, dirs_exist_ok=True)
            (tmp_path / ESTIMATOR_FILE).write_text(json.dumps(content, indent=2, default=_plain), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """A fitted estimator that `save` wrote; it predicts the same."""
        place = Path(folder)
        try:
            content = json.loads((place / ESTIMATOR_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RunError(f"The folder '{folder}' holds no estimator; name one that save wrote.") from None
        params = content["params"]
        params["task"] = task = Task.model_validate(params["task"])
        if isinstance(params["recipe"], dict):
            params["recipe"] = Recipe.model_validate(params["recipe"])
        estimator = cls(**params)
        estimator._kept = kept = Kept()
        shutil.copytree(place, kept.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(ESTIMATOR_FILE))
        estimator.task_, estimator.n_features_in_ = task, len(task.fields)
        estimator.metrics_ = json.loads((place / "metrics.json").read_text(encoding="utf-8"))
        estimator.classes_, estimator._places = np.array(content["classes"]), np.array(content["places"])
        return estimator


class Kept:
    """What one fit learned, in a folder that goes when this goes; a copy or a pickle takes its files along.

    The run folder itself will not do: another fit into the same `output` puts another classifier there.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="clozify-estimator-"))
        weakref.finalize(self, _remove, self.path, os.getpid())

    def take(self, run: Path) -> None:
        """Copy a finished run's result: the classifier or, where none was distilled, the members."""
        parts = ["run.json", "metrics.json"]
        if not (run / "classifier").is_dir():
            members = json.loads((run / "ensemble.json").read_text(encoding="utf-8"))["weights"]
            parts += ["ensemble.json", *[f"members/{member['member']}" for member in members]]
        else:
            parts.append("classifier")
        for part in parts:
            copy = shutil.copytree if (run / part).is_dir() else shutil.copy2
            copy(run / part, self.path / part)

    @cached_property
    def finished(self) -> FinishedRun:
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


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else str(value)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has the object too, but not the folder
        shutil.rmtree(folder, ignore_errors=True)
