"""The entries of a task about several labels a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clozify.errors import quoted

if TYPE_CHECKING:
    from clozify.config.task import Task

SEPARATOR = "|"


def multilabel_problems(task: Task) -> list[str]:
    """The faults of the entries about several labels a row."""
    problems = []
    if not task.multilabel and task.separator != SEPARATOR:
        problems.append("'separator' is for rows with several labels; add multilabel = true, or remove it.")
    if not task.multilabel and task.metric == "micro-f1":
        problems.append(
            "The metric 'micro-f1' is for rows with several labels, where multilabel = true; with one label a row "
            "it is the accuracy."
        )
    if not task.separator:
        problems.append("'separator' is empty, so that labels could not be told apart; write one such as \"|\".")
    names = {name for names in (task.labels, *task.aliases) for name in names}
    if task.multilabel and task.separator and (clash := sorted(name for name in names if task.separator in name)):
        problems.append(
            f"The label {quoted(clash, 5)} contains the separator '{task.separator}', so that it would be read as "
            "several; choose another 'separator'."
        )
    if task.multilabel and task.groups:
        problems.append("[groups] is for tasks with one label a row, and multilabel = true; remove one of them.")
    if task.multilabel and (clash := sorted({*task.labels} & {*task.fields})):
        problems.append(
            f"{quoted(clash, 5)} is both a label and a field, so that a column of that name could be either; "
            "rename one."
        )
    return problems
