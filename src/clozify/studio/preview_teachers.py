"""What the teachers besides the patterns answer on the rows on display, combined as by `clozify zero-shot`.

Rules, classifiers and NLI models vote as soon as the rows are shown. An LLM costs money: it is asked when the user says
so, and until then its cost is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import entropy

from clozify.config.task import Task
from clozify.config.teachers import ClassifierEntry, ModelEntry, OpenAIEntry, TeacherEntry
from clozify.data.rows import Rows
from clozify.errors import ClozifyError
from clozify.methods.combination import TeacherWeight, combine_votes, fit_weights, log_probabilities
from clozify.methods.votes import OnLabeled, Votes, hard_votes
from clozify.runs.plan import empty_rows
from clozify.teachers.base import PATTERNS, Cost, ScoringContext
from clozify.teachers.build import build_teachers
from clozify.teachers.openai import OpenAITeacher
from clozify.teachers.rules import rule_teachers
from clozify.utils.user_cache import user_cache

MAX_CACHED_VOTES = 256
ModelScores = Callable[[ModelEntry], NDArray[np.floating]]  # (rows, labels) of the patterns with a further model


@dataclass(frozen=True)
class TeacherAnswers:
    """A teacher's votes on the rows on display, and what they count for."""

    name: str
    kind: str
    scores: NDArray[np.floating]  # (rows, labels), NaN in rows on which it abstains
    weight: TeacherWeight

    @property
    def votes(self) -> NDArray[np.int64]:
        """The label that it votes for in each row, -1 where it abstains: (rows,)."""
        return hard_votes(self.scores)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Its probabilities of the labels, as it gives them, (rows, labels); meaningless where it abstains."""
        return np.exp(log_probabilities(self.scores))

    def accuracy(self, truth: NDArray[np.int16]) -> float | None:
        """How often it is right on rows with a label where it votes; None where there are none."""
        votes = self.votes
        counted = (votes >= 0) & (truth >= 0)
        return float((votes[counted] == truth[counted]).mean()) if counted.any() else None


@dataclass(frozen=True)
class UnaskedTeacher:
    """A teacher that costs money and was not asked about the rows on display."""

    entry: OpenAIEntry
    task: Task
    rows: Rows
    uncertainty: NDArray[np.float64]  # (rows,): those come first
    cost: Cost  # of asking about all rows, or as many as its entry allows
    key: object  # of its votes

    @property
    def name(self) -> str:
        """Its name in the table."""
        return self.entry.name or self.entry.model

    @property
    def sentence(self) -> str:
        """What it would cost."""
        return (
            f"{self.name} at {self.entry.base_url} was not asked about these rows. That takes {self.cost.requests:,} "
            f"requests, {describe_cost(self.cost)}."
        )


def describe_cost(cost: Cost) -> str:
    """The tokens of some requests and, with prices, what they cost."""
    price = "" if cost.price is None else f", {cost.price:,.4f} at the prices of the task file"
    return f"about {cost.input_tokens + cost.output_tokens:,} tokens{price}"


@dataclass
class CombinedAnswers:
    """All teachers on the rows on display."""

    teachers: list[TeacherAnswers] = field(default_factory=list)  # the patterns first; empty where they are alone
    ensemble: NDArray[np.float64] | None = None  # (rows, labels): their combined probabilities; None for patterns
    unasked: list[UnaskedTeacher] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what teachers log
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def naming_problems(self) -> Iterator[None]:
        """An error within the block is a problem of the result."""
        try:
            yield
        except ClozifyError as error:
            self.problems += error.problems


@dataclass(frozen=True)
class KeptVotes:
    """A teacher's scores of some rows, (rows, labels), and what it logged about them."""

    scores: NDArray[np.floating]
    notes: tuple[str, ...]


class PreviewTeachers:
    """Scores rows with a draft's teachers and keeps their votes.

    Models are named relative to `folder`, the project's, in which its commands run.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.device, self.folder = device, folder
        self._votes: dict[object, KeptVotes] = {}

    def combine(
        self, task: Task, rows: Rows, rows_key: object, patterns: NDArray[np.float64], model_scores: ModelScores
    ) -> CombinedAnswers:
        """The votes of all teachers and their combination; `patterns` are the scores of each, (patterns, rows, labels).

        A teacher that cannot be used is left out and a problem.
        """
        result, rows = CombinedAnswers(), rows.with_task(task)
        named = [(PATTERNS, PATTERNS, np.asarray(patterns.mean(axis=0)))]
        entries = [self._at_folder(entry) for entry in task.teachers]
        for rule in rule_teachers(task):
            with result.naming_problems():
                named.append((rule.name, rule.kind, rule.score(rows, self._context(task, result.notes))))
        for entry in entries:
            with result.naming_problems():
                if isinstance(entry, ModelEntry):
                    named.append((entry.title, entry.kind, model_scores(entry)))
                elif (votes := self._kept_votes(entry, task, rows, rows_key)) is not None:
                    named.append((entry.name or entry.model, entry.kind, votes.scores))
                    result.notes += votes.notes
        if len(named) > 1:
            scores = [of for _, _, of in named]
            weights = fit_weights(_as_votes(patterns, scores))
            result.ensemble = softmax(combine_votes(scores, weights), axis=-1)
            result.teachers = [TeacherAnswers(*each, weight) for each, weight in zip(named, weights, strict=True)]
        uncertainty = entropy(softmax(named[0][2], axis=-1) if result.ensemble is None else result.ensemble, axis=-1)
        result.unasked = self._unasked(entries, task, rows, rows_key, uncertainty)
        return result

    def ask(self, unasked: Sequence[UnaskedTeacher], budget: str | None) -> None:
        """Ask these teachers within a budget for all of them, and keep their votes.

        The answers are kept in the user's cache, as those of `clozify zero-shot`.
        """
        if not unasked:
            return
        task = _with_entries(unasked[0].task, [each.entry for each in unasked])
        for each, teacher in zip(unasked, build_teachers(task, budget=budget), strict=True):
            notes = list[str]()
            context = replace(self._context(each.task, notes), uncertainty=each.uncertainty)
            self._keep(each.key, teacher.score(each.rows, context), notes)

    def _unasked(
        self,
        entries: Sequence[TeacherEntry],
        task: Task,
        rows: Rows,
        rows_key: object,
        uncertainty: NDArray[np.float64],
    ) -> list[UnaskedTeacher]:
        unasked = []
        for entry in entries:
            key = _votes_key(entry, task, rows_key)
            if isinstance(entry, OpenAIEntry) and key not in self._votes:
                cost = OpenAITeacher(entry, task).cost(rows, empty_rows(task))
                unasked.append(UnaskedTeacher(entry, task, rows, uncertainty, cost, key))
        return unasked

    def _at_folder(self, entry: TeacherEntry) -> TeacherEntry:
        """The entry with the path of its model, where that is a folder or file of the project."""
        if self.folder is None or isinstance(entry, OpenAIEntry) or not (path := self.folder / entry.model).exists():
            return entry
        name = entry.title if isinstance(entry, ModelEntry) else entry.name or entry.model
        return entry.model_copy(update={"model": str(path), "name": name})

    def _kept_votes(self, entry: TeacherEntry, task: Task, rows: Rows, rows_key: object) -> KeptVotes | None:
        """The votes of a classifier, an NLI model or an LLM; None of an LLM that was not asked."""
        key = _votes_key(entry, task, rows_key)
        if key not in self._votes and not isinstance(entry, OpenAIEntry):
            (teacher,), notes = build_teachers(_with_entries(task, [entry])), list[str]()
            self._keep(key, teacher.score(rows, self._context(task, notes)), notes)
        return self._votes.get(key)

    def _keep(self, key: object, scores: NDArray[np.floating], notes: Sequence[str]) -> None:
        self._votes[key] = KeptVotes(scores, tuple(notes))
        if len(self._votes) > MAX_CACHED_VOTES:
            del self._votes[next(iter(self._votes))]

    def _context(self, task: Task, notes: list[str]) -> ScoringContext:
        """As that of `clozify zero-shot`, which has no labelled rows either; so both use the same answers."""
        return ScoringContext(empty_rows(task), self.device, user_cache() / "answers", notes.append)


def llm_costs(task: Task, rows: Rows, count: int) -> list[tuple[str, Cost]]:
    """The name of each LLM of a task, and what asking about so many rows like these costs, with examples from T."""
    costs = list[tuple[str, Cost]]()
    if not len(rows) or not count:
        return costs
    repeated = rows.with_task(task).select(np.resize(np.arange(len(rows)), count))
    for entry in task.teachers:
        if isinstance(entry, OpenAIEntry):
            teacher = OpenAITeacher(entry, task)
            costs.append((teacher.name, teacher.cost(repeated)))
    return costs


def _with_entries(task: Task, entries: Sequence[TeacherEntry]) -> Task:
    """The task with these teachers alone."""
    return task.model_copy(update={"rules": [], "teachers": list(entries)})


def _votes_key(entry: TeacherEntry, task: Task, rows_key: object) -> object:
    """What a teacher's votes depend on; a classifier's do not on words, which change while the user types."""
    words = () if isinstance(entry, ClassifierEntry) else tuple(task.verbalizers[0].words.items())
    return (entry.model_dump_json(), task.description, tuple(task.fields), tuple(task.labels), words, rows_key)


def _as_votes(patterns: NDArray[np.float64], scores: Sequence[NDArray[np.floating]]) -> list[Votes]:
    nothing = OnLabeled()  # nothing is known of the rows' labels
    own = Votes(scores[0], (nothing,) * len(patterns), tuple(patterns))
    return [own, *(Votes(of, (nothing,)) for of in scores[1:])]
