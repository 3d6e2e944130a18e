"""What to label next: the room behind `clozify suggest`.

In: a finished run. Out: a file of unlabelled rows with an empty label column, which `--labeled` takes once it is filled
in. The rows are chosen as `usefulness.py` says, by the members' scores of the pile; where a run kept none, its result
scores the pile now and counts as one member.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.predictions import check_output, write_tables
from clozify.data.rows import NO_LABEL, Rows, read_rows
from clozify.errors import ClozifyError, DataError, RunError
from clozify.inference.finished_run import FinishedRun
from clozify.report.active_learning import eligible_rows, measure_informativeness, select_rows
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.report.unlabeled import unlabeled_ids

OUTPUT = "to-label.csv"


def suggest(
    folder: str | Path,
    count: int = 20,
    output: str | Path = OUTPUT,
    unlabeled: str | Path | None = None,
    with_labeled: bool = False,
    column_mapping: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write the rows to label next and return what was chosen.

    `unlabeled` is another pile than the run's, or the run's where it has moved. `with_labeled` puts the run's labelled
    rows first, so that the file, filled in, is all that the next run needs.
    """
    place = Path(output)
    if count < 1:
        raise DataError(f"{count} rows cannot be suggested; ask for 1 or more.")
    check_output(place, what="Suggestions")
    if place.exists():
        raise DataError(f"'{place}' is there already, perhaps with labels filled in; choose another name.")
    run, notes = RunRecord.load(folder), list[str]()
    pile, scores, weights = _scored(run, unlabeled, column_mapping)
    taken = _taken(run, notes)
    labeled = _labeled(run, notes, with_labeled)
    had = np.zeros(len(run.task.labels), dtype=np.int64)
    if labeled is not None:
        had = np.bincount(labeled.labels, minlength=len(had)).astype(np.int64)
    found = measure_informativeness(scores, weights)
    chosen = select_rows(found, count, eligible_rows(pile, taken), had, pile)
    if len(chosen) == 0:
        raise DataError("No row of the pile is left to label: every one is labelled, a test row, or empty.")
    if len(chosen) < count:
        notes.append(f"The pile has only {len(chosen):,} rows that are not labelled yet, for the {count:,} asked for.")
    picked = pile.select(chosen)
    write_tables(place, [_table(run, picked, labeled if with_labeled else None)])
    texts = [picked.texts(field) for field in run.task.fields]
    return {
        "output": str(place),
        "label": _names(run)[run.task.label],
        "members": len(scores),
        "rows": [
            {
                "id": row,
                "text": " ".join(filter(None, parts)),
                "prediction": run.task.labels[int(found.predicted[number])],
                "uncertainty": float(found.uncertainty[number]),
                "disagreement": float(found.disagreement[number]),
            }
            for row, number, *parts in zip(picked.ids(), chosen, *texts, strict=True)
        ],
        "warnings": notes,
    }


def _scored(
    run: RunRecord, unlabeled: str | Path | None, column_mapping: Mapping[str, str] | None
) -> tuple[Rows, list[NDArray[np.float32]], list[float]]:
    """The pile, and its scores by the members or by the run's result."""
    known = run.inputs.data.get("unlabeled")
    if unlabeled is None and known is None:
        raise RunError(f"The run '{run.folder}' had no unlabelled rows; name some with --unlabeled.")
    if run.scoring_members and known is not None:
        inputs = run.inputs
        if unlabeled is not None:
            moved = known.model_copy(update={"source": str(unlabeled), "columns": dict(column_mapping or {})})
            inputs = inputs.model_copy(update={"data": inputs.data | {"unlabeled": moved}})
        try:
            pile = reread_rows(inputs, "unlabeled", unlabeled_ids(run))
            return pile, run.unlabeled_scores, [member.weight for member in run.scoring_members]
        except ClozifyError as error:
            if unlabeled is None:
                raise RunError([*error.problems, "If the pile has moved, say where it is with --unlabeled."]) from None
    if unlabeled is not None:
        pile = read_rows(unlabeled, run.task, dict(column_mapping or {}))
    else:
        assert known is not None
        pile = read_rows(known.source, run.task, known.columns)
    shares = FinishedRun(run.folder).probabilities(pile)
    return pile, [np.log(np.maximum(shares, 1e-12)).astype(np.float32)], [1.0]


def _taken(run: RunRecord, notes: list[str]) -> list[Rows]:
    """Rows that are labelled already, test or development rows: everything of those files, not the run's part alone."""
    found = []
    for name, what in (("labeled", "labelled"), ("test", "test"), ("dev", "development")):
        known = run.inputs.data.get(name)
        if known is None or not known.rows:
            continue
        try:
            rows = read_rows(known.source, run.task, known.columns)
            found.append(rows.select(np.flatnonzero(rows.labels != NO_LABEL)))
        except ClozifyError:
            notes.append(
                f"The {what} rows ('{known.source}') cannot be read again; those that are in the pile too may be "
                "among these."
            )
    return found


def _labeled(run: RunRecord, notes: list[str], needed: bool) -> Rows | None:
    """The run's labelled rows, for the balance, and to go first into the file where that is asked for."""
    try:
        return reread_rows(run.inputs, "labeled")
    except ClozifyError as error:
        if needed:
            raise
        notes.append(f"The choice is not balanced against the rows labelled so far: {error}")
        return None


def _names(run: RunRecord) -> dict[str, str]:
    """The columns' names: the task's, or those that the run's labelled data has for them."""
    known = run.inputs.data["labeled"].columns or {}
    return {name: known.get(name, name) for name in [*run.task.fields, run.task.label]}


def _table(run: RunRecord, picked: Rows, labeled: Rows | None) -> Any:
    import pyarrow as pa

    task, names = run.task, _names(run)
    parts = [picked] if labeled is None else [labeled, picked]
    ids = [row for rows in parts for row in rows.ids()]
    if len({type(row) for row in ids}) > 1:
        ids = [str(row) for row in ids]
    columns: dict[str, Any] = {}
    own = task.id or "id"
    if own not in names.values():
        columns[own] = pa.array(ids)
    for field in task.fields:
        columns[names[field]] = [text for rows in parts for text in rows.texts(field)]
    known = [] if labeled is None else [task.labels[number] for number in labeled.labels]
    columns[names[task.label]] = pa.array([*known, *[""] * len(picked)], pa.string())
    return pa.table(columns)
