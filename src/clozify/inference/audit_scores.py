"""The checks of an audit that need a model: likely label errors, by cross-fitted label vectors, and truncated rows.

States of the labelled and the test rows are computed once a pattern (`methods/frozen.py`); fits then take seconds. The
labelled rows are scored by vectors that were fitted on other labelled rows alone. Test rows are scored by vectors that
were fitted on the labelled rows and on other test rows, which finds more of their errors than the labelled rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.config.auto import Conditions, fit_recipe
from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.data.label_matrix import join_labels
from clozify.data.rows import CHUNK_ROWS
from clozify.gpu.options import GpuOptions
from clozify.inference.audit_records import Duplicates, LabelError, TruncatedRow
from clozify.inference.audit_sets import AuditSet
from clozify.methods.frozen import compute_states
from clozify.methods.label_errors import (
    FITS,
    JointStates,
    LabelErrors,
    cross_fit,
    find_label_errors,
    find_label_set_errors,
)
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.cpu_precision import choose_precision
from clozify.models.loading import count_encoder_parameters
from clozify.models.task_prompts import PatternPrompt, TaskPrompts
from clozify.prompts.encode import EncodedRows
from clozify.utils.progress import progress

MAX_PATTERNS = 3  # that labels are predicted with; of more, evenly spaced ones
FEW_ROWS = 5  # of a label, below which its errors are hard to find


@dataclass(frozen=True)
class ScoredSet:
    """Rows of a data set whose labels were compared with predictions."""

    data: AuditSet
    indices: NDArray[np.int64]  # of the scored rows in the data set
    labels: NDArray[np.int64]  # their labels, (rows,), or with several a row 0 and 1, (rows, labels)
    probabilities: NDArray[np.float64]  # (rows, labels)
    errors: LabelErrors

    @property
    def agreement(self) -> float:
        """The fraction of rows whose own label is the likeliest, or all of whose labels are likelier than not."""
        if self.labels.ndim == 2:
            return float(((self.probabilities >= 0.5) == (self.labels == 1)).all(axis=1).mean())
        return float((self.probabilities.argmax(axis=1) == self.labels).mean())

    def label_errors(self) -> list[LabelError]:
        """The likely errors, the likeliest first."""
        assert self.data.labels is not None
        if self.labels.ndim == 2:
            return [self._label_set_error(row) for row in self.errors.order[: self.errors.is_error.sum()].tolist()]
        return [
            LabelError(
                row=self.data.row(int(self.indices[row])),
                suggestion=self.data.labels.names[self.errors.suggestions[row]],
                probability=float(self.probabilities[row, self.errors.suggestions[row]]),
                label_probability=float(self.probabilities[row, self.labels[row]]),
            )
            for row in self.errors.order[: self.errors.is_error.sum()]
        ]

    def _label_set_error(self, row: int) -> LabelError:
        """A row with missing or superfluous labels, those that are likeliest to be wrong first."""
        assert self.data.labels is not None
        names, own, suggested = self.data.labels.names, self.labels[row], self.errors.suggestions[row]
        probabilities = self.probabilities[row]
        right = np.where(own == 1, probabilities, 1 - probabilities)  # of each of the row's own answers
        wrong = sorted(np.flatnonzero(own != suggested).tolist(), key=lambda label: right[label])
        return LabelError(
            row=self.data.row(int(self.indices[row])),
            suggestion=join_labels([names[i] for i in np.flatnonzero(suggested)], self.data.rows.task.separator),
            probability=float(1 - right[wrong[0]]),
            label_probability=float(right[wrong[0]]),
            missing={names[label]: float(probabilities[label]) for label in wrong if not own[label]},
            superfluous={names[label]: float(probabilities[label]) for label in wrong if own[label]},
        )


def load_audit_model(model: str, recipe: Recipe, sets: Sequence[AuditSet]) -> tuple[ClozeModel, Recipe]:
    """The model, and the recipe as it is for this device and data."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if recipe.adapt:
        rows = {each.name: len(each) for each in sets}
        conditions = Conditions(
            device=device,
            encoder_parameters=count_encoder_parameters(model),
            labels=len(sets[0].rows.task.labels),
            labeled=rows["labeled"],
            unlabeled=rows.get("unlabeled", 0),
            method="frozen",
        )
        recipe = fit_recipe(recipe, conditions)
    recipe = choose_precision(recipe, model, device, [])
    return load_model(model, device, options=GpuOptions.from_recipe(recipe)), recipe


def find_truncated_rows(
    model: ClozeModel, prompts: TaskPrompts, sets: Sequence[AuditSet], max_length: int
) -> list[TruncatedRow]:
    """The rows that are too long for some pattern, those that lose most tokens first."""
    truncated = []
    with progress("counting tokens", sum(map(len, sets))) as advance:
        for each in sets:
            for start, stop in each.rows.chunks(CHUNK_ROWS):
                tokens = prompts.tokenize(model, each.rows, start, stop)
                encoded = [EncodedRows(prompt.template, tokens, max_length) for prompt in prompts.patterns]
                lost = np.stack([rows.lost_tokens for rows in encoded])  # (patterns, rows)
                kept = np.stack([rows.lengths - rows.template.fixed_tokens for rows in encoded])
                worst = lost.argmax(axis=0)
                truncated += [
                    TruncatedRow(
                        row=each.row(start + row),
                        lost=int(lost[worst[row], row]),
                        tokens=int(lost[worst[row], row] + kept[worst[row], row]),
                    )
                    for row in np.flatnonzero(lost.any(axis=0)).tolist()
                ]
                advance(stop - start)
    return sorted(truncated, key=lambda row: -row.lost)


def score_labels(
    model: ClozeModel,
    prompts: TaskPrompts,
    sets: Sequence[AuditSet],
    duplicates: Sequence[Duplicates],
    max_length: int,
    max_rows: int,
) -> list[ScoredSet]:
    """The labelled rows, and the test rows where they have labels, with cross-fitted probabilities.

    At most `max_rows` of a data set are scored, evenly spaced; rows without text are left out.
    """
    chosen = [(each, _scored_rows(each, max_rows)) for each in sets if each.labels is not None]
    chosen = [(each, indices) for each, indices in chosen if len(indices)]
    if not chosen or chosen[0][0].name != "labeled":
        return []
    joint = _compute_joint_states(model, scoring_patterns(prompts), chosen, max_length)
    labels = np.concatenate([each.labels.targets[indices] for each, indices in chosen if each.labels is not None])
    groups = _duplicate_groups(chosen, duplicates)
    scored, start = list[ScoredSet](), 0
    for each, indices in chosen:  # first the labelled rows, then these and the test rows
        stop = start + len(indices)
        with progress(f"fitting label vectors to {stop:,} rows", FITS, "fits") as advance:
            probabilities = cross_fit(joint.first(stop), labels[:stop], groups[:stop], advance)[start:]
        own = labels[start:stop]
        errors = find_label_set_errors(probabilities, own) if own.ndim == 2 else find_label_errors(probabilities, own)
        scored.append(ScoredSet(each, indices, own, probabilities, errors))
        start = stop
    return scored


def _compute_joint_states(
    model: ClozeModel,
    patterns: Sequence[PatternPrompt],
    chosen: Sequence[tuple[AuditSet, NDArray[np.int64]]],
    max_length: int,
) -> JointStates:
    """The states of the chosen rows of all data sets, one after the other."""
    states, words = [], []
    total = sum(len(indices) for _, indices in chosen) * len(patterns)
    with progress("computing states", total) as advance:
        for prompt in patterns:
            of_sets = []
            for each, indices in chosen:
                rows = each.rows.select(indices)
                tokens = TaskPrompts([prompt], [], list(prompt.template.fields)).tokenize(model, rows, 0, len(rows))
                of_sets.append(compute_states(model, EncodedRows(prompt.template, tokens, max_length), advance))
            states.append(np.concatenate(of_sets))
            vectors = [model.label_vectors(each)[0].detach().double().cpu().numpy() for each in prompt.words]
            words.append(np.mean(vectors, axis=0))  # over the pattern's verbalizers
    return JointStates.of(states, words)


def _duplicate_groups(
    chosen: Sequence[tuple[AuditSet, NDArray[np.int64]]], duplicates: Sequence[Duplicates]
) -> NDArray[np.int64]:
    """A number for each scored row that rows with nearly the same text share: (rows,)."""
    group_of_row = {(row.data, row.row): -1 - number for number, group in enumerate(duplicates) for row in group.rows}
    names = [(each.name, each.row(int(index)).row) for each, indices in chosen for index in indices]
    return np.array([group_of_row.get(name, number) for number, name in enumerate(names)], dtype=np.int64)


def scoring_patterns(prompts: TaskPrompts) -> list[PatternPrompt]:
    """The patterns that labels are predicted with: all, or of many some evenly spaced ones."""
    return prompts.patterns[:: -(-len(prompts.patterns) // MAX_PATTERNS)]


def _scored_rows(each: AuditSet, max_rows: int) -> NDArray[np.int64]:
    """The indices of the labelled rows with text, at most `max_rows`, evenly spaced."""
    assert each.labels is not None
    has_text = np.array([any(texts) for texts in zip(*each.fields, strict=True)], dtype=bool)
    rows = np.flatnonzero(each.labels.is_labeled & has_text)
    if len(rows) <= max_rows:
        return rows
    return rows[np.linspace(0, len(rows) - 1, max_rows).astype(np.int64)]


def few_rows_notes(task: Task, labeled: AuditSet) -> list[str]:
    """A sentence where labels have so few rows that their errors are hard to find."""
    assert labeled.labels is not None
    counts = labeled.labels.counts()
    if not ((counts > 0) & (counts < FEW_ROWS)).any():
        return []
    few = [label for label, count in zip(task.labels, counts, strict=True) if 0 < count < FEW_ROWS]
    return [
        f"{len(few)} of {len(task.labels)} labels have fewer than {FEW_ROWS} labelled rows, so that label errors among "
        f"them are hard to find: each row is judged by what the other rows of its label, and the label's words, say."
    ]
