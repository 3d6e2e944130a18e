"""Rows as token ids, tokenised once for all members or all classifiers.

The unlabelled rows are kept in memory where they are few, and in the run's folder where they are many. These files are
written chunk by chunk, memory-mapped by every process of the run, found again by a run that resumes, and removed when
the run is done.
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
from clozify.utils.checked_files import open_npy
from clozify.utils.npy import create_npy, npy_writer

IN_MEMORY = 100_000  # rows; the tokens of more are on the disk

FieldTokens = dict[FieldInContext, RaggedTokens]  # all rows of a data set, field by field


def is_small(rows: Rows) -> bool:
    """Whether the rows' tokens are kept in memory."""
    return len(rows) <= IN_MEMORY


def labeled_tokens(worker: Worker) -> FieldTokens:
    """The labelled rows in the tokens of the worker's prompts."""
    return _cached(worker, "labeled", worker.plan.labeled)


def unlabeled_tokens(worker: Worker) -> FieldTokens:
    """The unlabelled rows in the tokens of the worker's prompts."""
    rows = worker.plan.unlabeled
    assert rows is not None
    if not is_small(rows) and "unlabeled" not in worker.tokens:
        tokenizer, fields = worker.model.tokenizer, worker.prompts.fields
        worker.tokens["unlabeled"] = unlabeled_tokens_on_disk(worker, tokenizer, worker.plan.model, fields)
    return _cached(worker, "unlabeled", rows)


def evaluation_tokens(worker: Worker, name: str, rows: Rows) -> FieldTokens | None:
    """Test or development rows in the tokens of the worker's prompts.

    None where they are many: then they are tokenised chunk by chunk whenever they are scored.
    """
    return _cached(worker, name, rows) if is_small(rows) else None


def _cached(worker: Worker, name: str, rows: Rows) -> FieldTokens:
    if name not in worker.tokens:
        worker.tokens[name] = worker.prompts.tokenize(worker.model, rows, 0, len(rows))
    return worker.tokens[name]


def unlabeled_tokens_on_disk(
    worker: Worker, tokenizer: PromptTokenizer, model: str, fields: Sequence[FieldInContext]
) -> FieldTokens:
    """The unlabelled rows' tokens, mapped from the run's folder; the first process that needs them writes them."""
    return {field: _load_or_write(worker, tokenizer, model, field) for field in dict.fromkeys(fields)}


def _load_or_write(worker: Worker, tokenizer: PromptTokenizer, model: str, field: FieldInContext) -> RaggedTokens:
    plan, folder = worker.plan, worker.folder
    assert plan.unlabeled is not None
    key = job_key(
        "tokens",
        texts=plan.unlabeled.digest,
        tokenizer=model_key(model),
        column=[field.slot.field, field.slot.filter, field.context],
    )
    path = folder.job_path("tokens", key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):  # one process writes, the others wait for what it wrote
        if not folder.has_job("tokens", key):
            with folder.writing("tokens", key) as tmp_path:
                _write(plan.unlabeled, tokenizer, field, tmp_path)
    return RaggedTokens(open_npy(path / "ids.npy"), open_npy(path / "starts.npy"))


def _write(rows: Rows, tokenizer: PromptTokenizer, field: FieldInContext, folder: Path) -> None:
    """Write the ids and offsets of a field's `RaggedTokens`, a chunk of rows at a time."""
    offsets = create_npy(folder / "starts.npy", np.int64, (len(rows) + 1,))  # the first is 0
    with npy_writer(folder / "ids.npy", np.int32) as append_ids:
        for start, stop in rows.chunks():
            tokens = field.tokenize(tokenizer, rows.texts(field.slot.field, start, stop))
            append_ids(tokens.ids)
            offsets[start + 1 : stop + 1] = offsets[start] + tokens.offsets[1:]


def remove_caches(folder: RunFolder) -> None:
    """Remove what only an unfinished run needs."""
    folder.remove(*CACHE_KINDS)
