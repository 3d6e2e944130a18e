"""Scoring rows: s_p(l | x) for every row and pair (section 3.1; step 2 of section 3.3).

In: a model, a task's questions and rows. Out: raw scores, (pairs, rows, labels), a stretch of rows at a time, so
that memory does not grow with their number. Each field is tokenised once; the encoder runs once a pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.data.rows import CHUNK_ROWS, Rows
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import TaskPrompts
from clozify.prompts.encode import EncodedRows, FieldInContext
from clozify.prompts.tokenizer import RaggedTokens
from clozify.utils.process_group import current_group

MAX_LENGTH = 256  # the paper's max_seq_length
TOKENS_PER_BATCH = {"cpu": 2_048, "cuda": 65_536}


@dataclass
class ScoringStats:
    """What was met on the way and is worth telling."""

    rows: int = 0
    truncated: int = 0  # rows that some pattern had to shorten
    empty: Counter[str] = field(default_factory=Counter)  # field -> rows without text in it

    def note(self, columns: Mapping[FieldInContext, RaggedTokens], encoded: Sequence[EncodedRows]) -> None:
        """Count what a stretch of rows holds."""
        self.rows += len(encoded[0])
        self.truncated += int(np.any([rows.truncated for rows in encoded], axis=0).sum())
        plain_last = sorted(columns.items(), key=lambda item: item[0].slot.filter is None)
        by_field = {column.slot.field: ragged for column, ragged in plain_last}  # as it is, rather than filtered
        for name, ragged in by_field.items():
            self.empty[name] += int((ragged.lengths == 0).sum())

    def remarks(self, max_length: int) -> list[str]:
        """One sentence for each thing met."""
        found = [
            f"The field '{field}' is empty in {count:,} of {self.rows:,} rows; they were scored as empty text."
            for field, count in self.empty.items()
            if count
        ]
        if self.truncated:
            found.append(
                f"{self.truncated:,} of {self.rows:,} rows are longer than {max_length} tokens and were shortened."
            )
        return found


@torch.inference_mode()
def score_rows(
    model: ClozeModel,
    questions: TaskPrompts,
    rows: Rows,
    max_length: int = MAX_LENGTH,
    seen: ScoringStats | None = None,
    advance: Callable[[int], None] = lambda count: None,
    token_budget: int | None = None,
    first: int = 0,
    last: int | None = None,
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield `(start, scores)` for consecutive stretches of rows; scores are (pairs asked for, rows, labels).

    Of all rows, or of those from `first` to before `last`.
    """
    max_length = min(max_length, model.max_length)
    budget = token_budget or TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
    asked = [pair for question in questions.patterns for pair in question.pairs]
    pairs, labels = len(asked), len(rows.task.labels)
    with model.scoring():
        for start, stop in rows.chunks(CHUNK_ROWS, first, last):
            columns = questions.tokenize(model, rows, start, stop)
            scores = np.zeros((pairs, stop - start, labels), dtype=np.float32)
            encoded = [EncodedRows(question.template, columns, max_length) for question in questions.patterns]
            waiting: list[tuple[int, NDArray[np.int64], torch.Tensor]] = []  # fetched at the end: a fetch stops a GPU
            for question, spliced in zip(questions.patterns, encoded, strict=True):
                batches = enumerate(spliced.batches(budget))
                for batch in (batch for number, batch in batches if current_group().owns_batch(number)):
                    states = model.states_at_mask(batch)  # (batch, hidden)
                    for pair, words in zip(question.pairs, question.words, strict=True):
                        waiting.append((asked.index(pair), batch.rows, model.label_scores(states, words)))
                    advance(len(batch.rows))
            for place, chosen, found in waiting:
                scores[place, chosen] = found.float().cpu().numpy()
            if seen is not None:
                seen.note(columns, encoded)
            yield start, current_group().sum_arrays(scores)
