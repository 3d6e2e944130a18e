"""What a model makes of a draft: which words are one token, what each pattern answers on some rows, who agrees.

In: a draft, a model and a few rows. Out: a `Look`. A pattern is scored again only when it, the words or the rows
change, so that an answer follows a keystroke.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.pattern import Pattern
from clozify.config.task import Verbalizer
from clozify.data.rows import Rows
from clozify.errors import ClozifyError, quoted
from clozify.methods.score import score_rows
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import compile_task, near_words, top_words
from clozify.prompts.encode import Template, compile_pattern
from clozify.prompts.verbalizer import SplitWord, verbalize
from clozify.studio.draft import Draft, Problems

MAX_LENGTH = 64  # tokens of a row that are read here, as by the recipe `quick`
FEW = 4  # rows that the model's own words come from
KEPT = 256  # answers that are remembered


@dataclass(frozen=True)
class Split:
    """A word that the model reads in pieces, and words near it that are whole."""

    word: str
    pieces: list[str]
    near: list[str]


@dataclass
class Look:
    """What was found; there are probabilities once a pattern is right and every label has a word that is one token."""

    labels: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=dict)
    split: dict[str, list[Split]] = field(default_factory=dict)  # label -> its words that are not one token
    own: dict[int, list[str]] = field(default_factory=dict)  # place of a pattern -> what the model would say by itself
    patterns: list[int] = field(default_factory=list)  # places of the patterns that were asked
    probabilities: NDArray[np.float64] | None = None  # (patterns, rows, labels)
    together: NDArray[np.float64] | None = None  # (rows, labels): raw scores averaged, then softmax

    @property
    def predictions(self) -> NDArray[np.int64]:
        """Each pattern's answer as a place in `labels`: (patterns, rows)."""
        assert self.probabilities is not None
        return np.asarray(self.probabilities.argmax(axis=-1))

    def agreement(self) -> NDArray[np.float64]:
        """The share of rows on which two patterns answer alike: (patterns, patterns)."""
        found = self.predictions
        return np.asarray((found[:, None] == found[None]).mean(axis=-1))

    def accuracy(self, truth: NDArray[np.int16]) -> tuple[list[float], float] | None:
        """Each pattern's share of right answers and that of all together; `truth` is NO_LABEL where nobody knows."""
        known = truth >= 0
        if self.together is None or not known.any():
            return None
        each = [float((found[known] == truth[known]).mean()) for found in self.predictions]
        return each, float((self.together.argmax(axis=-1)[known] == truth[known]).mean())


class Looker:
    """A model that looks at drafts and remembers what it has answered."""

    def __init__(self, model: ClozeModel) -> None:
        self.model = model
        self._scores: OrderedDict[object, NDArray[np.float64]] = OrderedDict()
        self._near: dict[tuple[str, str], list[str]] = {}
        self._said: dict[object, list[str]] = {}

    def look(self, draft: Draft, rows: Rows | None, of_rows: object = None) -> Look:
        """Everything at once. `of_rows` names the rows: the same name, the same rows."""
        found = Look(labels=draft.labels, problems=draft.problems())
        right = [place for place, _ in enumerate(draft.patterns) if f"pattern {place}" not in found.problems]
        if not draft.fields:
            return found
        labels_right = not any(place.startswith("label") for place in found.problems)
        templates = {place: compile_pattern(Pattern(draft.patterns[place]), self.model.tokenizer) for place in right}
        whole = self._whole_words(draft, templates, found)
        for place, template in templates.items():
            found.own[place] = self._own(template, rows, (tuple(draft.fields), of_rows))
        if rows is None or not labels_right or "labels" in found.problems or not all(whole.values()):
            return found
        scores = []
        for place in right:
            try:
                scores.append(self._score(draft, draft.patterns[place], whole, rows, of_rows))
                found.patterns.append(place)
            except ClozifyError as error:
                found.problems.setdefault(f"pattern {place}", []).extend(error.problems)
        if scores:
            found.probabilities = softmax(np.stack(scores), axis=-1)
            found.together = softmax(np.mean(scores, axis=0), axis=-1)
        return found

    def _whole_words(self, draft: Draft, templates: dict[int, Template], found: Look) -> dict[str, tuple[str, ...]]:
        """Each label's words that are one token in every pattern; the others are noted."""
        split: dict[tuple[str, str], tuple[SplitWord, Template]] = {}
        for template in templates.values():
            _, words, errors, _ = verbalize(self.model.tokenizer, template, Verbalizer(words=draft.given))
            for word in words:
                split.setdefault((word.label, word.word), (word, template))
            for error in errors:
                sentence = f"{error[0].upper()}{error[1:]}."
                if sentence not in found.problems.setdefault("labels", []):
                    found.problems["labels"].append(sentence)
        for (label, text), (word, template) in split.items():
            if (key := (text, template.pattern.text)) not in self._near:
                self._near[key] = near_words(self.model, template, text, None, draft.given.values())
            found.split.setdefault(label, []).append(Split(text, word.pieces, self._near[key]))
            place = draft.labels.index(label)
            sentence = (
                f"{str(word)[0].upper()}{str(word)[1:]}; near words that are one token: {quoted(self._near[key])}."
            )
            named = [place for place, (name, _) in enumerate(draft.words) if name.strip()]
            found.problems.setdefault(f"label {named[place]}", []).append(sentence)
        return {
            label: tuple(word for word in words if (label, word) not in split) for label, words in draft.given.items()
        }

    def _own(self, template: Template, rows: Rows | None, of_rows: object) -> list[str]:
        """The words that the model itself would put in the mask's place."""
        key = (template.pattern.text, of_rows)
        if rows is None or key not in self._said:
            few = None if rows is None else rows.select(range(min(FEW, len(rows))))
            self._said[key] = top_words(self.model, template, few)
        return self._said[key]

    def _score(
        self, draft: Draft, pattern: str, words: dict[str, tuple[str, ...]], rows: Rows, of_rows: object
    ) -> NDArray[np.float64]:
        """One pattern's raw scores: (rows, labels)."""
        key = (pattern, tuple(words.items()), tuple(draft.fields), of_rows)
        if of_rows is None or key not in self._scores:
            task = draft.task([pattern], words)
            seen = rows.with_task(task)
            parts = [part[0] for _, part in score_rows(self.model, compile_task(self.model, task), seen, MAX_LENGTH)]
            self._scores[key] = np.concatenate(parts).astype(np.float64)
        self._scores.move_to_end(key)
        if len(self._scores) > KEPT:
            self._scores.popitem(last=False)
        return self._scores[key]
