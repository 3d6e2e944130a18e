"""Teachers besides the patterns: their scores of the run's rows, and the combination of all votes (docs/teachers.md).

The scores of a teacher are a job's results, like those of a member, so a run that resumes asks none of them again. They
are scored in the run's main process. A teacher that cannot score all rows comes last and is asked about the rows that
the others are least sure of.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.rows import Rows, chunk_rows
from clozify.errors import quoted
from clozify.methods.combination import CombinedScores, TeacherWeight, combine_votes, fit_weights
from clozify.methods.ensemble import Ensemble
from clozify.methods.fitted_rows import fitted_rows
from clozify.methods.votes import LabeledScores, OnLabeled, Votes, coverage, hard_votes
from clozify.metrics import accuracy
from clozify.pipeline.run import Run
from clozify.runs.keys import data_inputs, hash_key, job_key
from clozify.runs.metrics import TeacherMetrics
from clozify.runs.records import LABELED_SCORES, TEST_SCORES, UNLABELED_SCORES, EnsembleTeacher, Member
from clozify.runs.results import ANSWERS, jobs_folder
from clozify.teachers.base import (
    PATTERNS,
    ScoringContext,
    Teacher,
    abstentions,
    by_row_limit,
    learns_from_labeled,
    row_limit,
    silent_warnings,
)
from clozify.utils.checked_files import open_npy
from clozify.utils.npy import create_npy

CROSS_FITTING_FOLDS = 5
VOTES_BEFORE_TRAINING = 5  # a fine-tuned pattern's accuracy before training counts as so many votes at most


@dataclass(frozen=True)
class ScoredTeacher:
    """A teacher whose scores are in a folder."""

    teacher: Teacher
    folder: Path

    def scores(self, file: str) -> NDArray[np.float32]:
        """Its log-probabilities of the unlabelled, test or labelled rows, (rows, labels)."""
        return open_npy(self.folder / file)

    def on_labeled(self, labeled: Rows) -> OnLabeled:
        """How many of its votes on T are right."""
        if not len(labeled):
            return OnLabeled()
        return OnLabeled.of(self.scores(LABELED_SCORES), labeled.labels)

    def votes(self, scores: NDArray[Any], labeled: Rows, of_all: float | None = None) -> Votes:
        """Its votes with these scores, (rows, labels), and those on T; `of_all` is the fraction of all rows."""
        on_labeled = LabeledScores(self.scores(LABELED_SCORES), labeled.labels) if len(labeled) else None
        return Votes(scores, (self.on_labeled(labeled),), coverage=of_all, labeled=on_labeled)


@dataclass(frozen=True)
class PatternVotes:
    """The patterns of a model as one teacher: members, with the paper's weights, and the votes of each on T."""

    name: str
    members: Sequence[Member]
    weights: Sequence[float]
    on_labeled: Sequence[OnLabeled]

    def ensemble(self, file: str) -> Ensemble:
        """s_M of the unlabelled or the test rows."""
        return Ensemble([open_npy(member.folder / file) for member in self.members], self.weights)


@dataclass(frozen=True)
class Combination:
    """All teachers of a run with their weights, the patterns first."""

    patterns: Sequence[PatternVotes]
    teachers: Sequence[ScoredTeacher]
    weights: Sequence[TeacherWeight]

    @property
    def names(self) -> list[str]:
        """The teachers' names."""
        return [patterns.name for patterns in self.patterns] + [scored.teacher.name for scored in self.teachers]

    @property
    def kinds(self) -> list[str]:
        """What kind of teacher each is."""
        return [PATTERNS] * len(self.patterns) + [scored.teacher.kind for scored in self.teachers]

    def members(self) -> tuple[list[Member], list[float]]:
        """The members of all models and their weights, each among its model's own."""
        return (
            [member for patterns in self.patterns for member in patterns.members],
            [weight for patterns in self.patterns for weight in patterns.weights],
        )

    def with_patterns(self, patterns: Ensemble) -> CombinedScores:
        """s of the unlabelled rows with some members of a single model in the place of all."""
        return CombinedScores([patterns, *(scored.scores(UNLABELED_SCORES) for scored in self.teachers)], self.weights)

    def scores(self, file: str) -> CombinedScores:
        """s of the unlabelled or the test rows."""
        of_teachers = [scored.scores(file) for scored in self.teachers]
        return CombinedScores([*(patterns.ensemble(file) for patterns in self.patterns), *of_teachers], self.weights)

    def of_labeled(self, patterns: NDArray[Any]) -> NDArray[np.float64]:
        """s of T with these scores of the first model's patterns, (rows, labels); further models abstain."""
        none = [abstentions(*patterns.shape)] * (len(self.patterns) - 1)
        return combine_votes([patterns, *none, *(t.scores(LABELED_SCORES) for t in self.teachers)], self.weights)

    def records(self) -> list[EnsembleTeacher]:
        """The teachers in `ensemble.json`."""
        return [
            EnsembleTeacher(
                name=name, kind=kind, weight=weight.weight, temperature=weight.temperature, offsets=weight.offsets
            )
            for name, kind, weight in zip(self.names, self.kinds, self.weights, strict=True)
        ]


def pattern_votes(
    run: Run, members: Sequence[Member], weights: Sequence[float], before_training: Sequence[float] | None
) -> PatternVotes:
    """The members as one teacher; `before_training` is the accuracy of each pair on T."""
    rows = len(run.plan.labeled)
    on_labeled = [
        OnLabeled() if before_training is None else OnLabeled(rows, rows * before_training[member.pair])
        for member in members
    ]
    return PatternVotes(PATTERNS, members, weights, [on.at_most(VOTES_BEFORE_TRAINING) for on in on_labeled])


class OtherTeachers:
    """The teachers of a run besides its patterns; they score the rows when they are first combined with patterns."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._scored: list[ScoredTeacher] | None = None

    def __bool__(self) -> bool:
        return bool(self.run.teachers)

    def combine(self, patterns: Sequence[PatternVotes]) -> Combination:
        """All teachers with their weights.

        The first patterns decide which rows a teacher is asked about that cannot score all, so that those of iPET's
        later generations cost no further answers.
        """
        if self._scored is None:
            self._scored = self._score_all(patterns)
        return _weigh(self.run, patterns, self._scored)

    def _score_all(self, patterns: Sequence[PatternVotes]) -> list[ScoredTeacher]:
        run, scored = self.run, list[ScoredTeacher]()
        for teacher in by_row_limit(run.teachers):
            uncertainty = None
            if _is_limited(teacher) and run.plan.unlabeled is not None:
                uncertainty = _uncertainty(_weigh(run, patterns, scored), len(run.plan.task.labels))
            scored.append(_score(run, teacher, uncertainty))
        return scored


def _weigh(run: Run, patterns: Sequence[PatternVotes], scored: Sequence[ScoredTeacher]) -> Combination:
    return Combination(patterns, scored, fit_weights(_votes(run, patterns, scored)))


def _votes(run: Run, patterns: Sequence[PatternVotes], scored: Sequence[ScoredTeacher]) -> list[Votes]:
    """The votes that weights are fitted on: those on unlabelled rows or, without any, on T."""
    plan, labels = run.plan, len(run.plan.task.labels)
    if plan.unlabeled is None:  # a fine-tuned pattern's votes on T say nothing
        none = np.full((len(plan.labeled), labels), np.nan)
        return [Votes(none, tuple(of.on_labeled), (none,) * len(of.members)) for of in patterns] + [
            teacher.votes(teacher.scores(LABELED_SCORES), plan.labeled) for teacher in scored
        ]
    others = [teacher.scores(UNLABELED_SCORES) for teacher in scored]
    rows, votes = fitted_rows(len(plan.unlabeled), others), list[Votes]()
    for of in patterns:
        ensemble = of.ensemble(UNLABELED_SCORES)
        votes.append(
            Votes(ensemble[rows], tuple(of.on_labeled), tuple(np.asarray(scores[rows]) for scores in ensemble.scores))
        )
    return votes + [
        teacher.votes(np.asarray(scores[rows]), plan.labeled, coverage(scores))
        for teacher, scores in zip(scored, others, strict=True)
    ]


def _uncertainty(combination: Combination, labels: int) -> NDArray[np.float64]:
    """The entropy of the combined probabilities of each unlabelled row."""
    from scipy.stats import entropy  # imported here, since workers import this module and it takes a second

    chunks = combination.scores(UNLABELED_SCORES).chunks(chunk_rows(labels))
    return np.concatenate([entropy(softmax(chunk, axis=-1), axis=-1) for _, chunk in chunks])


def _score(run: Run, teacher: Teacher, uncertainty: NDArray[np.float64] | None) -> ScoredTeacher:
    """The teacher's scores of the run's rows; those of T by cross-fitting, where they depend on it."""
    plan, folder = run.plan, run.folder
    order = None if uncertainty is None else hash_key(order=np.argsort(-uncertainty, kind="stable").tolist())
    words = plan.task.verbalizers[0].words  # in prompts and hypotheses
    key = job_key("teacher", kind=teacher.kind, teacher=teacher.key(), words=words, data=data_inputs(plan), order=order)
    scored = ScoredTeacher(teacher, folder.job_path("teachers", key))
    if folder.has_job("teachers", key, run.context.log):
        run.context.log(f"teacher {teacher.name}  already done")
        return scored
    with folder.writing("teachers", key) as tmp_path:
        if len(plan.labeled):
            np.save(tmp_path / LABELED_SCORES, _cross_fit(run, teacher))
        context = _context(run, plan.labeled, uncertainty)
        if plan.unlabeled is not None:
            np.save(tmp_path / UNLABELED_SCORES, teacher.score(plan.unlabeled, context))
        if plan.test is not None:
            if not _is_limited(teacher):
                scores = teacher.score(plan.test, _context(run, plan.labeled))
            else:  # who limits the rows does not pay for test rows
                scores = abstentions(len(plan.test), len(plan.task.labels))
            np.save(tmp_path / TEST_SCORES, scores)
        (tmp_path / "teacher.json").write_text(json.dumps(teacher.key(), indent=2), encoding="utf-8")
    votes = hard_votes(scored.scores(UNLABELED_SCORES)) if plan.unlabeled is not None else np.empty(0)
    run.context.log(f"teacher {teacher.name}  votes on {(votes >= 0).sum():,} of {len(votes):,} unlabelled rows")
    return scored


def _context(run: Run, labeled: Rows, uncertainty: NDArray[np.float64] | None = None) -> ScoringContext:
    cache = jobs_folder(run.results) / ANSWERS
    return ScoringContext(labeled, run.context.device, cache, run.context.log, uncertainty)


def _cross_fit(run: Run, teacher: Teacher) -> NDArray[np.float32]:
    """The teacher's scores of T; where they depend on T, each row's without the row."""
    from sklearn.model_selection import KFold  # see `_uncertainty`

    labeled = run.plan.labeled
    if not learns_from_labeled(teacher) or len(labeled) < 2:
        return teacher.score(labeled, _context(run, labeled))
    scores = np.empty((len(labeled), len(run.plan.task.labels)), dtype=np.float32)
    folds = KFold(min(CROSS_FITTING_FOLDS, len(labeled)), shuffle=True, random_state=run.plan.recipe.seed)
    for kept, held_out in folds.split(np.arange(len(labeled))):
        scores[held_out] = teacher.score(labeled.select(held_out), _context(run, labeled.select(kept)))
    return scores


def write_combined(run: Run, combination: Combination) -> Member:
    """Write the combined scores of the unlabelled and the test rows as those of a single member."""
    plan, folder = run.plan, run.folder
    key = job_key(
        "combined",
        members=[member.key for patterns in combination.patterns for member in patterns.members],
        pattern_weights=[list(patterns.weights) for patterns in combination.patterns],
        teachers=[scored.folder.name for scored in combination.teachers],
        weights=[vars(weight) for weight in combination.weights],
    )
    member = Member(0, plan.recipe.seed, folder.job_path("combined", key), plan.unlabeled is not None)
    if folder.has_job("combined", key):
        return member
    with folder.writing("combined", key) as tmp_path:
        for file, rows in ((UNLABELED_SCORES, plan.unlabeled), (TEST_SCORES, plan.test)):
            if rows is not None:
                stored = create_npy(tmp_path / file, np.float32, (len(rows), len(plan.task.labels)))
                for start, scores in combination.scores(file).chunks(chunk_rows(len(plan.task.labels))):
                    stored[start : start + len(scores)] = scores
                del stored  # closes the file before it is moved
    return member


def teacher_metrics(run: Run, combination: Combination) -> list[TeacherMetrics]:
    """What each teacher covers, how often it is right and contradicted, and what it adds."""
    plan = run.plan
    if plan.test is not None and (limited := [t.teacher.name for t in combination.teachers if _is_limited(t.teacher)]):
        run.context.warn(_without_limited(limited, plan.is_distilled))
    on_labeled = [OnLabeled()] * len(combination.patterns) + [
        scored.on_labeled(plan.labeled) for scored in combination.teachers
    ]
    if plan.unlabeled is not None:
        weighted = zip(combination.names, combination.weights, strict=True)
        for warning in silent_warnings([name for name, weight in weighted if not weight.coverage], "the unlabelled"):
            run.context.warn(warning)
    conflicts = _conflicts(combination) if plan.unlabeled is not None else [None] * len(on_labeled)
    on_test = _on_test(run, combination) if plan.test is not None else [{} for _ in on_labeled]
    metrics = []
    for index, (name, kind, weight) in enumerate(
        zip(combination.names, combination.kinds, combination.weights, strict=True)
    ):
        on = on_labeled[index]
        metrics.append(
            TeacherMetrics(
                name=name,
                kind=kind,
                weight=weight.weight,
                estimated_accuracy=weight.accuracy,
                coverage=weight.coverage if plan.unlabeled is not None else None,
                votes_on_labeled=None if kind == PATTERNS else int(on.votes),
                correct_on_labeled=None if kind == PATTERNS else int(on.correct),
                conflicts=conflicts[index],
                **on_test[index],
            )
        )
    return metrics


def _is_limited(teacher: Teacher) -> bool:
    """Whether a teacher is asked about some rows only, and so not about test rows."""
    return row_limit(teacher) is not None


def _without_limited(names: Sequence[str], is_distilled: bool) -> str:
    """A sentence about teachers that do not vote on the test rows."""
    verb, its = ("is", "its") if len(names) == 1 else ("are", "their")
    classifier = f" The classifier's figures are those of all: it has learnt from {its} votes." if is_distilled else ""
    return (
        f"{quoted(names)} {verb} asked about a limited number of rows and not about test rows, so the ensemble's "
        f"figures on them lack {its} votes, and {its} gain is not known.{classifier}"
    )


def _conflicts(combination: Combination) -> list[float | None]:
    """Of each teacher's votes on unlabelled rows the fraction that differs from the combined label."""
    combined, votes, differ = combination.scores(UNLABELED_SCORES), [], []
    for start, scores in combined.chunks():
        labels, rows = scores.argmax(axis=-1), slice(start, start + len(scores))
        of_teachers = [hard_votes(of_teacher[rows]) for of_teacher in combined.scores]
        votes.append([int((of >= 0).sum()) for of in of_teachers])
        differ.append([int(((of >= 0) & (of != labels)).sum()) for of in of_teachers])
    totals, different = np.sum(votes, axis=0), np.sum(differ, axis=0)
    return [None if not total else float(count / total) for total, count in zip(totals, different, strict=True)]


def _on_test(run: Run, combination: Combination) -> list[dict[str, float | None]]:
    """Each teacher's accuracy on the test rows where it votes, and what the combination loses without it.

    There is no gain of a teacher without a vote on them.
    """
    assert run.plan.test is not None
    truth = run.plan.test.labels
    scores = [np.asarray(of[:]) for of in combination.scores(TEST_SCORES).scores]
    votes = _votes(run, combination.patterns, combination.teachers)
    whole = accuracy(truth, combine_votes(scores, combination.weights).argmax(axis=-1))
    results = list[dict[str, float | None]]()
    for index, of_teacher in enumerate(map(hard_votes, scores)):
        voted, gain = of_teacher >= 0, None
        if len(scores) > 1 and voted.any():
            others = [other for other in range(len(scores)) if other != index]
            weights = fit_weights([votes[other] for other in others])
            without = combine_votes([scores[other] for other in others], weights).argmax(axis=-1)
            gain = whole - accuracy(truth, without)
        right = accuracy(truth[voted], of_teacher[voted]) if voted.any() else None
        results.append({"accuracy": right, "gain": gain})
    return results
