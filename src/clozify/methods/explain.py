"""Which words move a label: occlusion.

Each word of a row is left out in turn, and the model scores what remains. A word's effect on a label l is the change of
the label's log-odds, positive where the word speaks for the label:

    effect(w, l) = logit q(l | x) - logit q(l | x without w),   logit q = log q - log(1 - q)

Of long texts, words next to each other are left out together. Why words are removed and not replaced by the mask token:
benchmarks/RESULTS.md, by benchmarks/explain.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from clozify.data.in_memory import make_rows
from clozify.data.rows import Rows

MAX_PARTS = 64  # of a row that are left out in turn
SCORED_TOGETHER = 256  # rows whose variants are scored in one call
# scripts that write no spaces between words; their characters are left out one by one
NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
SMALLEST = 1e-12  # of a probability in a logarithm

Texts = Mapping[str, str]  # a row's text by field


@dataclass(frozen=True)
class Part:
    """Consecutive words of a field, from the character `start` to before `end`."""

    field: str
    start: int
    end: int
    read: bool = True  # False: beyond the model's maximum length


@dataclass(frozen=True)
class Effects:
    """What leaving out each part of a row does to one label; arrays are (parts,)."""

    label: int
    runner_up: int | None  # the likeliest other label; None where rows may have several labels
    log_odds: NDArray[np.float64]  # how much the part adds to the label's log-odds
    against_runner_up: NDArray[np.float64] | None  # how much it adds to log q(label) - log q(runner-up)
    probability: NDArray[np.float64]  # of the label without the part


@dataclass(frozen=True)
class Occlusion:
    """A row's parts, and the probabilities of the labels for the whole row and without each part that is read."""

    texts: Texts
    parts: tuple[Part, ...]
    probabilities: NDArray[np.float64]  # (1 + parts that are read, labels)
    grouped: bool  # whether parts have several words each

    def effects(self, label: int, multilabel: bool = False) -> Effects:
        """The effects of the parts that are read on a label."""
        return occlusion_effects(self.probabilities, label, multilabel)


@cache
def _words() -> regex.Pattern[str]:
    return regex.compile(rf"[{NO_SPACES}]\p{{M}}*|[^\s{NO_SPACES}]+")


def split_words(text: str, field: str = "", read: int | None = None) -> list[Part]:
    """The words of a text as they are written; those that begin after the first `read` characters are not read."""
    read = len(text) if read is None else read
    return [Part(field, match.start(), match.end(), match.start() < read) for match in _words().finditer(text)]


def group_parts(parts: Sequence[Part], most: int) -> list[Part]:
    """At most `most` parts, or one for each field: neighbours in a field are joined, the same number in each part."""
    fields = {field: [part for part in parts if part.field == field] for field in dict.fromkeys(p.field for p in parts)}
    size = 1
    while size < len(parts) and sum(-(-len(of_field) // size) for of_field in fields.values()) > most:
        size += 1
    return [
        Part(field, of_field[index].start, of_field[min(index + size, len(of_field)) - 1].end)
        for field, of_field in fields.items()
        for index in range(0, len(of_field), size)
    ]


def leave_out(text: str, start: int, end: int) -> str:
    """The text without the characters from `start` to before `end`, and without the space after them."""
    left, right = text[:start], text[end:]
    return (left + (right.lstrip() if not left or left[-1].isspace() else right)).strip()


def occluded_texts(texts: Texts, parts: Sequence[Part]) -> list[dict[str, str]]:
    """The row's texts, then without each of the parts in turn: (1 + parts)."""
    return [dict(texts), *({**texts, p.field: leave_out(texts[p.field], p.start, p.end)} for p in parts)]


def occlude_rows(
    rows: Rows,
    probabilities: Callable[[Rows], NDArray[np.float64]],
    read_lengths: Mapping[str, NDArray[np.int64]] | None = None,
    labels: Sequence[int] | None = None,
    max_parts: int = MAX_PARTS,
) -> list[Occlusion]:
    """Score every row without each of its parts; all variants of a row are scored together.

    `probabilities` returns those of the labels, (rows, labels). `read_lengths` are the characters of each field that
    the model reads, (rows,) each; what comes after is neither left out nor scored. A row with more than `max_parts`
    words is scored in two steps: without parts of several words, then without single words of the parts that move its
    label most. `labels` are those of the rows; by default the likeliest.
    """
    fields = rows.task.fields
    columns, plans = {field: rows.texts(field) for field in fields}, list[_Plan]()
    for index in range(len(rows)):
        texts = {field: columns[field][index] for field in fields}
        read = {field: None if read_lengths is None else int(read_lengths[field][index]) for field in fields}
        words = [part for field in fields for part in split_words(texts[field], field, read[field])]
        plans.append(_Plan(texts, words, rows.task.multilabel))
    occlusions = []
    for start in range(0, len(plans), SCORED_TOGETHER):
        chunk = plans[start : start + SCORED_TOGETHER]
        parts = [plan.first_parts(max_parts) for plan in chunk]
        scored = _score_variants(rows, chunk, parts, probabilities)
        of_rows = [None] * len(chunk) if labels is None else labels[start : start + SCORED_TOGETHER]
        words = [plan.second_parts(*row, max_parts) for plan, *row in zip(chunk, parts, scored, of_rows, strict=True)]
        grouped = [index for index, of_row in enumerate(words) if of_row]
        if grouped:
            again = _score_variants(rows, [chunk[i] for i in grouped], [words[i] for i in grouped], probabilities)
            for index, values in zip(grouped, again, strict=True):
                parts[index], scored[index] = _replace_parts(parts[index], scored[index], words[index], values)
        occlusions += [plan.occlusion(*row) for plan, *row in zip(chunk, parts, scored, strict=True)]
    return occlusions


@dataclass(frozen=True)
class _Plan:
    """A row's texts and words, and whether it may have several labels."""

    texts: Texts
    words: list[Part]
    multilabel: bool

    @property
    def read_words(self) -> list[Part]:
        return [word for word in self.words if word.read]

    @property
    def read_texts(self) -> dict[str, str]:
        """The texts up to the last word that is read: a model must not read further because a word is left out."""
        ends = {word.field: word.end for word in self.read_words}
        return {field: text[: ends.get(field, 0)] for field, text in self.texts.items()}

    def first_parts(self, most: int) -> list[Part]:
        """All words, or half as many parts as may be left out."""
        words = self.read_words
        return words if len(words) <= most else group_parts(words, most // 2)

    def second_parts(
        self, parts: Sequence[Part], probabilities: NDArray[np.float64], label: int | None, most: int
    ) -> list[Part]:
        """The words of the parts that move the label most, as many as may still be left out."""
        label = int(probabilities[0].argmax()) if label is None else label
        odds = label_log_odds(probabilities, label, self.multilabel)
        words, chosen = self.read_words, list[Part]()
        for index in np.argsort(-np.abs(odds[0] - odds[1:]), kind="stable").tolist():
            of_part = [word for word in words if _is_within(word, parts[index])]
            if len(of_part) > 1 and len(parts) + len(chosen) + len(of_part) <= most:
                chosen += of_part
        return chosen

    def occlusion(self, parts: Sequence[Part], probabilities: NDArray[np.float64]) -> Occlusion:
        """The result of the row."""
        unread = [word for word in self.words if not word.read]
        return Occlusion(self.texts, (*parts, *unread), probabilities, len(parts) < len(self.read_words))


def _score_variants(
    rows: Rows,
    plans: Sequence[_Plan],
    parts: Sequence[Sequence[Part]],
    probabilities: Callable[[Rows], NDArray[np.float64]],
) -> list[NDArray[np.float64]]:
    """For each row the probabilities of the labels for the whole of it and without each part: (1 + parts, labels)."""
    variants = [occluded_texts(plan.read_texts, of_row) for plan, of_row in zip(plans, parts, strict=True)]
    columns = {field: [texts[field] for of_row in variants for texts in of_row] for field in rows.task.fields}
    scored = probabilities(make_rows(columns, rows.task, rows.source))
    return np.split(scored, np.cumsum([len(of_row) for of_row in variants])[:-1])


def _replace_parts(
    parts: Sequence[Part], scored: NDArray[np.float64], words: Sequence[Part], scored_words: NDArray[np.float64]
) -> tuple[list[Part], NDArray[np.float64]]:
    """The parts and their probabilities, with words in place of the parts that they belong to."""
    kept = [index for index, part in enumerate(parts) if not any(_is_within(word, part) for word in words)]
    every = [*(parts[index] for index in kept), *words]
    values = np.concatenate([scored[[0]], scored[[index + 1 for index in kept]], scored_words[1:]])
    fields = list(dict.fromkeys(part.field for part in parts))
    order = sorted(range(len(every)), key=lambda index: (fields.index(every[index].field), every[index].start))
    return [every[index] for index in order], values[[0, *(index + 1 for index in order)]]


def _is_within(word: Part, part: Part) -> bool:
    return word.field == part.field and part.start <= word.start < part.end


def occlusion_effects(probabilities: NDArray[Any], label: int, multilabel: bool = False) -> Effects:
    """The effects of parts on a label, from the probabilities with all of them and without each: (1 + parts, labels).

    With several labels a row the labels do not compete, and there is no runner-up.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    log_odds = label_log_odds(probabilities, label, multilabel)
    runner_up, against = None, None
    if not multilabel:
        others = np.delete(np.arange(probabilities.shape[1]), label)
        runner_up = int(others[probabilities[0, others].argmax()])
        logs = np.log(np.maximum(probabilities, SMALLEST))
        margin = logs[:, label] - logs[:, runner_up]
        against = margin[0] - margin[1:]
    return Effects(label, runner_up, log_odds[0] - log_odds[1:], against, probabilities[1:, label])


def label_log_odds(probabilities: NDArray[np.float64], label: int, multilabel: bool = False) -> NDArray[np.float64]:
    """log q(label) - log(1 - q(label)) of each row: (rows,); of one label a row, 1 - q is the sum of the others."""
    own = probabilities[:, label]
    others = 1 - own if multilabel else np.delete(probabilities, label, axis=1).sum(axis=1)
    odds: NDArray[np.float64] = np.log(np.maximum(own, SMALLEST)) - np.log(np.maximum(others, SMALLEST))
    return odds
