"""What a run's ensemble predicts for the unlabelled rows: agreement of the patterns, soft labels, rows to label next.

None of it needs a test set.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.ids import plain_ids
from clozify.data.label_matrix import split_cell
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.combination import COMBINED_TEMPERATURE
from clozify.methods.ensemble import combine_scores
from clozify.report.active_learning import eligible_rows, measure_informativeness, select_rows
from clozify.report.format import shorten
from clozify.report.run import RunRecord
from clozify.utils.checked_files import read_parquet

MAX_ROWS = 50_000  # unlabelled rows that agreement is counted on, evenly spaced
OUTLIER_GAP = 0.1  # a pattern whose mean agreement is this far below the median is pointed out
BINS = 10
NEXT_ROWS = 10
LEAST_AGREEING = 20


@dataclass(frozen=True)
class PairAgreement:
    """How often two pairs predict the same label."""

    fraction: float
    pairs: list[str]


@dataclass(frozen=True)
class Agreement:
    """How often pairs predict the same label for an unlabelled row."""

    pairs: list[str]
    matrix: list[list[float]]
    between_seeds: list[float | None]  # of one pair's seeds
    means: list[float]  # of each pair with all others
    outliers: list[str]  # pairs that agree much less than the others
    lowest: list[PairAgreement]
    rows: int  # that were counted
    total_rows: int


def agreement(run: RunRecord) -> Agreement | None:
    """The agreement of each two pairs, each pair by its seeds' mean scores; None with fewer than two."""
    scores = {
        pair.name: [s for m, s in zip(run.scoring_members, run.unlabeled_scores, strict=True) if m.pair == pair.name]
        for pair in run.task.pairs
    }
    names = [name for name, pair_scores in scores.items() if pair_scores]
    if len(names) < 2:
        return None
    total_rows = len(run.unlabeled_scores[0])
    step = max(1, -(-total_rows // chunk_rows(len(run.task.labels), MAX_ROWS)))
    predictions, between_seeds, same = [], [], run.ensemble_decision.same
    for name in names:
        seed_scores = [seed[::step] for seed in scores[name]]
        predictions.append(combine_scores(seed_scores, [1.0] * len(seed_scores)))
        fractions = [float(same(a, b).mean()) for n, a in enumerate(seed_scores) for b in seed_scores[:n]]
        between_seeds.append(float(np.mean(fractions)) if fractions else None)
    matrix = [[float(same(a, b).mean()) for b in predictions] for a in predictions]
    means = [(sum(row) - 1) / (len(row) - 1) for row in matrix]
    threshold = float(np.median(means)) - OUTLIER_GAP
    lowest = sorted((matrix[a][b], names[a], names[b]) for a in range(len(names)) for b in range(a))
    return Agreement(
        pairs=names,
        matrix=matrix,
        between_seeds=between_seeds,
        means=means,
        outliers=[name for name, mean in zip(names, means, strict=True) if mean < threshold],
        lowest=[PairAgreement(fraction, [b, a]) for fraction, a, b in lowest[:LEAST_AGREEING]],
        rows=len(predictions[0]),
        total_rows=total_rows,
    )


@dataclass(frozen=True)
class LabelFraction:
    """A label's rows among the soft labels, and its fraction of them and of the labelled rows."""

    label: str
    rows: int
    fraction: float
    labelled: float | None = None


@dataclass(frozen=True)
class ConfidenceBin:
    """The fraction of rows whose predicted label has a probability from `low` to `high`."""

    low: float
    high: float
    fraction: float


@dataclass(frozen=True)
class SoftLabels:
    """The balance and the confidence of the soft labels."""

    rows: int
    mean_confidence: float
    temperature: float
    labels: list[LabelFraction]
    confidence: list[ConfidenceBin]


def soft_labels(run: RunRecord, label_counts: NDArray[np.int64] | None) -> SoftLabels | None:
    """The soft labels' balance and confidence; `label_counts` are T's rows of each label, where they can be read."""
    path = run.folder / "labels.parquet"
    if not path.is_file():
        return None
    labels = run.task.labels
    counts, bins, total, rows = Counter[str](), np.zeros(BINS, dtype=np.int64), 0.0, 0
    size = chunk_rows(len(labels), 65_536)
    for batch in read_parquet(path, ["label", *[f"probability_{label}" for label in labels]], size):
        for name in batch.column("label").to_pylist():
            counts.update(split_cell(name, run.task.separator) or [] if run.task.multilabel else [name])
        confidence = reduce(np.maximum, (batch.column(f"probability_{label}").to_numpy() for label in labels))
        bins += np.bincount(np.minimum((confidence * BINS).astype(int), BINS - 1), minlength=BINS)
        total, rows = total + float(confidence.sum()), rows + len(confidence)
    labelled: list[float] | list[None] = [None] * len(labels)
    if label_counts is not None and label_counts.sum():
        total_labels = run.metrics.rows["labeled"] if run.task.multilabel else label_counts.sum()
        labelled = (label_counts / total_labels).tolist()
    return SoftLabels(
        rows=rows,
        mean_confidence=total / max(rows, 1),
        temperature=COMBINED_TEMPERATURE if run.metrics.teachers else run.recipe.distill.temperature,
        labels=[
            LabelFraction(label, counts[label], counts[label] / max(rows, 1), labelled[index])
            for index, label in enumerate(labels)
        ],
        confidence=[
            ConfidenceBin(index / BINS, (index + 1) / BINS, int(count) / max(rows, 1))
            for index, count in enumerate(bins)
            if run.task.multilabel or (index + 1) / BINS > 1 / len(labels)  # the likeliest label has at least 1 / |L|
        ],
    )


def unlabeled_ids(run: RunRecord) -> list[Any] | None:
    """The ids of the unlabelled rows, as the run wrote them with the soft labels."""
    path = run.folder / "labels.parquet"
    if not path.is_file():
        return None
    return [row_id for batch in read_parquet(path, ["id"]) for row_id in plain_ids(batch.column("id")).to_pylist()]


@dataclass(frozen=True)
class NextRow:
    """A row to label next, with the members' predictions."""

    id: Any
    texts: list[str]  # of the fields; empty where the rows cannot be read again
    label: str  # the ensemble's prediction
    votes: list[tuple[str, int]]  # label -> members
    disagreement: float
    uncertainty: float


@dataclass(frozen=True)
class NextRows:
    """The rows to label next."""

    rows: list[NextRow]
    members: int = 0
    mean_disagreement: float | None = None  # over all unlabelled rows
    problem: str | None = None  # why the texts cannot be shown


def label_next(
    run: RunRecord, unlabeled: Rows | None, excluded: list[Rows], label_counts: NDArray[np.int64] | None
) -> NextRows:
    """The rows to label next; without the unlabelled rows' texts, their ids alone."""
    if not run.scoring_members:
        return NextRows([])
    scores, weights = run.unlabeled_scores, [member.weight for member in run.scoring_members]
    info = measure_informativeness(scores, weights, run.task.multilabel)
    decision = run.ensemble_decision
    counts = np.ones(len(run.task.labels), dtype=np.int64) if label_counts is None else label_counts
    eligible = np.arange(len(info.predicted)) if unlabeled is None else eligible_rows(unlabeled, excluded)
    selected = select_rows(info, NEXT_ROWS, eligible, counts, unlabeled)
    texts: list[list[str]] = [[] for _ in selected]
    if unlabeled is not None:
        selected_rows = unlabeled.select(selected)
        ids = selected_rows.ids()
        fields = [selected_rows.texts(field) for field in run.task.fields]
        texts = [[shorten(text) for text in values] for values in zip(*fields, strict=True)]
    else:
        all_ids = unlabeled_ids(run)
        ids = [int(index) if all_ids is None else all_ids[index] for index in selected]
    rows = [
        NextRow(
            id=row_id,
            texts=row_texts,
            label=decision.name_of(combine_scores([s[[index]] for s in scores], weights)),
            votes=Counter(decision.name_of(s[[index]]) or "no label" for s in scores).most_common(4),
            disagreement=float(info.disagreement[index]),
            uncertainty=float(info.uncertainty[index]),
        )
        for index, row_id, row_texts in zip(selected, ids, texts, strict=True)
    ]
    return NextRows(rows, len(scores), float(info.disagreement.mean()))
