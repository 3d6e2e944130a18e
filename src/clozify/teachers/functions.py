"""Python functions as teachers: `@clozify.rule` on a function that gets a row and returns a label, or None."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import update_wrapper
from hashlib import sha256
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from clozify.data.ids import row_name
from clozify.data.rows import Rows
from clozify.errors import ClozifyError, did_you_mean, quoted
from clozify.teachers.base import Cost, ScoringContext, abstentions

RowFunction: TypeAlias = Callable[[Mapping[str, str]], "str | Mapping[str, float] | None"]
SUM_TOLERANCE = 0.01  # by which a row's probabilities may differ from 1 in sum


class FunctionTeacher:
    """A function that votes on rows; it can still be called."""

    kind = "function"

    def __init__(self, function: RowFunction, name: str | None = None) -> None:
        if not isinstance(function, FunctionType):
            raise TypeError(
                f"@clozify.rule takes a function, not {function!r}; a name is given as @clozify.rule(name='...')."
            )
        update_wrapper(self, function)
        self.function: RowFunction = function
        self.name = name or function.__name__

    def __call__(self, row: Mapping[str, str]) -> str | Mapping[str, float] | None:
        """What the function returns for a row."""
        return self.function(row)

    def __repr__(self) -> str:
        return f"<rule {self.name!r}>"

    def key(self) -> dict[str, Any]:
        """The function's name and a hash of its code, with the constants and functions that it uses."""
        return {"function": self.name, "code": sha256(_content(self.function, []).encode()).hexdigest()}

    def cost(self, rows: Rows) -> Cost:  # noqa: ARG002
        """Functions are free."""
        return Cost()

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:  # noqa: ARG002
        """Log-probabilities of what the function returns for each row: (rows, labels)."""
        fields, labels = rows.task.fields, rows.task.labels
        scores = abstentions(len(rows), len(labels))
        for start, stop in rows.chunks():
            texts = [rows.texts(field, start, stop) for field in fields]
            for index, values in enumerate(zip(*texts, strict=True), start=start):
                try:
                    result = self.function(dict(zip(fields, values, strict=True)))
                except Exception as error:
                    raise ClozifyError(
                        f"The rule function '{self.name}' failed at {row_name(rows, index)} of '{rows.source}' with "
                        f"{type(error).__name__}: {error}; correct it, or return None to abstain."
                    ) from error
                if result is None:
                    continue
                if fault := _fault(result, labels):
                    raise ClozifyError(
                        f"The rule function '{self.name}' returned {_shown(result)} for {row_name(rows, index)} of "
                        f"'{rows.source}', {fault}"
                    )
                scores[index] = _log_probabilities(result, labels)
        return scores


@overload
def rule(function: RowFunction, /) -> FunctionTeacher: ...
@overload
def rule(*, name: str | None = None) -> Callable[[RowFunction], FunctionTeacher]: ...
def rule(
    function: RowFunction | None = None, /, *, name: str | None = None
) -> FunctionTeacher | Callable[[RowFunction], FunctionTeacher]:
    """Make a function a teacher that votes beside the patterns: `@clozify.rule` or `@clozify.rule(name="...")`.

    The function gets a row as a mapping from the task's fields to their texts. It returns the name of a label, a
    mapping from labels to probabilities, or None to abstain.
    """
    return (lambda function: FunctionTeacher(function, name)) if function is None else FunctionTeacher(function, name)


def _shown(result: object) -> str:
    text = repr(result)
    return text if len(text) <= 80 else text[:80] + "..."


def _fault(result: object, labels: list[str]) -> str | None:
    """What is wrong with a function's result, as the end of a sentence."""
    advice = "return the name of a label, None to abstain, or a mapping from labels to probabilities."
    if not isinstance(result, (str, Mapping)):
        return f"of the type {type(result).__name__}; {advice}"
    names = [result] if isinstance(result, str) else list(result)
    if unknown := [name for name in names if name not in labels]:
        near = did_you_mean(str(unknown[0]), labels)
        return f"and {quoted(unknown[:1])} is no label{near}; the labels are {quoted(labels, 5)}."
    if isinstance(result, str):
        return None
    try:
        probabilities = [float(value) for value in result.values()]
    except (TypeError, ValueError):
        return f"whose values are not all numbers; {advice}"
    if not all(value >= 0 for value in probabilities) or abs(sum(probabilities) - 1) > SUM_TOLERANCE:
        return "whose values are no probabilities with the sum 1; divide them by their sum, or return None to abstain."
    return None


def _log_probabilities(result: str | Mapping[str, float], labels: list[str]) -> list[float]:
    """A function's result as log-probabilities: (labels,)."""
    probabilities = {result: 1.0} if isinstance(result, str) else {name: float(p) for name, p in result.items()}
    total = sum(probabilities.values())
    return [math.log(p / total) if (p := probabilities.get(label, 0.0)) > 0 else -math.inf for label in labels]


def _content(value: object, seen: list[object]) -> str:
    """Text that changes with a value: data in full, functions with their code and with what they use."""
    if isinstance(value, FunctionTeacher):
        value = value.function
    if any(value is other for other in seen):
        return "seen"
    if value is None or isinstance(value, (str, int, float, complex, bytes)):
        return repr(value)
    seen = [*seen, value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_content(each, seen) for each in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_content(each, seen) for each in value))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_content(k, seen)}: {_content(v, seen)}' for k, v in value.items())}}}"
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        names = {"defaults": value.__defaults__, **used.globals, **used.nonlocals}
        return json.dumps([_bytecode(value.__code__), {name: _content(names[name], seen) for name in sorted(names)}])
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _bytecode(code: CodeType) -> str:
    """A code object's instructions, names and constants, without line numbers and file.

    It exists where source code does not, as in an interactive session, and tells two lambdas of one line apart.
    """
    constants = [_bytecode(each) if isinstance(each, CodeType) else _content(each, []) for each in code.co_consts]
    return json.dumps([code.co_code.hex(), code.co_exceptiontable.hex(), code.co_names, code.co_varnames, constants])
