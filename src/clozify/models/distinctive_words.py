"""Words that the model expects on the rows of one label and not on those of the others."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.models.language_model import LanguageModel
from clozify.models.task_prompts import ids_of_word, log_probabilities_at_mask
from clozify.prompts.encode import EncodedRows, Template

MAX_ROWS, MAX_ROWS_PER_LABEL = 600, 5  # rows that words are suggested from
MAX_LENGTH = 64  # tokens of these rows
LIKELY_TOKENS = 200  # a suggestion is among the label's likeliest tokens, so that it fits the pattern, too
TOKENS_PER_BATCH = 2_048
MIN_LETTERS = 3


def first_rows_of_labels(rows: Rows) -> Rows:
    """The first rows of each label: five or, of many labels, fewer."""
    count = min(MAX_ROWS_PER_LABEL, max(1, MAX_ROWS // len(rows.task.labels)))
    selected = [np.flatnonzero(rows.labels == label)[:count] for label in range(len(rows.task.labels))]
    return rows.select(np.concatenate(selected))


@torch.inference_mode()
def label_log_probabilities(model: LanguageModel, template: Template, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of every token's log-probability at the mask over each label's rows, and the rows' number.

    (labels, vocabulary) and (labels,); all rows have a label.
    """
    labels = len(rows.task.labels)
    sums = torch.zeros(labels, 0)
    counts = torch.from_numpy(np.bincount(rows.labels, minlength=labels)).float()
    columns = {c: c.tokenize(model.tokenizer, rows.texts(c.slot.field)) for c in set(template.fields)}
    max_length = min(max(MAX_LENGTH, 2 * template.fixed_tokens), model.max_length)
    for batch in EncodedRows(template, columns, max_length).batches(TOKENS_PER_BATCH):
        scores = log_probabilities_at_mask(model, batch).cpu()  # (batch, vocabulary)
        index = torch.from_numpy(rows.labels[batch.rows].astype(np.int64))
        sums = sums if sums.shape[1] else torch.zeros(labels, scores.shape[1])
        sums.index_add_(0, index, scores)
    return sums, counts


def distinctive_tokens(sums: torch.Tensor, counts: torch.Tensor) -> NDArray[np.int64]:
    """Each label's likeliest tokens, those first that tell it from the others: (labels, tokens).

    They are sorted by the mean log-probability over the label's rows minus that over the other labels' rows.
    """
    own = sums / counts.clamp(min=1)[:, None]
    others = (sums.sum(dim=0) - sums) / (counts.sum() - counts).clamp(min=1)[:, None]
    likely = own.topk(min(LIKELY_TOKENS, own.shape[1]), dim=1).indices  # (labels, tokens)
    order = (own - others).gather(1, likely).argsort(dim=1, descending=True, stable=True)
    return likely.gather(1, order).numpy()


def distinctive_words(model: LanguageModel, template: Template, rows: Rows, count: int = 4) -> dict[str, list[str]]:
    """Complete words that tell each label from the others, best first, other than those that the label has.

    A label without rows has none. Words are suggested from a few rows of each label.
    """
    sums, counts = label_log_probabilities(model, template, first_rows_of_labels(rows))
    suggestions: dict[str, list[str]] = {}
    for label, tokens, label_rows in zip(rows.task.labels, distinctive_tokens(sums, counts), counts, strict=True):
        used = {part for v in rows.task.verbalizers for word in v.words[label] for part in word.lower().split()}
        suggestions[label] = words = []
        for token in tokens.tolist() if label_rows else ():
            word = model.tokenizer.decode([token]).strip()
            if len(word) < MIN_LETTERS or not word.isalpha() or word.lower() in used:
                continue
            if ids_of_word(model, template, word) == [token]:
                words.append(word)
                used.add(word.lower())
            if len(words) == count:
                break
    return suggestions
