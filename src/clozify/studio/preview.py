"""A model's zero-shot answers to a draft: its words' tokens, each pattern's predictions, their agreement.

Scores are cached by pattern, words and rows, so that after a keystroke only the edited pattern is scored again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logit, softmax

from clozify.config.pattern import Pattern
from clozify.config.task import Verbalizer
from clozify.config.teachers import ModelEntry
from clozify.data.rows import Rows
from clozify.errors import ClozifyError, quoted
from clozify.methods.calibration import calibrate, mean_probabilities, min_rows
from clozify.methods.score import score_rows
from clozify.models.cloze import ClozeModel
from clozify.models.language_model import LanguageModel, load_model
from clozify.models.task_prompts import compile_task, near_words, top_words
from clozify.prompts.encode import Template, compile_pattern
from clozify.prompts.verbalizer import UnusableWord, verbalize, word_ids
from clozify.studio.draft import Problems, TaskDraft
from clozify.studio.preview_teachers import PreviewTeachers, TeacherAnswers, UnaskedTeacher

MAX_LENGTH = 64  # tokens per row, as in the recipe `quick`
TOP_WORDS_ROWS = 4  # rows that the model's most likely words are computed from
MAX_CACHED_SCORES = 256


@dataclass(frozen=True)
class TypedWord:
    """A word as the model reads it; `alternatives` are similar words for one that it cannot use."""

    word: str
    tokens: list[str]
    is_usable: bool = True
    alternatives: tuple[str, ...] = ()


@dataclass
class Preview:
    """Problems and predictions of a draft; the predictions are calibrated on the rows themselves, if they are enough.

    There are probabilities once a pattern is valid and every label has a word that the model knows.
    """

    labels: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=dict)
    words: dict[str, list[TypedWord]] = field(default_factory=dict)  # by label, in the first valid pattern
    top_words: dict[int, list[str]] = field(default_factory=dict)  # pattern index -> the model's likeliest words
    patterns: list[int] = field(default_factory=list)  # indices of the patterns that were scored
    calibrated: bool = False
    probabilities: NDArray[np.float64] | None = None  # (patterns, rows, labels)
    ensemble: NDArray[np.float64] | None = None  # (rows, labels): of all patterns and other teachers together
    teachers: list[TeacherAnswers] = field(default_factory=list)  # the patterns first; empty where they are alone
    unasked: list[UnaskedTeacher] = field(default_factory=list)  # teachers that cost money
    notes: list[str] = field(default_factory=list)  # what teachers log, such as how many requests were sent

    @property
    def predictions(self) -> NDArray[np.int64]:
        """The label index that each pattern predicts: (patterns, rows)."""
        assert self.probabilities is not None
        return np.asarray(self.probabilities.argmax(axis=-1))

    def agreement(self) -> NDArray[np.float64]:
        """The fraction of rows on which two patterns predict the same label: (patterns, patterns)."""
        predictions = self.predictions
        return np.asarray((predictions[:, None] == predictions[None]).mean(axis=-1))

    def accuracy(self, truth: NDArray[np.int16]) -> tuple[list[float], float] | None:
        """The accuracy of each pattern and of the ensemble on the rows whose `truth` is not NO_LABEL."""
        labeled = truth >= 0
        if self.ensemble is None or not labeled.any():
            return None
        each = [float((predicted[labeled] == truth[labeled]).mean()) for predicted in self.predictions]
        return each, float((self.ensemble.argmax(axis=-1)[labeled] == truth[labeled]).mean())


class Previewer:
    """Computes previews with one model and caches its scores."""

    def __init__(self, model: ClozeModel, folder: Path | None = None) -> None:
        """`folder` is the project's, in which paths of other models start."""
        self.model = model
        self.teachers = PreviewTeachers(model.device.type, folder)
        self._other_models: dict[str, LanguageModel] = {}
        self._scores: OrderedDict[object, NDArray[np.float64]] = OrderedDict()
        self._alternatives: dict[tuple[str, str], list[str]] = {}  # by word and pattern
        self._top_words: dict[object, list[str]] = {}

    def preview(self, draft: TaskDraft, rows: Rows | None, rows_key: object = None) -> Preview:
        """The preview of a draft on some rows; equal `rows_key` means equal rows, for the cache."""
        preview = Preview(labels=draft.labels, problems=draft.problems())
        valid = [index for index, _ in enumerate(draft.patterns) if f"pattern {index}" not in preview.problems]
        if not draft.fields:
            return preview
        labels_valid = not any(key.startswith("label") for key in preview.problems)
        templates = {index: compile_pattern(Pattern(draft.patterns[index]), self.model.tokenizer) for index in valid}
        words = self._usable_words(draft, templates, preview)
        for index, template in templates.items():
            preview.top_words[index] = self._likeliest_words(template, rows, (tuple(draft.fields), rows_key))
        if rows is None or not labels_valid or "labels" in preview.problems or not all(words.values()):
            return preview
        scores = []
        for index in valid:
            try:
                scores.append(self._score(self.model, draft, draft.patterns[index], words, rows, rows_key))
                preview.patterns.append(index)
            except ClozifyError as error:
                preview.problems.setdefault(f"pattern {index}", []).extend(error.problems)
        if scores:
            stacked = np.stack(scores)
            preview.calibrated = len(rows) >= min_rows(len(draft.labels))
            to_probabilities = partial(softmax, axis=-1)
            if draft.multilabel:  # one label a row is assumed, as by `clozify zero-shot`
                stacked = stacked - stacked.mean(axis=1 if preview.calibrated else 2, keepdims=True)
                stacked += logit(1 / len(draft.labels))
                to_probabilities = expit
            elif preview.calibrated:
                stacked = calibrate(stacked, mean_probabilities(stacked))
            preview.probabilities = to_probabilities(stacked)
            preview.ensemble = to_probabilities(stacked.mean(axis=0))
            self._add_teachers(preview, draft, words, rows, rows_key, stacked)
        return preview

    def _add_teachers(
        self,
        preview: Preview,
        draft: TaskDraft,
        words: dict[str, tuple[str, ...]],
        rows: Rows,
        rows_key: object,
        scores: NDArray[np.float64],
    ) -> None:
        """Let the task's other teachers vote beside the patterns, whose scores are (patterns, rows, labels)."""
        patterns = [draft.patterns[index] for index in preview.patterns]
        task = draft.to_task(patterns, words)
        if not task.rules and not task.teachers:
            return

        def model_scores(entry: ModelEntry) -> NDArray[np.float64]:
            """The mean of the patterns' scores by a further model, as by `clozify zero-shot`: (rows, labels)."""
            if entry.model not in self._other_models:
                self._other_models[entry.model] = load_model(entry.model, self.model.device.type)
            model = self._other_models[entry.model]
            each = np.stack([self._score(model, draft, text, words, rows, rows_key) for text in patterns])
            each = calibrate(each, mean_probabilities(each)) if preview.calibrated else each
            return np.asarray(np.maximum(log_softmax(each.mean(axis=0), axis=-1), np.log(1e-12)))

        combined = self.teachers.combine(task, rows, rows_key, scores, model_scores)
        preview.teachers, preview.unasked, preview.notes = combined.teachers, combined.unasked, combined.notes
        if combined.ensemble is not None:
            preview.ensemble = combined.ensemble
        if combined.problems:
            preview.problems["teachers"] = combined.problems

    def _usable_words(
        self, draft: TaskDraft, templates: dict[int, Template], preview: Preview
    ) -> dict[str, tuple[str, ...]]:
        """The words of each label that the model knows in every pattern; adds all words' tokens, and problems."""
        unusable: dict[tuple[str, str], tuple[UnusableWord, Template]] = {}
        for template in templates.values():
            _, words, errors, _ = verbalize(self.model.tokenizer, template, Verbalizer(words=draft.words_by_label))
            for word in words:
                unusable.setdefault((word.label, word.word), (word, template))
            for error in errors:
                message = f"{error[0].upper()}{error[1:]}."
                if message not in preview.problems.setdefault("labels", []):
                    preview.problems["labels"].append(message)
        named = [index for index, (name, _) in enumerate(draft.words) if name.strip()]
        for (label, text), (word, template) in unusable.items():
            if (key := (text, template.pattern.text)) not in self._alternatives:
                used_words = draft.words_by_label.values()
                self._alternatives[key] = near_words(self.model, template, text, None, used_words)
            message = f"{str(word)[0].upper()}{str(word)[1:]}; similar words that it knows: "
            index = named[draft.labels.index(label)]
            preview.problems.setdefault(f"label {index}", []).append(f"{message}{quoted(self._alternatives[key])}.")
        for template in list(templates.values())[:1]:
            preview.words = {
                label: [self._typed_word(template, word, unusable.get((label, word))) for word in words]
                for label, words in draft.words_by_label.items()
            }
        return {
            label: tuple(word for word in words if (label, word) not in unusable)
            for label, words in draft.words_by_label.items()
        }

    def _typed_word(self, template: Template, word: str, unusable: tuple[UnusableWord, Template] | None) -> TypedWord:
        """A word with its tokens in a pattern; `unusable` tells in which pattern the model cannot use it."""
        tokens = self.model.tokenizer.to_tokens(word_ids(self.model.tokenizer, template, word))
        if unusable is None:
            return TypedWord(word, tokens)
        return TypedWord(word, tokens, False, tuple(self._alternatives[word, unusable[1].pattern.text]))

    def _likeliest_words(self, template: Template, rows: Rows | None, rows_key: object) -> list[str]:
        """The words that the model itself predicts at the mask."""
        key = (template.pattern.text, rows_key)
        if rows is None or key not in self._top_words:
            sample = None if rows is None else rows.select(range(min(TOP_WORDS_ROWS, len(rows))))
            self._top_words[key] = top_words(self.model, template, sample)
        return self._top_words[key]

    def _score(
        self,
        model: LanguageModel,
        draft: TaskDraft,
        pattern: str,
        words: dict[str, tuple[str, ...]],
        rows: Rows,
        rows_key: object,
    ) -> NDArray[np.float64]:
        """One pattern's raw scores by a model: (rows, labels)."""
        key = (model.name, pattern, tuple(words.items()), tuple(draft.fields), rows_key)
        if rows_key is None or key not in self._scores:
            task = draft.to_task([pattern], words)
            prompts = compile_task(model, task)
            chunks = [chunk[0] for _, chunk in score_rows(model, prompts, rows.with_task(task), MAX_LENGTH)]
            self._scores[key] = np.concatenate(chunks).astype(np.float64)
        self._scores.move_to_end(key)
        if len(self._scores) > MAX_CACHED_SCORES:
            self._scores.popitem(last=False)
        return self._scores[key]
