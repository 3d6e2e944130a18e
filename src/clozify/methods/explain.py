"""Which words move a label: occlusion.

Each word of a row is left out in turn, once of the whole row x and once of a sample of its words x', and the model
scores all these texts. A word's effect on a label l is what it adds to the label's log-odds, in the mean of both,
positive where the word speaks for the label:

    left out of the row:     logit q(l | x) - logit q(l | x without w)          logit q = log q - log(1 - q)
    left out of its sample:  logit q(l | x') - logit q(l | x' without w)

The samples are every second, third, ... word, so that each has a few words and each word is in one. In the row, other
words may say the same as w, so that leaving out w changes little; in the sample there are few others. Both are terms
of the word's Shapley value; for a model that adds up words they are the word's weight. Of long texts, words next to
each other are taken together. How faithful that is, compared with others, is in benchmarks/RESULTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import regex
from numpy.typing import NDArray

from clozify.data.in_memory import make_rows
from clozify.data.rows import Rows

MAX_PARTS = 64  # of a row that are left out in turn
SAMPLE_PARTS = 6  # of a sample, about
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
    """What each part of a row does to one label; arrays are (parts,)."""

    label: int
    runner_up: int | None  # the likeliest other label; None where rows may have several labels
    log_odds: NDArray[np.float64]  # how much the part adds to the label's log-odds, the mean of the next two
    left_out: NDArray[np.float64]
    left_out_of_sample: NDArray[np.float64]
    against_runner_up: NDArray[np.float64] | None  # how much it adds to log q(label) - log q(runner-up), in the mean
    probability: NDArray[np.float64]  # of the label for the row without the part


@dataclass(frozen=True)
class Occlusion:
    """A row's parts, and the probabilities of the labels with and without each part that is read.

    The first axis of the arrays is the row and the sample of it that the part is in.
    """

    texts: Texts
    parts: tuple[Part, ...]
    whole: NDArray[np.float64]  # (labels,): of the row
    with_part: NDArray[np.float64]  # (2, parts, labels)
    without_part: NDArray[np.float64]  # (2, parts, labels)
    grouped: bool = False  # whether parts have several words each

    def effects(self, label: int, multilabel: bool = False) -> Effects:
        """The effects of the parts that are read on a label.

        With several labels a row the labels do not compete, and there is no runner-up.
        """
        left_out, of_sample = _difference(self, lambda values: label_log_odds(values, label, multilabel))
        runner_up, against = None, None
        if not multilabel:
            runner_up = int(np.argsort(-np.delete(self.whole, label), kind="stable")[0])
            runner_up += runner_up >= label
            against = _difference(self, lambda values: _log_ratio(values, label, runner_up)).mean(axis=0)
        return Effects(
            label,
            runner_up,
            (left_out + of_sample) / 2,
            left_out,
            of_sample,
            against,
            self.without_part[0, :, label],
        )


def label_log_odds(probabilities: NDArray[np.float64], label: int, multilabel: bool = False) -> NDArray[np.float64]:
    """log q(label) - log(1 - q(label)): (...,) of (..., labels); of one label a row, 1 - q is the sum of the others."""
    own = probabilities[..., label]
    others = 1 - own if multilabel else np.delete(probabilities, label, axis=-1).sum(axis=-1)
    odds: NDArray[np.float64] = np.log(np.maximum(own, SMALLEST)) - np.log(np.maximum(others, SMALLEST))
    return odds


def _log_ratio(probabilities: NDArray[np.float64], label: int, other: int) -> NDArray[np.float64]:
    """log q(label) - log q(other): (...,) of (..., labels)."""
    logs: NDArray[np.float64] = np.log(np.maximum(probabilities, SMALLEST))
    return logs[..., label] - logs[..., other]


def _difference(occlusion: Occlusion, of: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
    """By how much a function of the probabilities is larger with each part than without it: (2, parts)."""
    return of(occlusion.with_part) - of(occlusion.without_part)


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


def keep_parts(texts: Texts, parts: Sequence[Part]) -> dict[str, str]:
    """The row's texts with these parts alone."""
    kept = dict.fromkeys(texts, "")
    for index, part in enumerate(parts):
        before = parts[index - 1] if index else None
        adjoins = before is None or before.field != part.field or before.end == part.start
        kept[part.field] += ("" if adjoins else " ") + texts[part.field][part.start : part.end]
    return kept


def sample_parts(parts: Sequence[Part]) -> list[list[Part]]:
    """Samples of about `SAMPLE_PARTS` parts: with n samples, each has every n-th part."""
    count = max(1, round(len(parts) / SAMPLE_PARTS))
    return [list(parts[start::count]) for start in range(count)]


def occluded_texts(texts: Texts, parts: Sequence[Part]) -> list[dict[str, str]]:
    """The row's texts, then without each part; then the sample of each part, and each part's sample without it."""
    samples = sample_parts(parts)
    of_part = {part: sample for sample in samples for part in sample}
    without = [{**texts, p.field: leave_out(texts[p.field], p.start, p.end)} for p in parts]
    sampled = [keep_parts(texts, [other for other in of_part[part] if other != part]) for part in parts]
    return [dict(texts), *without, *(keep_parts(texts, sample) for sample in samples), *sampled]


def occlude_rows(
    rows: Rows,
    probabilities: Callable[[Rows], NDArray[np.float64]],
    read_lengths: Mapping[str, NDArray[np.int64]] | None = None,
    labels: Sequence[int] | None = None,
    max_parts: int = MAX_PARTS,
) -> list[Occlusion]:
    """Score every row, and samples of it, without each of its parts; all variants of a row are scored together.

    `probabilities` returns those of the labels, (rows, labels). `read_lengths` are the characters of each field that
    the model reads, (rows,) each; what comes after is neither left out nor scored. A row with more than `max_parts`
    words is scored in two steps: by parts of several words, then by single words of the parts that move its label most.
    `labels` are those of the rows; by default the likeliest.
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
        stop = start + SCORED_TOGETHER
        of_chunk = None if labels is None else labels[start:stop]
        occlusions += _occlude_plans(rows, plans[start:stop], probabilities, of_chunk, max_parts)
    return occlusions


def _occlude_plans(
    rows: Rows,
    plans: Sequence[_Plan],
    probabilities: Callable[[Rows], NDArray[np.float64]],
    labels: Sequence[int] | None,
    max_parts: int,
) -> list[Occlusion]:
    """The occlusions of some rows, whose variants are scored in one call, and words of long rows in another."""
    occlusions = _score_variants(rows, plans, [plan.first_parts(max_parts) for plan in plans], probabilities)
    words: dict[int, list[Part]] = {}  # row -> words of the parts that move its label most
    for index, plan in enumerate(plans):
        label = None if labels is None else labels[index]
        if chosen := plan.second_parts(occlusions[index], label, max_parts):
            words[index] = chosen
    if words:
        again = _score_variants(rows, [plans[index] for index in words], list(words.values()), probabilities)
        for index, of_words in zip(words, again, strict=True):
            occlusions[index] = _replace_parts(occlusions[index], of_words)
    return [plan.complete(occlusion) for plan, occlusion in zip(plans, occlusions, strict=True)]


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

    def second_parts(self, occlusion: Occlusion, label: int | None, most: int) -> list[Part]:
        """The words of the parts that move the label most, as many as may still be left out."""
        label = int(occlusion.whole.argmax()) if label is None else label
        effects = occlusion.effects(label, self.multilabel).log_odds
        parts, words, chosen = occlusion.parts, self.read_words, list[Part]()
        for index in np.argsort(-np.abs(effects), kind="stable").tolist():
            of_part = [word for word in words if _is_within(word, parts[index])]
            if len(of_part) > 1 and len(parts) + len(chosen) + len(of_part) <= most:
                chosen += of_part
        return sorted(chosen, key=words.index)

    def complete(self, occlusion: Occlusion) -> Occlusion:
        """With the words that are not read."""
        unread = tuple(word for word in self.words if not word.read)
        grouped = len(occlusion.parts) < len(self.read_words)
        return replace(occlusion, texts=self.texts, parts=occlusion.parts + unread, grouped=grouped)


def _score_variants(
    rows: Rows,
    plans: Sequence[_Plan],
    parts: Sequence[Sequence[Part]],
    probabilities: Callable[[Rows], NDArray[np.float64]],
) -> list[Occlusion]:
    """The occlusion of each row by these parts."""
    variants = [occluded_texts(plan.read_texts, of_row) for plan, of_row in zip(plans, parts, strict=True)]
    columns = {field: [texts[field] for of_row in variants for texts in of_row] for field in rows.task.fields}
    scored = probabilities(make_rows(columns, rows.task, rows.source))
    of_rows = np.split(scored, np.cumsum([len(of_row) for of_row in variants])[:-1])
    return [_arrange(plan.texts, of_row, values) for plan, of_row, values in zip(plans, parts, of_rows, strict=True)]


def _arrange(texts: Texts, parts: Sequence[Part], scored: NDArray[np.float64]) -> Occlusion:
    """An occlusion from the probabilities of `occluded_texts`."""
    count, samples = len(parts), len(sample_parts(parts))
    whole, without, sampled, sampled_without = np.split(scored, [1, 1 + count, 1 + count + samples])
    of_sample = sampled[np.arange(count) % samples]  # (parts, labels)
    with_part = np.stack([np.repeat(whole, count, axis=0), of_sample])
    return Occlusion(texts, tuple(parts), whole[0], with_part, np.stack([without, sampled_without]))


def _replace_parts(occlusion: Occlusion, of_words: Occlusion) -> Occlusion:
    """An occlusion with words in the order of the text, in place of the parts that they belong to."""
    parts, words = occlusion.parts, of_words.parts
    kept = [index for index, part in enumerate(parts) if not any(_is_within(word, part) for word in words)]
    every = [*(parts[index] for index in kept), *words]
    fields = list(dict.fromkeys(part.field for part in parts))
    order = sorted(range(len(every)), key=lambda index: (fields.index(every[index].field), every[index].start))
    with_part, without_part = (
        np.concatenate([before[:, kept], after], axis=1)[:, order]
        for before, after in (
            (occlusion.with_part, of_words.with_part),
            (occlusion.without_part, of_words.without_part),
        )
    )
    parts = tuple(every[index] for index in order)
    return replace(occlusion, parts=parts, with_part=with_part, without_part=without_part)


def _is_within(word: Part, part: Part) -> bool:
    return word.field == part.field and part.start <= word.start < part.end
