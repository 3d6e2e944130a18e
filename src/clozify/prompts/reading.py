"""How much of a row's texts a model reads: what truncation leaves of each field, in characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clozify.prompts.encode import EncodedRows, FieldInContext, Template
from clozify.prompts.tokenizer import PromptTokenizer


def read_lengths(
    tokenizer: PromptTokenizer, templates: Sequence[Template], max_length: int, texts: Mapping[str, list[str]]
) -> dict[str, NDArray[np.int64]]:
    """How many characters of each field's texts some template reads within `max_length` tokens: (rows,) each.

    A text that no template cuts counts with all its characters.
    """
    lengths = {field: np.zeros(len(values), dtype=np.int64) for field, values in texts.items()}
    for template in templates:
        columns = {column: column.tokenize(tokenizer, texts[column.slot.field]) for column in template.fields}
        encoded = EncodedRows(template, columns, max_length)
        kept, full = encoded.kept_lengths(np.arange(len(encoded)))  # (rows, fields)
        for index, column in enumerate(template.fields):
            field = column.slot.field
            for row, text in enumerate(texts[field]):
                is_cut = kept[row, index] < full[row, index]
                count = _characters(tokenizer, column, text, int(kept[row, index])) if is_cut else len(text)
                lengths[field][row] = max(lengths[field][row], count)
    return lengths


def _characters(tokenizer: PromptTokenizer, column: FieldInContext, text: str, tokens: int) -> int:
    """Where the first `tokens` tokens of a text end in it."""
    if not tokens:
        return 0
    context = column.context
    context_ids = tokenizer.encode(context.rstrip()) if context else []
    ((ids, offsets),) = tokenizer.encode_with_offsets([context + text])
    if ids[: len(context_ids)].tolist() != context_ids:  # a token spans both: the text was tokenised by itself
        context, context_ids = "", []
        ((ids, offsets),) = tokenizer.encode_with_offsets([text])
    last = min(len(context_ids) + tokens, len(offsets)) - 1
    return max(0, offsets[last][1] - len(context))
