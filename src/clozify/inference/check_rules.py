"""What the rules of a task do on data: coverage, correct votes and conflicts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import NO_LABEL, Rows
from clozify.errors import quoted
from clozify.runs.metrics import Record
from clozify.teachers.rules import match_rules, rule_teachers

MAX_ROWS = 100_000  # that rules are tried on, so that a check takes seconds
MIN_VOTES = 3  # on labelled rows; of fewer, their accuracy says too little


class RuleCheck(Record):
    """A rule on the data."""

    rule: str
    label: str
    rows: int  # on which it votes
    coverage: float  # their fraction of all rows
    labeled: int | None  # labelled rows among them; None where the data has no labels
    correct: int | None  # of these
    conflicts: int  # rows on which another rule votes for another label
    conflicts_with: str | None  # the rule that contradicts it most often


class RulesCheck(Record):
    """All rules of a task on the data."""

    rows: int  # that the rules were tried on
    covered: int  # rows with at least one vote
    coverage: float
    conflicting: int  # rows with votes for different labels
    rules: list[RuleCheck]
    warnings: list[str]


def check_rules(rows: Rows) -> RulesCheck | None:
    """The rules of the rows' task on these rows; of very many rows, on evenly spaced ones. None without rules."""
    if not rows.task.rules:
        return None
    warnings = list[str]()
    if len(rows) > MAX_ROWS:
        warnings.append(f"The rules were tried on {MAX_ROWS:,} of {len(rows):,} rows, evenly spaced.")
        rows = rows.select(np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64))
    teachers = rule_teachers(rows.task)
    matches = match_rules(teachers, rows, warnings.append)  # (rules, rows)
    truth = rows.labels if rows.has_labels else None
    voted = np.array([rows.task.labels.index(teacher.rule.label) for teacher in teachers])  # (rules,)
    other_votes = _other_votes(matches, voted)
    both_vote = matches.astype(np.float32) @ matches.T  # (rules, rules): the number of rows; exact below 2^24
    contradictions = np.where(voted == voted[:, None], 0, both_vote)
    names, rules = [teacher.name for teacher in teachers], list[RuleCheck]()
    for index, teacher in enumerate(teachers):
        labeled = None if truth is None else truth[matches[index] & (truth != NO_LABEL)]
        rules.append(
            RuleCheck(
                rule=teacher.name,
                label=teacher.rule.label,
                rows=int(matches[index].sum()),
                coverage=_fraction(matches[index]),
                labeled=None if labeled is None else len(labeled),
                correct=None if labeled is None else int((labeled == voted[index]).sum()),
                conflicts=int((matches[index] & other_votes[voted[index]]).sum()),
                conflicts_with=_most_frequent(names, contradictions[index]),
            )
        )
    covered = np.logical_or.reduce(matches)
    conflicting = np.logical_or.reduce([matches[index] & other_votes[label] for index, label in enumerate(voted)])
    return RulesCheck(
        rows=len(rows),
        covered=int(covered.sum()),
        coverage=_fraction(covered),
        conflicting=int(conflicting.sum()),
        rules=rules,
        warnings=warnings + _rule_warnings(rules, rows, truth),
    )


def _fraction(mask: NDArray[np.bool_]) -> float:
    return float(mask.mean()) if len(mask) else 0.0


def _most_frequent(names: list[str], counts: NDArray[np.float32]) -> str | None:
    return names[int(counts.argmax())] if counts.any() else None


def _other_votes(matches: NDArray[np.bool_], voted: NDArray[np.int64]) -> dict[int, NDArray[np.bool_]]:
    """For each label that rules vote for, the rows on which a rule votes for another one: label -> (rows,)."""
    return {int(label): matches[voted != label].any(axis=0) for label in np.unique(voted)}


def _rule_warnings(rules: list[RuleCheck], rows: Rows, truth: NDArray[np.int16] | None) -> list[str]:
    """One warning about the rules that match nothing, one about those that are no better than chance."""
    warnings = []
    if unused := [rule.rule for rule in rules if not rule.rows]:
        warnings.append(f"In these {len(rows):,} rows nothing matches {quoted(unused, 5)}.")
    if truth is None or not (truth != NO_LABEL).any():
        return warnings
    truth = truth[truth != NO_LABEL]
    frequencies = np.bincount(truth, minlength=len(rows.task.labels)) / len(truth)
    random_accuracy = dict(zip(rows.task.labels, frequencies, strict=True))  # of voting for the label on any row
    guessing = [
        f"{rule.rule} ({rule.correct} of {rule.labeled})"
        for rule in rules
        if rule.correct is not None
        and rule.labeled is not None
        and rule.labeled >= MIN_VOTES
        and rule.correct <= random_accuracy[rule.label] * rule.labeled
    ]
    if guessing:
        verb, them = ("is", "it") if len(guessing) == 1 else ("are", "them")
        warnings.append(
            f"On labelled rows {quoted(guessing, 5)} {verb} right no more often than chance; correct or remove {them}."
        )
    return warnings
