"""The pile in tokens: in memory where it is small, in the run's folder where it is not.

In: a worker, a tokenizer and the columns that are read. Out: every row's ids, tokenised once for all members, or
for all classifiers. The files of a large pile are written a stretch at a time and mapped by every process that works
on the run. They are a cache: a run that was stopped finds them again, and one that is done drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock

from clozify.data.rows import Rows
from clozify.prompts.encode import FieldInContext
from clozify.prompts.tokenizer import PromptTokenizer, RaggedTokens
from clozify.runs.folder import CACHE_KINDS, RunFolder
from clozify.runs.keys import job_key, model_key
from clozify.runs.worker import Worker
from clozify.utils.npy import npy_writer, open_npy

IN_MEMORY = 100_000  # rows; the tokens of more are on the disk


def is_small(rows: Rows) -> bool:
    """Whether rows are kept in memory as tokens."""
    return len(rows) <= IN_MEMORY


def keep_pile(worker: Worker) -> dict[FieldInContext, RaggedTokens]:
    """The pile as the task's patterns read it, for as long as the worker's prompts are asked."""
    plan, prompts, model = worker.plan, worker.prompts, worker.model
    assert plan.unlabeled is not None
    if is_small(plan.unlabeled):
        return prompts.keep(model, plan.unlabeled)
    if (known := prompts.kept(plan.unlabeled)) is not None:
        return known
    found = pile_tokens(worker, model.tokenizer, plan.model, prompts.fields)
    return prompts.hold(plan.unlabeled, found)


def keep_few(worker: Worker, rows: Rows) -> None:
    """Tokenise other rows once too, unless there are many: these are tokenised whenever they are scored."""
    if is_small(rows):
        worker.prompts.keep(worker.model, rows)


def pile_tokens(
    worker: Worker, tokenizer: PromptTokenizer, model: str, columns: Sequence[FieldInContext]
) -> dict[FieldInContext, RaggedTokens]:
    """The pile's ids in each column, mapped from the run's folder, where whoever comes first writes them."""
    return {column: _on_disk(worker, tokenizer, model, column) for column in dict.fromkeys(columns)}


def _on_disk(worker: Worker, tokenizer: PromptTokenizer, model: str, column: FieldInContext) -> RaggedTokens:
    plan, folder = worker.plan, worker.folder
    assert plan.unlabeled is not None
    key = job_key(
        "tokens",
        texts=plan.unlabeled.digest,
        tokenizer=model_key(model),
        column=[column.slot.field, column.slot.filter, column.context],
    )
    place = folder.job_path("tokens", key)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f".{place.name}.lock")):  # one process writes, the others wait for what it wrote
        if not place.exists():
            with folder.writing("tokens", key) as beside:
                _write(plan.unlabeled, tokenizer, column, beside)
    return RaggedTokens(open_npy(place / "ids.npy"), open_npy(place / "starts.npy"))


def _write(rows: Rows, tokenizer: PromptTokenizer, column: FieldInContext, folder: Path) -> None:
    with npy_writer(folder / "ids.npy", np.int32) as add_ids, npy_writer(folder / "starts.npy", np.int64) as add_starts:
        total = np.zeros(1, dtype=np.int64)
        add_starts(total)
        for start, stop in rows.chunks():
            ragged = column.tokenize(tokenizer, rows.texts(column.slot.field, start, stop))
            add_ids(ragged.ids)
            add_starts(total + ragged.offsets[1:])
            total += ragged.offsets[-1]


def drop_caches(folder: RunFolder) -> None:
    """Take away what only a run that is still at work needs."""
    folder.remove(*CACHE_KINDS)
