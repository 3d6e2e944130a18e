"""The second look at a task: the file together with the model's tokenizer and the data.

In: a task, a model and, if there are any, rows. Out: what the model will read, which token answers for which
label, what the model would say by itself, and every problem at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def check(
    task: Task,
    model: ClozeModel,
    data: str | Path | None = None,
    column_mapping: dict[str, str] | None = None,
    max_length: int = MAX_LENGTH,
    examples: int = 1,
) -> dict[str, Any]:
    """Everything a person wants to know before spending time on a task; `problems` is empty if it can be used."""
    problems, warnings = list[str](), list[str]()
    rows, questions = None, None
    counts: dict[str, int] | None = None
    try:
        rows = read_rows(data, task, column_mapping) if data is not None else None
        if rows is not None and rows.has_labels:
            found = rows.labels
            counts = {label: int((found == number).sum()) for number, label in enumerate(task.labels)}
            if missing := int((found == NO_LABEL).sum()):
                warnings.append(f"{missing:,} of {len(rows):,} rows have no label.")
    except ClozifyError as error:
        problems += error.problems
        rows = None
    try:
        questions = compile_task(model, task, rows)
    except ClozifyError as error:
        problems += error.problems
    max_length = min(max_length, model.max_length)
    asked: list[PatternPrompt | None] = [*questions.patterns] if questions is not None else [None] * len(task.patterns)
    patterns = []
    try:
        for text, question in zip(task.patterns, asked, strict=True):
            patterns.append(_pattern(model, text, question, task, rows, max_length, examples))
        if questions is not None and rows is not None:
            warnings += rows.warnings + _lengths(model, questions, rows, max_length)
    except ClozifyError as error:
        problems += error.problems
    warnings += questions.warnings if questions is not None else []
    used = {slot.field for text in task.patterns for slot in Pattern(text).slots}
    warnings += [f"No pattern uses the field '{field}'." for field in task.fields if field not in used]
    return {
        "task": task.name,
        "description": task.description,
        "model": model.name,
        "mask": model.tokenizer.hf_tokenizer.mask_token,
        "fields": task.fields,
        "labels": task.labels,
        "metric": task.metric,
        "data": None if data is None else str(data),
        "rows": None if rows is None else len(rows),
        "rows_per_label": counts,
        "first_labels": [] if counts is None or rows is None else _first_labels(rows, examples),
        "patterns": patterns,
        "warnings": warnings,
        "problems": problems,
    }


@torch.inference_mode()
def _pattern(
    model: ClozeModel,
    text: str,
    question: PatternPrompt | None,
    task: Task,
    rows: Rows | None,
    max_length: int,
    examples: int,
) -> dict[str, Any]:
    """One pattern: its words, a few rows as the model reads them and what it answers, and its own favourites."""
    template = compile_pattern(Pattern(text), model.tokenizer)
    shown: dict[str, Any] = {"pattern": text, "pairs": [], "rows": []}
    if question is not None:
        shown["pairs"] = [_words(model, template, task.pairs[pair]) for pair in question.pairs]
    if rows is not None:
        count = min(examples, len(rows))
        columns = {c: c.tokenize(model.tokenizer, rows.texts(c.slot.field, 0, count)) for c in set(template.fields)}
        encoded = EncodedRows(template, columns, max_length)
        for row in range(count):
            batch = encoded.batch(np.array([row]))
            read_as = model.tokenizer.decode(batch.input_ids[0])
            answers = []
            for words in question.words if question is not None else ():
                shares = model.label_scores(model.states_at_mask(batch), words)[0].softmax(dim=-1).tolist()
                answers.append(dict(zip(task.labels, shares, strict=True)))
            shown["rows"].append({"read_as": read_as, "answers": answers})
    shown["own_answers"] = top_words(model, template, rows)
    return shown


def _words(model: ClozeModel, template: Template, pair: Pair) -> dict[str, Any]:
    ids = {
        word: word_ids(model.tokenizer, template, word)[0] for words in pair.verbalizer.words.values() for word in words
    }
    return {
        "pair": pair.name,
        "verbalizer": pair.verbalizer.name,
        "words": {
            label: [
                {"word": word, "token": model.tokenizer.to_tokens([ids[word]])[0], "id": ids[word]} for word in words
            ]
            for label, words in pair.verbalizer.words.items()
        },
    }


def _first_labels(rows: Rows, count: int) -> list[str | None]:
    return [None if place == NO_LABEL else rows.task.labels[place] for place in rows.labels[:count]]


def _lengths(model: ClozeModel, questions: TaskPrompts, rows: Rows, max_length: int) -> list[str]:
    """Remarks on empty fields and long rows, from the first stretch of rows."""
    stop = min(len(rows), CHUNK_ROWS)
    columns = questions.tokenize(model, rows, 0, stop)
    seen = ScoringStats()
    seen.note(columns, [EncodedRows(question.template, columns, max_length) for question in questions.patterns])
    return seen.remarks(max_length)
