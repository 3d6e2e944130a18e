"""Scores s_p(l | x) of every row and pair (section 3.1; step 2 of section 3.3).

Rows are scored in chunks, so that memory does not grow with their number. Each field is tokenised once for all
patterns; the encoder runs once for each pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.token_by_token import token_by_token_scores
from clozify.models.generative import GenerativeModel
from clozify.models.language_model import LanguageModel
from clozify.models.task_prompts import PatternPrompt, TaskPrompts
from clozify.prompts.encode import TOKENS_PER_BATCH as TOKENS_PER_BATCH
from clozify.prompts.encode import Batch, EncodedRows, FieldInContext
from clozify.prompts.sequences import as_sequences
from clozify.prompts.tokenizer import RaggedTokens
from clozify.prompts.verbalizer import label_tokens
from clozify.utils.process_group import current_group

MAX_LENGTH = 256  # the paper's max_seq_length


@dataclass
class ScoringStats:
    """Counts of rows that are scored with a caveat."""

    rows: int = 0
    truncated: int = 0  # rows that are too long for some pattern
    empty: Counter[str] = field(default_factory=Counter)  # field -> rows without text in it

    def update(self, columns: Mapping[FieldInContext, RaggedTokens], encoded: Sequence[EncodedRows]) -> None:
        """Count a chunk of rows: its tokens by field, and the same rows in every pattern."""
        self.rows += len(encoded[0])
        self.truncated += int(np.any([rows.truncated for rows in encoded], axis=0).sum())
        unfiltered_last = sorted(columns.items(), key=lambda item: item[0].slot.filter is None)
        tokens_by_field = {column.slot.field: tokens for column, tokens in unfiltered_last}
        for name, tokens in tokens_by_field.items():
            self.empty[name] += int((tokens.lengths == 0).sum())

    def warnings(self, max_length: int) -> list[str]:
        """One sentence for each kind of caveat."""
        sentences = [
            f"The field '{field}' is empty in {count:,} of {self.rows:,} rows; they were scored as empty text."
            for field, count in self.empty.items()
            if count
        ]
        if self.truncated:
            sentences.append(
                f"{self.truncated:,} of {self.rows:,} rows are longer than {max_length} tokens and were shortened."
            )
        return sentences


@torch.inference_mode()
def score_rows(
    model: LanguageModel,
    prompts: TaskPrompts,
    rows: Rows,
    max_length: int = MAX_LENGTH,
    stats: ScoringStats | None = None,
    advance: Callable[[int], None] = lambda count: None,
    span: tuple[int, int] | None = None,
    tokens: Mapping[FieldInContext, RaggedTokens] | None = None,
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield `(start, scores)` of consecutive chunks of rows; scores are (pairs of the prompts, rows, labels).

    All rows are scored, or those of `span`, `(first, end)`. `tokens`: the tokenised fields of
    all rows, if already computed.
    """
    max_length = min(max_length, model.max_length)
    token_budget = TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
    pairs = [pair for pattern in prompts.patterns for pair in pattern.pairs]
    scorers = [_batch_scorer(model, pattern, rows.task) for pattern in prompts.patterns]
    with model.scoring():
        for start, stop in rows.chunks(chunk_rows(len(pairs) * len(rows.task.labels)), *(span or (0, None))):
            if tokens is None:
                columns = prompts.tokenize(model, rows, start, stop)
            else:
                columns = {field: field_tokens.slice(start, stop) for field, field_tokens in tokens.items()}
            encoded = [EncodedRows(pattern.template, columns, max_length) for pattern in prompts.patterns]
            scores = np.zeros((len(pairs), stop - start, len(rows.task.labels)), dtype=np.float32)
            # scores are copied after the loop, since `.cpu()` synchronises with the GPU
            on_device: list[tuple[int, NDArray[np.int64], torch.Tensor]] = []
            for scorer, encoded_rows in zip(scorers, encoded, strict=True):
                for index, batch in enumerate(encoded_rows.batches(token_budget)):
                    if not current_group().owns_batch(index):
                        continue
                    on_device += [(pairs.index(pair), batch.rows, values) for pair, values in scorer(batch)]
                    advance(len(batch.rows))
            for pair_index, batch_rows, batch_scores in on_device:
                scores[pair_index, batch_rows] = batch_scores.float().cpu().numpy()
            if stats is not None:
                stats.update(columns, encoded)
            yield start, current_group().sum_arrays(scores)


def _batch_scorer(
    model: LanguageModel, pattern: PatternPrompt, task: Task
) -> Callable[[Batch], Iterator[tuple[int, torch.Tensor]]]:
    """A function that yields each pair of a pattern and its scores of a batch, (batch, labels)."""

    if isinstance(model, GenerativeModel):
        return partial(_score_continuations, model, pattern)

    def score(batch: Batch) -> Iterator[tuple[int, torch.Tensor]]:
        states = model.states_at_mask(batch)  # (batch, [masks,] hidden)
        for pair, words in zip(pattern.pairs, pattern.words, strict=True):
            yield pair, model.label_scores(states, words)

    if pattern.template.masks == 1 or not pattern.template.wording.token_by_token:
        return score
    verbalizers = [task.pairs[pair].verbalizer for pair in pattern.pairs]
    tokens = [label_tokens(model.tokenizer, pattern.template, verbalizer) for verbalizer in verbalizers]

    def score_token_by_token(batch: Batch) -> Iterator[tuple[int, torch.Tensor]]:
        for pair, pair_tokens in zip(pattern.pairs, tokens, strict=True):
            yield pair, token_by_token_scores(model, pair_tokens, batch)

    return score_token_by_token


def _score_continuations(
    model: GenerativeModel, pattern: PatternPrompt, batch: Batch
) -> Iterator[tuple[int, torch.Tensor]]:
    """The same by a model that writes from left to right: the prompts are read once."""
    states = model.states_at_mask(batch)
    for pair, words in zip(pattern.pairs, pattern.words, strict=True):
        yield pair, model.label_scores(states, as_sequences(words))
