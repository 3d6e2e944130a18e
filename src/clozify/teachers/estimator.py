"""A scikit-learn estimator or pipeline as a teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from clozify.data.rows import Rows
from clozify.data.text_values import to_text
from clozify.errors import DataError, TaskError
from clozify.teachers.base import Cost, ScoringContext, abstentions, votes
from clozify.teachers.label_mapping import UNMAPPED, LabelMapping, map_labels
from clozify.utils.progress import progress

ADDRESS = "_stop_words_id"


class EstimatorTeacher:
    """Any classifier with scikit-learn's methods that takes texts or, with several fields, a DataFrame of them.

    Its classes are the task's labels, by name. Its scores are those of `predict_proba`, else the softmax of
    `decision_function`, else votes by `predict`. One that is not fitted is cloned and fitted on T; it
    abstains where T has a single label.
    """

    kind = "estimator"

    def __init__(self, estimator: Any, name: str | None = None) -> None:
        if not hasattr(estimator, "predict"):
            raise TaskError(
                f"An estimator has the method predict, which {type(estimator).__name__} lacks; pass a classifier of "
                "scikit-learn, or a pipeline that ends in one."
            )
        self.estimator = estimator
        self.name = name or _class_name(estimator)

    @property
    def learns_from_labeled(self) -> bool:
        """Whether it is fitted on T, so that its accuracy there has to be cross-fitted."""
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted

        try:
            check_is_fitted(self.estimator)
        except NotFittedError:
            return True
        except TypeError:  # it has no `fit`
            return False
        return False

    def key(self) -> dict[str, Any]:
        """Its class, its parameters and a hash of its state, which is pickled in memory for that alone."""
        parameters = self.estimator.get_params() if hasattr(self.estimator, "get_params") else {}
        try:
            state = _hash_state(self.estimator)
        except Exception as error:  # pickle raises many types
            raise TaskError(
                f"The teacher '{self.name}' cannot be hashed ({error}), so its results could not be found again; "
                "define its functions and classes at the top of a module instead of lambdas."
            ) from None
        return {
            "class": f"{type(self.estimator).__module__}.{type(self.estimator).__qualname__}",
            "parameters": {name: _describe(value) for name, value in sorted(parameters.items())},
            "state": state,
        }

    def cost(self, rows: Rows) -> Cost:  # noqa: ARG002
        """Nothing but time on this machine."""
        return Cost()

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities, (rows, labels); NaN where the estimator answers with a class that is no label."""
        estimator = self._fitted(context)
        if estimator is None:
            return abstentions(len(rows), len(rows.task.labels))
        classes = [_class_text(value) for value in getattr(estimator, "classes_", ())]
        method = next((name for name in ("predict_proba", "decision_function") if hasattr(estimator, name)), "predict")
        method = method if classes else "predict"
        mapping = self._map(classes, rows) if classes else None
        scores = abstentions(len(rows), len(rows.task.labels))
        voted = list[str]()
        with progress(self.name, len(rows)) as advance:
            for start, stop in rows.chunks():
                with self._failures("scored the rows"):
                    answers = np.asarray(getattr(estimator, method)(_inputs(rows, start, stop)))
                self._check_shape(answers, method, len(classes), stop - start)
                if method == "predict":
                    voted += [_class_text(value) for value in answers]
                elif mapping is not None:
                    scores[start:stop] = mapping.log_probabilities(_log_probabilities(answers, method))
                advance(stop - start)
        if method != "predict" or not voted:
            return scores
        mapping = mapping or self._map(sorted(set(voted)), rows, least=1)
        indices = dict(zip(mapping.theirs, mapping.indices.tolist(), strict=True))
        return votes(np.array([indices.get(name, UNMAPPED) for name in voted]), len(rows.task.labels))

    def _check_shape(self, answers: NDArray[Any], method: str, classes: int, rows: int) -> None:
        """Raise an error where the answers are not one for each row, or not a column for each class."""
        columns = () if method == "predict" or (method == "decision_function" and classes == 2) else (classes,)
        if answers.shape == (rows, *columns):
            return
        raise TaskError(
            f"The teacher '{self.name}' gave answers of the shape {answers.shape} for {rows} rows and {classes} "
            f"classes ({method}); a task with one field gives the estimator a list of texts, one with several a "
            "DataFrame with a column for each, which a ColumnTransformer or a FunctionTransformer takes apart."
        )

    def _fitted(self, context: ScoringContext) -> Any:
        """The estimator or, where it is not fitted, a clone of it that is fitted on T; None if T has a single label."""
        from sklearn.base import clone

        if not self.learns_from_labeled:
            return self.estimator
        labeled = context.labeled
        if not len(labeled):
            raise DataError(
                f"The teacher '{self.name}' is not fitted, and there are no labelled rows to fit it on; fit it before, "
                "or give labelled rows."
            )
        with_label = labeled.select(np.flatnonzero(labeled.is_labeled))
        if len(np.unique(with_label.labels)) < 2:  # in cross-fitting, rows that are held out may have all others
            context.log(f"The teacher '{self.name}' abstains: the rows that it is fitted on have a single label.")
            return None
        names = np.array(with_label.task.labels, dtype=object)[with_label.labels]
        with self._failures("was fitted on the labelled rows"):
            return clone(self.estimator).fit(_inputs(with_label, 0, len(with_label)), names)

    def _map(self, classes: list[str], rows: Rows, least: int = 2) -> LabelMapping:
        advice = "name its classes as the task's labels, or add their names to the task's 'aliases'"
        return map_labels(classes, rows.task, {}, f"The teacher '{self.name}'", advice, least)

    @contextmanager
    def _failures(self, step: str) -> Iterator[None]:
        """An exception of the estimator becomes a `TaskError` that names the teacher."""
        try:
            yield
        except Exception as error:  # the estimator is the user's
            text = " ".join(str(error).split())
            raise TaskError(
                f"The teacher '{self.name}' failed as it {step} ({type(error).__name__}: {text[:300]}); try the "
                "estimator on the same texts."
            ) from error


def _hash_state(estimator: Any) -> str:
    """A hash of an estimator's state that is the same in every process."""
    from joblib.hashing import NumpyHasher

    class Hasher(NumpyHasher):  # type: ignore[misc]
        """Leaves out what scikit-learn's vectorizers keep of a parameter: its address in memory."""

        def save(self, obj: Any) -> None:
            if isinstance(obj, dict) and ADDRESS in obj:
                obj = {name: value for name, value in obj.items() if name != ADDRESS}
            super().save(obj)

    return str(Hasher(hash_name="md5").hash(estimator))


def _inputs(rows: Rows, start: int, stop: int) -> Any:
    """A list of texts or, with several fields, a DataFrame of them."""
    fields = rows.task.fields
    if len(fields) == 1:
        return rows.texts(fields[0], start, stop)
    import pandas as pd

    return pd.DataFrame({field: rows.texts(field, start, stop) for field in fields})


def _log_probabilities(answers: NDArray[Any], method: str) -> NDArray[np.float64]:
    """Log-probabilities of the classes, (rows, classes), from what the estimator's method returned."""
    answers = answers.astype(np.float64)
    if method == "predict_proba":
        with np.errstate(divide="ignore", invalid="ignore"):  # log 0 is -inf; what is no number abstains
            return np.asarray(np.log(answers))
    if answers.ndim == 1:  # two classes: the score of the second
        answers = np.column_stack([np.zeros_like(answers), answers])
    return np.asarray(log_softmax(answers, axis=1))


def _class_text(value: Any) -> str:
    """A class as the text of a label: numbers and truth values as in data."""
    return to_text(value.item() if isinstance(value, np.generic) else value)


def _class_name(estimator: Any) -> str:
    """The class of an estimator, or that of a pipeline's last step."""
    steps = getattr(estimator, "steps", None)
    return type(steps[-1][1] if steps else estimator).__name__


def _describe(value: Any) -> str:
    """A parameter as text that is the same in every process: no addresses in memory."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        return type(value).__name__  # its own parameters are listed, too
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_describe, value)) + "]"
    return repr(value)
