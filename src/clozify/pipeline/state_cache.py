"""States of rows with a frozen encoder, computed once and kept in the run's folder.

A row's states are looked up by a hash of its tokens in the pattern, whatever its label and whichever file it is from.
They are computed and written in chunks, so a run that was stopped resumes; a row takes about 3 KB a pattern.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clozify.gpu.options import GpuOptions
from clozify.methods.frozen import compute_states
from clozify.models.task_prompts import PatternPrompt
from clozify.pipeline.token_cache import FieldTokens, evaluation_tokens, unlabeled_tokens
from clozify.prompts.encode import EncodedRows
from clozify.runs.keys import hash_key, job_key, model_key
from clozify.runs.worker import Worker
from clozify.utils.checked_files import open_npy
from clozify.utils.progress import progress

DataSet = Literal["labeled", "unlabeled", "test"]

KIND = "states"
CHUNK_ROWS = 512  # rows whose states are computed and written at a time


class StateCache:
    """The states of rows in one pattern."""

    def __init__(self, worker: Worker, prompt: PatternPrompt) -> None:
        plan = worker.plan
        self.worker, self.template = worker, prompt.template
        self.max_length = min(plan.recipe.max_seq_length, worker.model.max_length)
        self.computed = 0  # rows
        self._arrays: list[NDArray[Any]] = []  # states, (rows, states) each, mapped from the disk
        self._index: dict[int, tuple[int, int]] = {}  # hash of a row -> index in `_arrays`, and row there
        self.key = job_key(
            "states",
            model=model_key(plan.model),
            pattern=prompt.template.pattern.text,
            **GpuOptions.from_recipe(plan.recipe).numerics(worker.context.device),
        )
        for name in worker.folder.job_keys(KIND, f"{self.key}-"):
            if worker.folder.has_job(KIND, name, worker.context.log):
                path = worker.folder.job_path(KIND, name)
                self._add(open_npy(path / "rows.npy"), open_npy(path / "states.npy"))

    def fill(self) -> int:
        """Compute what is missing of all the run's rows; returns how many rows there are."""
        data_sets: list[DataSet] = ["labeled", "unlabeled", "test"]
        total = sum(len(rows) for name in data_sets if (rows := getattr(self.worker.plan, name)) is not None)
        with progress("computing states", total) as advance:
            for name in data_sets:
                for _ in self.chunks(name, advance):
                    pass
        return total

    def chunks(self, name: DataSet, advance: Callable[[int], None] = lambda count: None) -> Iterator[NDArray[Any]]:
        """The states of consecutive chunks of a data set's rows, (rows, states) each."""
        worker, rows = self.worker, getattr(self.worker.plan, name)
        if rows is None or not len(rows):
            return
        tokens = unlabeled_tokens(worker) if name == "unlabeled" else evaluation_tokens(worker, name, rows)
        for start, stop in rows.chunks(CHUNK_ROWS):
            if tokens is None:
                yield self._states(worker.prompts.tokenize(worker.model, rows, start, stop), advance)
            else:
                fields = {field: tokens[field].slice(start, stop) for field in self.template.fields}
                yield self._states(fields, advance)

    def _states(self, tokens: FieldTokens, advance: Callable[[int], None]) -> NDArray[Any]:
        encoded = EncodedRows(self.template, tokens, self.max_length)
        hashes = hash_rows(encoded)
        first = {row_hash: row for row, row_hash in reversed(list(enumerate(hashes))) if row_hash not in self._index}
        advance(len(hashes) - len(first))
        if first:
            missing = np.array(sorted(first.values()))
            selected = {field: tokens[field].select(missing) for field in self.template.fields}
            states = compute_states(
                self.worker.cloze_model, EncodedRows(self.template, selected, self.max_length), advance
            )
            self._keep(np.array([hashes[row] for row in missing], dtype=np.uint64), states)
            self.computed += len(missing)
        found_at = [self._index[row_hash] for row_hash in hashes]
        return np.stack([self._arrays[array][row] for array, row in found_at])

    def _keep(self, hashes: NDArray[np.uint64], states: NDArray[Any]) -> None:
        folder = self.worker.folder
        name = f"{self.key}-{hash_key(rows=hashes.tolist())}"
        with folder.writing(KIND, name) as tmp_path:
            np.save(tmp_path / "rows.npy", hashes)
            np.save(tmp_path / "states.npy", states)
        path = folder.job_path(KIND, name) / "states.npy"
        self._add(hashes, open_npy(path) if path.is_file() else states)

    def _add(self, hashes: NDArray[np.uint64], states: NDArray[Any]) -> None:
        self._index |= {row_hash: (len(self._arrays), row) for row, row_hash in enumerate(hashes.tolist())}
        self._arrays.append(states)


def hash_rows(encoded: EncodedRows) -> list[int]:
    """A 64-bit hash of each row's tokens and their types."""
    batch = encoded.batch(np.arange(len(encoded)))
    content = np.stack([batch.input_ids, batch.token_type_ids], axis=1)  # (rows, 2, width)
    digests = [
        hashlib.blake2b(np.ascontiguousarray(row[:, :length]).data, digest_size=8).digest()
        for row, length in zip(content, batch.attention_mask.sum(axis=1), strict=True)
    ]
    return [int.from_bytes(digest) for digest in digests]
