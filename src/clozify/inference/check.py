"""Implements `clozify check`: a task file together with the model's tokenizer and the data.

The result shows what the model reads, each label's tokens, what the model answers, and every problem at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.pattern import Pattern
from clozify.config.task import Pair, Task
from clozify.data.label_matrix import join_labels
from clozify.data.rows import CHUNK_ROWS, NO_LABEL, Rows, read_rows
from clozify.errors import ClozifyError
from clozify.inference.check_rules import RulesCheck, check_rules
from clozify.inference.check_teachers import TeacherCheck, check_teachers
from clozify.methods.calibration import calibrate, mean_probabilities, min_rows
from clozify.methods.score import MAX_LENGTH, ScoringStats, score_rows
from clozify.models.distinctive_words import distinctive_words
from clozify.models.generative import CausalModel, GenerativeModel
from clozify.models.language_model import LanguageModel
from clozify.models.task_prompts import (
    PatternPrompt,
    TaskPrompts,
    compile_task,
    compile_template,
    ids_of_word,
    top_words,
)
from clozify.prompts.encode import Batch, EncodedRows, Template
from clozify.runs.metrics import Record

MAX_SCORED_ROWS = 500  # labelled rows that the patterns are scored on
MAX_FORWARD_ROWS = 1_000  # these rows times the patterns, so that a check takes seconds
MIN_SCORED_ROWS = 10  # of fewer, an accuracy says too little


class WordToken(Record):
    """A word of a verbalizer and its tokens."""

    word: str
    tokens: list[str]
    ids: list[int]


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
    accuracies: list[float] | None = None  # one per pair, on the labelled rows before training


class LabelCheck(Record):
    """How well a label is told from the others before training, and words that could help."""

    label: str
    rows: int  # labelled rows that were scored
    accuracy: float | None  # of these rows, the mean over the pairs; None without rows
    confused_with: str | None  # the label that is wrongly answered most often
    words: list[str]  # that the model expects on this label's rows more than on those of the others


class TaskCheck(Record):
    """A task as a model sees it; it can be used where `problems` is empty."""

    task: str
    description: str
    model: str
    mask: str  # the model's mask token; empty where the word follows the prompt
    fields: list[str]
    labels: list[str]
    metric: str
    data: str | None
    rows: int | None
    rows_per_label: dict[str, int] | None
    scored_rows: int | None  # labelled rows that the patterns' accuracies are measured on
    calibrated: bool | None  # whether the accuracies are those of calibrated scores
    majority: float | None  # the accuracy of always answering the most frequent label of these rows
    first_labels: list[str | None]  # of the rows that are shown
    patterns: list[PatternCheck]
    label_checks: list[LabelCheck]  # empty without labelled rows
    rules: RulesCheck | None  # None without rules or data
    teachers: list[TeacherCheck]  # besides patterns and rules
    warnings: list[str]
    problems: list[str]


def check(
    task: Task,
    model: LanguageModel,
    data: str | Path | None = None,
    column_mapping: dict[str, str] | None = None,
    max_length: int = MAX_LENGTH,
    examples: int = 1,
) -> TaskCheck:
    """Check a task with a model and, if there are any, rows, of which the first `examples` are shown."""
    problems, warnings, patterns = list[str](), list[str](), list[PatternCheck]()
    rows, prompts, counts = None, None, None
    try:
        rows, counts = (None, None) if data is None else _read_data(data, task, column_mapping, warnings)
    except ClozifyError as error:
        problems += error.problems
    try:
        prompts = compile_task(model, task, rows)
    except ClozifyError as error:
        problems += error.problems
    max_length = min(max_length, model.max_length)
    answers, label_checks, rules = None, list[LabelCheck](), None
    try:
        for index in range(len(task.patterns)):  # those before a problem are shown
            patterns += [_check_pattern(model, task, index, prompts, rows, max_length, examples)]
        if prompts is not None and rows is not None:
            warnings += rows.warnings + _length_warnings(model, prompts, rows, max_length)
            if counts is not None and any(counts.values()) and not task.multilabel:
                answers = _answer_labeled_rows(model, prompts, _labeled_rows(rows), max_length)
                patterns = [_with_accuracies(pattern, answers) for pattern in patterns]
                label_checks = _check_labels(answers, _suggest_words(model, rows, patterns))
                warnings += answers.warnings(find_words=not isinstance(model, GenerativeModel))
        rules = None if rows is None else check_rules(rows)
    except ClozifyError as error:
        problems += error.problems
    teachers = check_teachers(task)
    problems += [problem for teacher in teachers for problem in teacher.problems]
    warnings += [warning for teacher in teachers for warning in teacher.warnings]
    warnings += [*(prompts.warnings if prompts else []), *_field_warnings(task), *(rules.warnings if rules else [])]
    return TaskCheck(
        task=task.name,
        description=task.description,
        model=model.name,
        mask=_mask_token(model),
        fields=task.fields,
        labels=task.labels,
        metric=task.metric,
        data=None if data is None else str(data),
        rows=None if rows is None else len(rows),
        rows_per_label=counts,
        scored_rows=None if answers is None else len(answers.truth),
        calibrated=None if answers is None else answers.calibrated,
        majority=None if answers is None else answers.majority,
        first_labels=[] if counts is None or rows is None else _first_labels(rows, examples),
        patterns=patterns,
        label_checks=label_checks,
        rules=rules,
        teachers=teachers,
        warnings=warnings,
        problems=problems,
    )


def _read_data(
    data: str | Path, task: Task, column_mapping: dict[str, str] | None, warnings: list[str]
) -> tuple[Rows, dict[str, int] | None]:
    """The rows and, if they have labels, how many rows have each."""
    rows = read_rows(data, task, column_mapping)
    if not rows.has_labels:
        return rows, None
    counts = _count_labels(rows)
    warnings += _unlabeled_warnings(rows)
    return rows, counts


def _mask_token(model: LanguageModel) -> str:
    """What stands at the mask in the text that the model reads; empty for a causal model, which reads up to it."""
    return "" if isinstance(model, CausalModel) else model.tokenizer.to_tokens([model.tokenizer.mask_id])[0]


@dataclass(frozen=True)
class LabeledAnswers:
    """What every pair answers to labelled rows before training."""

    truth: NDArray[np.int16]  # (rows,)
    predicted: dict[str, NDArray[np.int64]]  # pair -> (rows,)
    calibrated: bool = False

    @property
    def majority(self) -> float:
        """The accuracy of always answering the most frequent label."""
        return float(np.bincount(self.truth).max() / len(self.truth))

    def accuracy(self, pair: str) -> float:
        """The fraction of rows that a pair answers correctly."""
        return float((self.predicted[pair] == self.truth).mean())

    def warnings(self, find_words: bool = True) -> list[str]:
        """What it means where pairs are no better than the most frequent label (a one-sided binomial test at 5%).

        `find_words`: whether the command can be advised.
        """
        from scipy.stats import binomtest

        rows = len(self.truth)
        guessing = []
        for pair in self.predicted:
            correct = round(self.accuracy(pair) * rows)
            if binomtest(correct, rows, self.majority, alternative="greater").pvalue > 0.05:
                guessing.append(pair)
        if not guessing or rows < MIN_SCORED_ROWS:
            return []
        everywhere = len(guessing) == len(self.predicted)
        return [
            f"Before training, {'no pattern' if everywhere else ', '.join(guessing)} is "
            f"{'' if everywhere else 'not '}clearly better on these {rows:,} rows than always answering the most "
            f"frequent label ({100 * self.majority:.1f}%): the model does not yet connect the words with the labels. "
            f"Try the words that are suggested for the labels{', clozify find-words' if find_words else ''} or a "
            "larger --model. Training can still teach it the words, but expect to need more labelled rows."
        ]


def _unlabeled_warnings(rows: Rows) -> list[str]:
    unlabeled = int((~rows.is_labeled).sum())
    return [f"{unlabeled:,} of {len(rows):,} rows have no label."] if unlabeled else []


def _field_warnings(task: Task) -> list[str]:
    used = {slot.field for text in task.patterns for slot in Pattern(text).slots}
    return [f"No pattern uses the field '{field}'." for field in task.fields if field not in used]


def _labeled_rows(rows: Rows) -> Rows:
    """The labelled rows; of many, evenly spaced ones."""
    labeled = np.flatnonzero(rows.labels != NO_LABEL)
    count = min(len(labeled), MAX_SCORED_ROWS, MAX_FORWARD_ROWS // len(rows.task.patterns))
    return rows.select(labeled[np.linspace(0, len(labeled) - 1, max(1, count)).astype(np.int64)])


def _answer_labeled_rows(model: LanguageModel, prompts: TaskPrompts, rows: Rows, max_length: int) -> LabeledAnswers:
    """The pairs' answers to labelled rows, calibrated as by `zero_shot`."""
    chunks = [scores for _, scores in score_rows(model, prompts, rows, max_length)]
    scores = np.concatenate(chunks, axis=1)  # (pairs, rows, labels)
    calibrated = len(rows) >= min_rows(len(rows.task.labels))
    predicted = (calibrate(scores, mean_probabilities(scores)) if calibrated else scores).argmax(axis=-1)
    indices = [pair for pattern in prompts.patterns for pair in pattern.pairs]
    names = [rows.task.pairs[index].name for index in indices]
    return LabeledAnswers(rows.labels, dict(zip(names, predicted, strict=True)), calibrated)


def _suggest_words(model: LanguageModel, rows: Rows, patterns: list[PatternCheck]) -> dict[str, list[str]]:
    """Words that tell each label from the others, by the pattern with the highest accuracy."""
    best = max(patterns, key=lambda pattern: max(pattern.accuracies or [0.0]))
    return distinctive_words(model, compile_template(model, Pattern(best.pattern)), rows)


def _check_labels(answers: LabeledAnswers, words: dict[str, list[str]]) -> list[LabelCheck]:
    """Each label with its rows' answers, over all pairs, and the words that are suggested for it."""
    labels = list(words)
    predicted = np.stack(list(answers.predicted.values()))  # (pairs, rows)
    checks = []
    for index, label in enumerate(labels):
        counts = np.bincount(predicted[:, answers.truth == index].ravel(), minlength=len(labels))  # (labels,)
        wrong = np.where(np.arange(len(labels)) == index, 0, counts)
        checks.append(
            LabelCheck(
                label=label,
                rows=int((answers.truth == index).sum()),
                accuracy=float(counts[index] / counts.sum()) if counts.any() else None,
                confused_with=labels[int(wrong.argmax())] if wrong.any() else None,
                words=words[label],
            )
        )
    return checks


def _with_accuracies(pattern: PatternCheck, answers: LabeledAnswers) -> PatternCheck:
    return pattern.model_copy(update={"accuracies": [answers.accuracy(pair.pair) for pair in pattern.pairs]})


@torch.inference_mode()
def _check_pattern(
    model: LanguageModel,
    task: Task,
    index: int,
    prompts: TaskPrompts | None,
    rows: Rows | None,
    max_length: int,
    examples: int,
) -> PatternCheck:
    text = task.patterns[index]
    template = compile_template(model, Pattern(text))
    prompt = None if prompts is None else prompts.patterns[index]
    return PatternCheck(
        pattern=text,
        pairs=[] if prompt is None else [_pair_words(model, template, task.pairs[pair]) for pair in prompt.pairs],
        rows=[] if rows is None else _preview_rows(model, template, prompt, rows, max_length, examples),
        own_answers=top_words(model, template, rows),
    )


def _preview_rows(
    model: LanguageModel, template: Template, prompt: PatternPrompt | None, rows: Rows, max_length: int, examples: int
) -> list[RowPreview]:
    """The first rows as the model reads them, with the answers of the pattern's pairs."""
    count = min(examples, len(rows))
    columns = {c: c.tokenize(model.tokenizer, rows.texts(c.slot.field, 0, count)) for c in set(template.fields)}
    encoded = EncodedRows(template, columns, max_length)
    probabilities = np.empty((0, count, len(rows.task.labels)))  # (pairs, rows, labels)
    if prompt is not None and count:
        prompts = TaskPrompts([prompt], [], list(dict.fromkeys(template.fields)))
        chunks = [scores for _, scores in score_rows(model, prompts, rows.select(np.arange(count)), max_length)]
        probabilities = softmax(np.concatenate(chunks, axis=1), axis=-1)
    return [
        RowPreview(
            read_as=_read_as(model, encoded.batch(np.array([index]))),
            answers=[dict(zip(rows.task.labels, of_pair[index].tolist(), strict=True)) for of_pair in probabilities],
        )
        for index in range(count)
    ]


def _read_as(model: LanguageModel, batch: Batch) -> str:
    """The text of a prompt; that of a model that writes with its line breaks, which it reads, too."""
    if not isinstance(model, GenerativeModel):
        return model.tokenizer.decode(batch.input_ids[0])
    return str(model.tokenizer.hf_tokenizer.decode(batch.input_ids[0], clean_up_tokenization_spaces=False))


def _pair_words(model: LanguageModel, template: Template, pair: Pair) -> PairWords:
    def token(word: str) -> WordToken:
        ids = ids_of_word(model, template, word)
        return WordToken(word=word, tokens=model.tokenizer.to_tokens(ids), ids=ids)

    words = {label: [token(word) for word in words] for label, words in pair.verbalizer.words.items()}
    return PairWords(pair=pair.name, verbalizer=pair.verbalizer.name, words=words)


def _count_labels(rows: Rows) -> dict[str, int]:
    labels = rows.task.labels
    has_label = (rows.label_matrix == 1).T if rows.task.multilabel else rows.labels == np.arange(len(labels))[:, None]
    return {label: int(count) for label, count in zip(labels, has_label.sum(axis=1), strict=True)}


def _first_labels(rows: Rows, count: int) -> list[str | None]:
    if rows.task.multilabel:
        sets = [
            [label for label, has in zip(rows.task.labels, row, strict=True) if has] for row in rows.targets[:count]
        ]
        shown = [join_labels(names, rows.task.separator) or "none" for names in sets]
        return [name if has_label else None for name, has_label in zip(shown, rows.is_labeled, strict=False)]
    return [None if index == NO_LABEL else rows.task.labels[index] for index in rows.labels[:count]]


def _length_warnings(model: LanguageModel, prompts: TaskPrompts, rows: Rows, max_length: int) -> list[str]:
    """Warnings about empty fields and long rows, from the first chunk of rows."""
    columns = prompts.tokenize(model, rows, 0, min(len(rows), CHUNK_ROWS))
    stats = ScoringStats()
    stats.update(columns, [EncodedRows(prompt.template, columns, max_length) for prompt in prompts.patterns])
    return stats.warnings(max_length)
