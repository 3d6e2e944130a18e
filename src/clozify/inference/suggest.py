"""Implements `clozify suggest`: the unlabelled rows to label next (active learning), and what their labels will bring.

Rows are chosen as `report/active_learning.py` describes, by the members' scores of the unlabelled rows; where a run
kept none, its classifier scores the rows now and counts as one member. `report/outlook.py` has the formula of the gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from clozify.data.decision import Decision
from clozify.data.ids import plain_ids
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.predictions import check_output, write_tables
from clozify.data.rows import Rows, read_rows
from clozify.errors import ClozifyError, DataError, RunError, quoted
from clozify.inference.finished_run import FinishedRun
from clozify.inference.outlook import UnlabeledScores, run_outlook
from clozify.report.active_learning import eligible_rows, measure_informativeness, select_rows
from clozify.report.outlook import Outlook
from clozify.report.run import RunRecord
from clozify.report.run_data import count_labels, reread_rows
from clozify.report.unlabeled import unlabeled_ids
from clozify.runs.metrics import Record
from clozify.runs.results import find_results


class Suggestion(Record):
    """An unlabelled row that is worth a label."""

    id: Any  # text or a number, as the data has it
    text: str  # all fields, joined by spaces
    prediction: str  # the ensemble's label so far
    uncertainty: float
    disagreement: float


class Suggestions(Record):
    """The rows to label next, the most useful first."""

    output: str | None  # the file that was written
    label: str  # the file's column to fill in
    members: int  # whose scores decided
    rows: list[Suggestion]
    outlook: Outlook  # what labels for as many rows will probably bring, and whether to stop
    warnings: list[str]


def suggest(
    run: str | Path,
    count: int = 20,
    output: str | Path | None = None,
    unlabeled: RowSource | None = None,
    with_labeled: bool = False,
    column_mapping: Mapping[str, str] | None = None,
    method: str | None = None,
    previous: Sequence[str | Path] = (),
) -> Suggestions:
    """Choose the unlabelled rows to label next, and estimate what their labels will bring.

    - `run`: a finished run's folder.
    - `count`: how many rows.
    - `output`: a new file for the rows with an empty label column: .csv, .jsonl or .parquet. Filled in, it serves as
      the labelled rows of the next run. Where rows may have several labels it holds `-`, since an empty cell says that
      none applies.
    - `unlabeled`: other rows than the run's, or the run's under their new name.
    - `with_labeled`: put the run's labelled rows first into the file, with their labels.
    - `column_mapping`: the column of `unlabeled` for a field, as in `{"text": "body"}`.
    - `method`: whose members decide, where the run was trained by several methods; by default the first.
    - `previous`: folders of earlier runs of the same task with fewer labelled rows. What changed since then shows
      whether more labels are worth it.
    """
    if count < 1:
        raise DataError(f"{count} rows cannot be suggested; ask for 1 or more.")
    path = None if output is None else Path(output)
    if path is not None:
        check_output(path, what="Suggestions")
        if path.exists():
            raise DataError(f"'{path}' is there already, perhaps with labels filled in; choose another name.")
    record = RunRecord.load(find_results(Path(run), method))
    return suggest_rows(record, count, path, unlabeled, with_labeled, column_mapping, previous)


def suggest_rows(
    record: RunRecord,
    count: int,
    path: Path | None = None,
    unlabeled: RowSource | None = None,
    with_labeled: bool = False,
    column_mapping: Mapping[str, str] | None = None,
    previous: Sequence[str | Path] = (),
) -> Suggestions:
    """What `suggest` does, for a run that was read; its parameters are those of `suggest`."""
    task, warnings = record.task, list[str]()
    unlabeled_scores = _load_scores(record, unlabeled, column_mapping)
    rows, scores, weights = unlabeled_scores.rows, unlabeled_scores.scores, unlabeled_scores.weights
    taken = _read_taken_rows(record, warnings)
    labeled = _read_labeled_rows(record, warnings, with_labeled)
    label_counts = np.ones(len(task.labels), dtype=np.int64)  # not known: all the same
    if labeled is not None:
        label_counts = count_labels(labeled)
    informativeness = measure_informativeness(scores, weights, task.multilabel)
    chosen = select_rows(informativeness, count, eligible_rows(rows, taken), label_counts, rows)
    if never := np.setdiff1d(np.flatnonzero(label_counts == 0), informativeness.predicted).tolist():
        warnings.append(
            f"{len(never)} labels have no labelled row, and no unlabelled row is predicted as one of them "
            f"({quoted([task.labels[label] for label in never], 3)}): rows that may have them are suggested, too."
        )
    if len(chosen) == 0:
        raise DataError("No unlabelled row is left to label: every one is labelled, a test row, or empty.")
    if len(chosen) < count:
        warnings.append(f"Only {len(chosen):,} rows are not labelled yet, fewer than the {count:,} asked for.")
    outlook = run_outlook(record, unlabeled_scores, len(chosen), [Path(folder) for folder in previous], warnings)
    selected = rows.select(chosen)
    columns = _column_names(record)
    if path is not None:
        write_tables(path, [_make_table(columns, selected, labeled if with_labeled else None)])
    texts = [selected.texts(field) for field in task.fields]
    return Suggestions(
        output=None if path is None else str(path),
        label=columns[task.label],
        members=len(scores),
        rows=[
            Suggestion(
                id=row_id,
                text=" ".join(filter(None, fields)),
                prediction=unlabeled_scores.decision.name_of(unlabeled_scores.combined(np.array([index]))),
                uncertainty=float(informativeness.uncertainty[index]),
                disagreement=float(informativeness.disagreement[index]),
            )
            for row_id, index, *fields in zip(selected.ids(), chosen, *texts, strict=True)
        ],
        outlook=outlook,
        warnings=warnings,
    )


def _load_scores(
    run: RunRecord, unlabeled: RowSource | None, column_mapping: Mapping[str, str] | None
) -> UnlabeledScores:
    """The unlabelled rows with their scores by each member or, where a run kept none, by the run's result."""
    recorded = run.inputs.data.get("unlabeled")
    if unlabeled is None and recorded is None:
        raise RunError(f"The run '{run.folder}' had no unlabelled rows; name some with --unlabeled.")
    source_rows = None
    if unlabeled is not None:
        source_rows = load_rows(unlabeled, run.task, column_mapping, name="unlabeled")
    if run.scoring_members and recorded is not None:
        try:
            rows = reread_rows(run.inputs, "unlabeled", unlabeled_ids(run), source_rows)
            weights = [member.weight for member in run.scoring_members]
            return UnlabeledScores(rows, run.unlabeled_scores, weights, run.ensemble_decision)
        except ClozifyError as error:
            if unlabeled is None:
                hint = "If the unlabelled rows have moved or were in memory, pass them as --unlabeled."
                raise RunError([*error.problems, hint]) from None
    if source_rows is not None:
        rows = source_rows
    else:
        assert recorded is not None
        rows = read_rows(recorded.source, run.task, recorded.columns)
    probabilities = FinishedRun(run.folder).probabilities(rows)
    if run.task.multilabel:
        scores: NDArray[np.float32] = logit(np.clip(probabilities, 1e-7, 1 - 1e-7)).astype(np.float32)
    else:
        scores = np.log(np.maximum(probabilities, 1e-12)).astype(np.float32)
    return UnlabeledScores(rows, [scores], [1.0], run.decision, by_result=True)


def _read_taken_rows(run: RunRecord, warnings: list[str]) -> list[Rows]:
    """Labelled, test and development rows, which are not suggested: the whole files, not only the rows of the run."""
    taken = []
    for name, adjective in (("labeled", "labelled"), ("test", "test"), ("dev", "development")):
        recorded = run.inputs.data.get(name)
        if recorded is None or not recorded.rows:
            continue
        try:
            rows = read_rows(recorded.source, run.task, recorded.columns)
            taken.append(rows.select(np.flatnonzero(rows.is_labeled)))
        except ClozifyError:
            warnings.append(
                f"The {adjective} rows ('{recorded.source}') cannot be read again; those that are among the "
                "unlabelled rows may be suggested."
            )
    return taken


def _read_labeled_rows(run: RunRecord, warnings: list[str], required: bool) -> Rows | None:
    """The run's labelled rows, against which the choice is balanced; None where they cannot be read."""
    try:
        return reread_rows(run.inputs, "labeled")
    except ClozifyError as error:
        if required:
            raise
        warnings.append(f"The choice is not balanced against the rows labelled so far: {error}")
        return None


def _column_names(run: RunRecord) -> dict[str, str]:
    """The column of each field and of the label, as in the run's labelled data."""
    columns = run.inputs.data["labeled"].columns or {}
    return {name: columns.get(name, name) for name in [*run.task.fields, run.task.label]}


def _label_names(rows: Rows) -> list[str]:
    """Each labelled row's label, several in one text."""
    task = rows.task
    thresholds = (0.5,) * len(task.labels) if task.multilabel else None  # names need none
    return Decision(task.labels, thresholds, task.separator).names(rows.targets)


def _make_table(names: dict[str, str], selected: Rows, labeled: Rows | None) -> Any:
    """The labelled rows, if any, and the selected ones with empty labels, as an Arrow table."""
    import pyarrow as pa

    task = selected.task
    parts = [selected] if labeled is None else [labeled, selected]
    ids = [plain_ids(rows.id_column(0, len(rows))) for rows in parts]
    if len({part.type for part in ids}) > 1:
        ids = [part.cast(pa.string()) for part in ids]
    columns: dict[str, Any] = {}
    id_column = task.id or "id"
    if id_column not in names.values():
        columns[id_column] = pa.chunked_array(ids)
    for field in task.fields:
        columns[names[field]] = [text for rows in parts for text in rows.texts(field)]
    labels = [] if labeled is None else _label_names(labeled)
    blank = "-" if task.multilabel else ""  # an empty cell would say that no label applies
    columns[names[task.label]] = pa.array([*labels, *[blank] * len(selected)], pa.string())
    return pa.table(columns)
