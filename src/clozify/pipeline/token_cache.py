"""Rows as token ids, tokenised once for all members and all classifiers.

The unlabelled rows' tokens are in the run's folder. These files are written chunk by chunk, memory-mapped by every
process of the run, found again by a run that resumes, and removed when the run is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from filelock import FileLock

from clozify.data.rows import Rows
from clozify.models.classifier import classifier_template
from clozify.prompts.encode import FieldInContext
from clozify.prompts.tokenizer import PromptTokenizer, RaggedTokens
from clozify.runs.folder import CACHE_KINDS, RunFolder
from clozify.runs.keys import job_key
from clozify.runs.worker import Worker
from clozify.utils.checked_files import open_npy
from clozify.utils.npy import create_npy, npy_writer

STOP_SECONDS = 10.0  # that the thread has to end where the run fails
IN_MEMORY = 100_000  # rows; the tokens of more test or development rows are not kept

FieldTokens = dict[FieldInContext, RaggedTokens]  # all rows of a data set, field by field


def is_small(rows: Rows) -> bool:
    """Whether the rows' tokens fit into memory."""
    return len(rows) <= IN_MEMORY


def labeled_tokens(worker: Worker) -> FieldTokens:
    """The labelled rows in the tokens of the worker's prompts."""
    return _cached(worker, "labeled", worker.plan.labeled)


def unlabeled_tokens(worker: Worker) -> FieldTokens:
    """The unlabelled rows in the tokens of the worker's prompts."""
    if "unlabeled" not in worker.tokens:
        fields = worker.prompts.fields
        worker.tokens["unlabeled"] = tokenize_unlabeled(worker, worker.model.tokenizer, fields)
    return worker.tokens["unlabeled"]


def evaluation_tokens(worker: Worker, name: str, rows: Rows) -> FieldTokens | None:
    """Test or development rows in the tokens of the worker's prompts.

    None where they are many: then they are tokenised chunk by chunk whenever they are scored.
    """
    return _cached(worker, name, rows) if is_small(rows) else None


def _cached(worker: Worker, name: str, rows: Rows) -> FieldTokens:
    if name not in worker.tokens:
        worker.tokens[name] = worker.prompts.tokenize(worker.model, rows, 0, len(rows))
    return worker.tokens[name]


@contextmanager
def tokenizing_in_background(worker: Worker) -> Iterator[None]:
    """While the block runs, a thread tokenises the unlabelled rows: for members, then for the classifier.

    A job that needs them earlier waits for them, or tokenises the fields that are left.
    """
    plan = worker.plan
    if plan.unlabeled is None:
        yield
        return
    needed = [(worker.model.tokenizer, worker.prompts.fields)]
    if plan.is_distilled:
        tokenizer = worker.student_tokenizer
        needed.append((tokenizer, list(classifier_template(plan.task, tokenizer).fields)))

    stop = threading.Event()

    def tokenize() -> None:
        with suppress(Exception):  # the job that needs the tokens meets the same error and reports it
            for tokenizer, fields in needed:
                tokenize_unlabeled(worker, tokenizer, fields, stop)

    thread = threading.Thread(target=tokenize, name="tokenizing", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        stop.set()
        thread.join(STOP_SECONDS)  # before the run's folder is unlocked or removed
        raise
    thread.join()


class _StoppedError(Exception):
    """Ends the thread where the run has failed."""


def tokenize_unlabeled(
    worker: Worker, tokenizer: PromptTokenizer, fields: Sequence[FieldInContext], stop: threading.Event | None = None
) -> FieldTokens:
    """The unlabelled rows' tokens, mapped from the run's folder; the first that needs them writes them."""
    return {field: _load_or_write(worker, tokenizer, field, stop) for field in dict.fromkeys(fields)}


def _load_or_write(
    worker: Worker, tokenizer: PromptTokenizer, field: FieldInContext, stop: threading.Event | None
) -> RaggedTokens:
    plan, folder = worker.plan, worker.folder
    assert plan.unlabeled is not None
    key = job_key(
        "tokens",
        texts=plan.unlabeled.digest,
        tokenizer=tokenizer.digest,
        column=[field.slot.field, field.slot.filter, field.context],
    )
    path = folder.job_path("tokens", key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):  # one process writes, the others wait for what it wrote
        if not folder.has_job("tokens", key):
            with folder.writing("tokens", key) as tmp_path:
                _write(plan.unlabeled, tokenizer, field, tmp_path, stop)
    return RaggedTokens(open_npy(path / "ids.npy"), open_npy(path / "starts.npy"))


def _write(
    rows: Rows, tokenizer: PromptTokenizer, field: FieldInContext, folder: Path, stop: threading.Event | None
) -> None:
    """Write the ids and offsets of a field's `RaggedTokens`, a chunk of rows at a time, until `stop` is set."""
    offsets = create_npy(folder / "starts.npy", np.int64, (len(rows) + 1,))  # the first is 0
    with npy_writer(folder / "ids.npy", np.int32) as append_ids:
        for first, end in rows.chunks():
            if stop is not None and stop.is_set():
                raise _StoppedError
            tokens = field.tokenize(tokenizer, rows.texts(field.slot.field, first, end))
            append_ids(tokens.ids)
            offsets[first + 1 : end + 1] = offsets[first] + tokens.offsets[1:]


def remove_caches(folder: RunFolder) -> None:
    """Remove what only an unfinished run needs."""
    folder.remove(*CACHE_KINDS)
