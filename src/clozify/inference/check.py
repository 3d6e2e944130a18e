"""Implements `clozify check`: a task file together with the model's tokenizer and the data.

The result shows what the model reads, each label's token, what the model answers, and every problem at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from clozify.config.pattern import Pattern
from clozify.config.task import Pair, Task
from clozify.data.rows import CHUNK_ROWS, NO_LABEL, Rows, read_rows
from clozify.errors import ClozifyError
from clozify.methods.score import MAX_LENGTH, ScoringStats
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import PatternPrompt, TaskPrompts, compile_task, top_words
from clozify.prompts.encode import EncodedRows, Template, compile_pattern
from clozify.prompts.verbalizer import word_ids
from clozify.runs.metrics import Record


class WordToken(Record):
    """A word of a verbalizer and its token."""

    word: str
    token: str
    id: int


class PairWords(Record):
    """A pair's words in the model's vocabulary."""

    pair: str
    verbalizer: str
    words: dict[str, list[WordToken]]  # label -> words


class RowPreview(Record):
    """A row as the model reads it, and each pair's probabilities."""

    read_as: str
    answers: list[dict[str, float]]  # one per pair: label -> probability


class PatternCheck(Record):
    """One pattern with its pairs, some rows, and the words that the model itself would put at the mask."""

    pattern: str
    pairs: list[PairWords]
    rows: list[RowPreview]
    own_answers: list[str]


class TaskCheck(Record):
    """A task as a model sees it; it can be used where `problems` is empty."""

    task: str
    description: str
    model: str
    mask: str  # the model's mask token
    fields: list[str]
    labels: list[str]
    metric: str
    data: str | None
    rows: int | None
    rows_per_label: dict[str, int] | None
    first_labels: list[str | None]  # of the rows that are shown
    patterns: list[PatternCheck]
    warnings: list[str]
    problems: list[str]


def check(
    task: Task,
    model: ClozeModel,
    data: str | Path | None = None,
    column_mapping: dict[str, str] | None = None,
    max_length: int = MAX_LENGTH,
    examples: int = 1,
) -> TaskCheck:
    """Check a task with a model and, if there are any, rows, of which the first `examples` are shown."""
    problems, warnings = list[str](), list[str]()
    rows, prompts = None, None
    counts: dict[str, int] | None = None
    try:
        rows = read_rows(data, task, column_mapping) if data is not None else None
        if rows is not None and rows.has_labels:
            labels = rows.labels
            counts = {label: int((labels == index).sum()) for index, label in enumerate(task.labels)}
            if missing := int((labels == NO_LABEL).sum()):
                warnings.append(f"{missing:,} of {len(rows):,} rows have no label.")
    except ClozifyError as error:
        problems += error.problems
        rows = None
    try:
        prompts = compile_task(model, task, rows)
    except ClozifyError as error:
        problems += error.problems
    max_length = min(max_length, model.max_length)
    patterns: list[PatternCheck] = []
    try:
        for index in range(len(task.patterns)):  # those before a problem are shown
            patterns += [_check_pattern(model, task, index, prompts, rows, max_length, examples)]
        if prompts is not None and rows is not None:
            warnings += rows.warnings + _length_warnings(model, prompts, rows, max_length)
    except ClozifyError as error:
        problems += error.problems
    warnings += prompts.warnings if prompts is not None else []
    used = {slot.field for text in task.patterns for slot in Pattern(text).slots}
    warnings += [f"No pattern uses the field '{field}'." for field in task.fields if field not in used]
    return TaskCheck(
        task=task.name,
        description=task.description,
        model=model.name,
        mask=model.tokenizer.hf_tokenizer.mask_token,
        fields=task.fields,
        labels=task.labels,
        metric=task.metric,
        data=None if data is None else str(data),
        rows=None if rows is None else len(rows),
        rows_per_label=counts,
        first_labels=[] if counts is None or rows is None else _first_labels(rows, examples),
        patterns=patterns,
        warnings=warnings,
        problems=problems,
    )


@torch.inference_mode()
def _check_pattern(
    model: ClozeModel,
    task: Task,
    index: int,
    prompts: TaskPrompts | None,
    rows: Rows | None,
    max_length: int,
    examples: int,
) -> PatternCheck:
    text = task.patterns[index]
    template = compile_pattern(Pattern(text), model.tokenizer)
    prompt = None if prompts is None else prompts.patterns[index]
    return PatternCheck(
        pattern=text,
        pairs=[] if prompt is None else [_pair_words(model, template, task.pairs[pair]) for pair in prompt.pairs],
        rows=[] if rows is None else _preview_rows(model, template, prompt, rows, max_length, examples),
        own_answers=top_words(model, template, rows),
    )


def _preview_rows(
    model: ClozeModel, template: Template, prompt: PatternPrompt | None, rows: Rows, max_length: int, examples: int
) -> list[RowPreview]:
    """The first rows as the model reads them, with the answers of the pattern's pairs."""
    count = min(examples, len(rows))
    columns = {c: c.tokenize(model.tokenizer, rows.texts(c.slot.field, 0, count)) for c in set(template.fields)}
    encoded = EncodedRows(template, columns, max_length)
    previews = []
    for index in range(count):
        batch = encoded.batch(np.array([index]))
        answers = []
        for words in prompt.words if prompt is not None else ():
            scores = model.label_scores(model.states_at_mask(batch), words)[0]  # (labels,)
            answers.append(dict(zip(rows.task.labels, scores.softmax(dim=-1).tolist(), strict=True)))
        previews.append(RowPreview(read_as=model.tokenizer.decode(batch.input_ids[0]), answers=answers))
    return previews


def _pair_words(model: ClozeModel, template: Template, pair: Pair) -> PairWords:
    def token(word: str) -> WordToken:
        token_id = word_ids(model.tokenizer, template, word)[0]
        return WordToken(word=word, token=model.tokenizer.to_tokens([token_id])[0], id=token_id)

    words = {label: [token(word) for word in words] for label, words in pair.verbalizer.words.items()}
    return PairWords(pair=pair.name, verbalizer=pair.verbalizer.name, words=words)


def _first_labels(rows: Rows, count: int) -> list[str | None]:
    return [None if index == NO_LABEL else rows.task.labels[index] for index in rows.labels[:count]]


def _length_warnings(model: ClozeModel, prompts: TaskPrompts, rows: Rows, max_length: int) -> list[str]:
    """Warnings about empty fields and long rows, from the first chunk of rows."""
    columns = prompts.tokenize(model, rows, 0, min(len(rows), CHUNK_ROWS))
    stats = ScoringStats()
    stats.update(columns, [EncodedRows(prompt.template, columns, max_length) for prompt in prompts.patterns])
    return stats.warnings(max_length)
