"""From a large language model's answer to a label, or to probabilities of the labels."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from clozify.config.label_names import name_to_words
from clozify.config.task import Task
from clozify.teachers.llm_prompt import LabelCodes

LEAST_MASS = 0.1  # of the labels together: with less, the model was about to say something else
SMALLEST = 1e-9
_EDGES = string.punctuation + string.whitespace + "“”‘’«»"  # noqa: RUF001 (quotation marks of models)
_REASONING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_STATED = r"(?:label|answer|number|letter|category|class)\b(?: is)?\W*"


class Token(BaseModel):
    """A generated token and the likeliest tokens in its place, with their log-probabilities."""

    model_config = ConfigDict(frozen=True)

    text: str
    top: tuple[tuple[str, float], ...]


class Answer(BaseModel):
    """What is kept of a server's answer."""

    model_config = ConfigDict(frozen=True)

    text: str
    tokens: tuple[Token, ...] | None = None  # None: the server gave no log-probabilities
    input_tokens: int = 0
    output_tokens: int = 0


class AnswerReader:
    """Reads labels, by code or by name, from answers."""

    def __init__(self, task: Task, codes: LabelCodes) -> None:
        self._count, self._width = len(task.labels), len(codes.codes[0])
        self._label_of: dict[str, int] = {}
        forms = [[code.casefold() for code in codes.codes]]
        forms += [[label.casefold() for label in task.labels]]
        forms += [[name_to_words(label).casefold() for label in task.labels]]
        if all(len(task.verbalizers[0].words[label]) == 1 for label in task.labels):
            forms += [[task.verbalizers[0].words[label][0].casefold() for label in task.labels]]
        for names in forms:  # a code goes before a name, and a name before a word
            for index, name in enumerate(names):
                if names.count(name) == 1:
                    self._label_of.setdefault(name, index)
        self._names = [name for name in self._label_of if name not in forms[0]]
        longest_first = sorted(self._names, key=len, reverse=True)
        self._any_name = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest_first) or r"(?!)")
        self._any_code = "|".join(re.escape(code) for code in forms[0])

    def label(self, text: str) -> int | None:
        """The label that an answer names, or None where it names none, or several."""
        text = _REASONING.sub("", text).casefold().strip()
        bare = text.strip(_EDGES)
        if bare in self._label_of:
            return self._label_of[bare]
        if bare.isdecimal() and (number := bare.lstrip("0").zfill(self._width)) in self._label_of:
            return self._label_of[number]
        # "2. sports", "(b) sports", "b: sports"; "a good one" is no letter
        first = re.match(rf"\W*({self._any_code})(?=\s*[.):\]\n*\"'-]|\s*\Z)", text)
        if first:
            return self._label_of[first[1]]
        named = {self._label_of[name] for name in self._any_name.findall(text)}
        if not named:
            named = {self._label_of[code] for code in re.findall(rf"{_STATED}({self._any_code})(?!\w)", text)}
        return named.pop() if len(named) == 1 else None

    def probabilities(self, answer: Answer) -> NDArray[np.float64] | None:
        """Probabilities of the labels from an answer's tokens; None where the answer is no label.

        Each token in the place of a generated one adds its probability to the label that the answer would name with it.
        A token with which several labels begin is shared among them, unless it is the generated one: then the next
        tokens tell. A label that is in none of the lists has at most the probability of the last token in the list
        and an equal share of what the lists leave; it gets the smaller of the two. (labels,)
        """
        mass, rest, last = np.zeros(self._count), 1.0, 1.0
        prefix, reach = "", 1.0  # what was generated so far, without marks around it, and its probability
        for token in answer.tokens or ():
            top = dict(token.top)
            top.setdefault(token.text, math.log(SMALLEST))
            generated = None
            for text, logprob in top.items():
                start = _clean(prefix + text)
                probability = reach * math.exp(logprob)
                rest -= probability
                last = min(last, probability)
                labels = self._labels_from(start)
                if text == token.text and (start == "" or len(labels) > 1):
                    generated = probability, start
                elif start and labels:
                    mass[labels] += probability / len(labels)
            if generated is None:
                break
            reach, prefix = generated
            rest += reach
        if mass.sum() < LEAST_MASS:
            label = self.label(answer.text)
            return None if label is None else vote_fractions([label], self._count)
        unseen = mass <= 0
        if unseen.any():
            mass[unseen] = max(min(last, max(rest, 0.0) / unseen.sum()), SMALLEST)
        normalized: NDArray[np.float64] = mass / mass.sum()
        return normalized

    def _labels_from(self, text: str) -> list[int]:
        """The label that a text names, or those whose codes or names begin with it."""
        if text in self._label_of:
            return [self._label_of[text]]
        return sorted({label for name, label in self._label_of.items() if name.startswith(text)})


def _clean(text: str) -> str:
    """The start of an answer without quotation marks, brackets and the like around it."""
    return text.casefold().strip(_EDGES)


def vote_fractions(labels: Iterable[int | None], count: int) -> NDArray[np.float64] | None:
    """The share of each label among the answers that name one; None where none does: (labels,)."""
    counts = np.zeros(count)
    for label in labels:
        if label is not None:
            counts[label] += 1
    return counts / counts.sum() if counts.any() else None


def to_log(probabilities: Sequence[NDArray[np.float64] | None], count: int) -> NDArray[np.float32]:
    """Log-probabilities, NaN where there are none: (rows, labels)."""
    scores = np.full((len(probabilities), count), np.nan, dtype=np.float32)
    with np.errstate(divide="ignore"):
        for index, values in enumerate(probabilities):
            if values is not None:
                scores[index] = np.log(values)
    return scores
