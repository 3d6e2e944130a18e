"""Implements `clozify audit`: label errors, duplicates, leaks and other faults of a task's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import TaskSource, load_task
from clozify.data.in_memory import RowSource
from clozify.data.predictions import check_output
from clozify.errors import DataError
from clozify.inference.audit_checks import (
    count_labels,
    find_empty_rows,
    find_equal_rows,
    find_leaks,
    find_other_languages,
    find_unknown_labels,
)
from clozify.inference.audit_file import write_file
from clozify.inference.audit_findings import Checks, summarize
from clozify.inference.audit_records import AuditedData, AuditResult, SetName
from clozify.inference.audit_scores import (
    ScoredSet,
    few_rows_notes,
    find_truncated_rows,
    load_audit_model,
    score_labels,
    scoring_patterns,
)
from clozify.inference.audit_sets import ADJECTIVES, AuditSet, read_sets, source_paths
from clozify.models.builtin import is_builtin
from clozify.models.task_prompts import compile_task

MAX_ROWS = 2_000  # labelled rows, and test rows, whose labels are compared with predictions
MAX_LISTED = 1_000  # unlabelled rows that are listed of a kind
RecordType = TypeVar("RecordType")


def audit(
    task: TaskSource,
    labeled: RowSource,
    unlabeled: RowSource | None = None,
    test: RowSource | None = None,
    model: str | Path = "builtin",
    output: str | Path | None = None,
    test_output: str | Path | None = None,
    column_mapping: Mapping[str, str] | None = None,
    recipe: str | Path | Recipe = "auto",
    settings: Sequence[str] | Mapping[str, Any] = (),
    max_rows: int = MAX_ROWS,
) -> AuditResult:
    """Look for faults in a task's data: wrong labels, duplicates, test rows among the labelled ones, leaks and more.

    - `task`: a task file, a shipped task's name, a dict with the entries of a task file, or a `Task`.
    - `labeled`, `unlabeled`, `test`: a file's name, or rows in memory, as for `train`.
    - `model`: a masked language model, a folder, a hub name or `builtin`; labels are predicted with it.
    - `output`: a new file for the labelled rows, those with findings first, to correct and pass on as labelled rows:
      .csv, .jsonl or .parquet. `test_output`: the same for the test rows.
    - `column_mapping`: the data's column for a field, as in `{"text": "body"}`.
    - `recipe`, `settings`: as for `train`; its `max_seq_length` says how many tokens of a row are read.
    - `max_rows`: how many labelled rows, and test rows, are searched for wrong labels.
    """
    task = load_task(task)
    fitted = load_recipe(recipe, settings)
    if max_rows < 1:
        raise DataError(f"{max_rows} rows cannot be searched for wrong labels; ask for 1 or more.")
    sources: dict[SetName, RowSource | None] = {"labeled": labeled, "unlabeled": unlabeled, "test": test}
    paths = _check_outputs(sources, output, test_output)
    notes = list[str]()
    sets = read_sets(task, sources, column_mapping, notes)
    masked_lm, fitted = load_audit_model(str(model), fitted, sets)
    prompts = compile_task(masked_lm, task, sets[0].rows, fitted.wording)
    max_length = min(fitted.max_seq_length, masked_lm.max_length)
    truncated = find_truncated_rows(masked_lm, prompts, sets, max_length)
    languages, other_languages = find_other_languages(sets, notes)
    duplicates = find_equal_rows(sets)
    leaks = find_leaks(task, sets, notes)
    scored = score_labels(masked_lm, prompts, sets, duplicates, max_length, max_rows)
    notes += few_rows_notes(task, sets[0]) + _sample_notes(scored, max_rows)
    if languages and languages[0] != "en" and is_builtin(model):
        notes.append(
            f"The rows are in '{languages[0]}', and the built-in models are English: name another with --model, for "
            "the audit, too."
        )
    checks = Checks(
        labels=count_labels(task, sets),
        unknown_labels=find_unknown_labels(sets),
        label_errors=[error for each in scored for error in each.label_errors()],
        duplicates=duplicates,
        leaks=leaks,
        other_languages=other_languages,
        empty=find_empty_rows(task, sets),
        truncated=truncated,
    )
    for name, path in paths.items():
        write_file(path, next(each for each in sets if each.name == name), checks, scored)
    return AuditResult(
        task=task.name,
        model=masked_lm.name,
        max_length=max_length,
        patterns=[prompt.template.pattern.text for prompt in scoring_patterns(prompts)] if scored else [],
        data=[_describe(each, scored) for each in sets],
        labels=checks.labels,
        agreement=scored[0].agreement if scored else None,
        findings=summarize(checks, sets, {each.data.name: len(each.indices) for each in scored}, max_length),
        unknown_labels=checks.unknown_labels,
        label_errors=checks.label_errors,
        duplicates=_listed(checks.duplicates, lambda group: all(row.data == "unlabeled" for row in group.rows)),
        leaks=checks.leaks,
        languages=languages,
        other_languages=_listed(checks.other_languages, lambda record: record.row.data == "unlabeled"),
        empty=_listed(checks.empty, lambda record: record.row.data == "unlabeled"),
        truncated=_listed(checks.truncated, lambda record: record.row.data == "unlabeled"),
        notes=notes,
        output=None if output is None else str(output),
        test_output=None if test_output is None else str(test_output),
    )


def _describe(each: AuditSet, scored: Sequence[ScoredSet]) -> AuditedData:
    return AuditedData(
        data=each.name,
        source=each.rows.source,
        rows=len(each),
        labeled=0 if each.labels is None else int(each.labels.is_labeled.sum()),
        scored=sum(len(one.indices) for one in scored if one.data is each),
    )


def _listed(records: Sequence[RecordType], is_unlabeled: Callable[[RecordType], bool]) -> list[RecordType]:
    """The records, of unlabelled rows the first ones alone."""
    unlabeled = [record for record in records if is_unlabeled(record)]
    left_out = set(map(id, unlabeled[MAX_LISTED:]))
    return [record for record in records if id(record) not in left_out]


def _sample_notes(scored: Sequence[ScoredSet], max_rows: int) -> list[str]:
    """A sentence for each data set of which only some rows were searched for wrong labels."""
    notes = []
    for each in scored:
        assert each.data.labels is not None
        labeled = int(each.data.labels.is_labeled.sum())
        if len(each.indices) == max_rows < labeled:
            notes.append(
                f"Wrong labels were searched for in {max_rows:,} of {labeled:,} {ADJECTIVES[each.data.name]} rows, "
                f"evenly spaced; --max-rows {labeled} takes all."
            )
    return notes


def _check_outputs(
    sources: Mapping[SetName, RowSource | None], output: str | Path | None, test_output: str | Path | None
) -> dict[SetName, Path]:
    """The files to write, by data set; an error where one cannot be written or would replace another file's labels."""
    paths: dict[SetName, Path] = {}
    outputs: dict[SetName, str | Path | None] = {"labeled": output, "test": test_output}
    for name, target in outputs.items():
        if target is None:
            continue
        path = Path(target)
        check_output(path, *source_paths(sources), what="The rows to correct")
        if path.exists():
            raise DataError(f"'{path}' is there already, perhaps with corrected labels; choose another name.")
        if path in paths.values():
            raise DataError(f"'{path}' cannot hold both the labelled and the test rows; choose two names.")
        paths[name] = path
    if "test" in paths and sources["test"] is None:
        raise DataError("There are no test rows to write to the file for them; name some with --test.")
    return paths
