"""What a run's members made of the pile: how they agree, what the soft labels are like, which rows to label next.

In: a run, and the pile's rows where they are at hand. Out: plain values for the page. None of it needs a test set.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from clozify.data.rows import Rows
from clozify.methods.ensemble import combine_scores
from clozify.report.active_learning import choose, disagreement_scores, free_rows
from clozify.report.run import Run

MOST_ROWS = 50_000  # of the pile that agreement is counted on, evenly from the whole
APART = 0.1  # a pattern that agrees so much less than the middle one is pointed out
BINS = 10
NEXT = 10  # rows to label next that a report shows
CHARACTERS = 400  # of a row that are shown


def agreement(run: Run) -> dict[str, Any] | None:
    """How often each two pairs give a row of the pile the same label; each pair by its seeds' mean scores."""
    names = [pair.name for pair in run.task.pairs if any(member.pair == pair.name for member in run.scorers)]
    if len(names) < 2:
        return None
    rows = len(run.pile_scores[0])
    step = max(1, -(-rows // MOST_ROWS))
    said, between_seeds = [], []
    for name in names:
        own = [s[::step] for m, s in zip(run.scorers, run.pile_scores, strict=True) if m.pair == name]
        said.append(combine_scores(own, [1.0] * len(own)).argmax(axis=1))
        labels = [scores.argmax(axis=1) for scores in own]
        shares = [float((a == b).mean()) for n, a in enumerate(labels) for b in labels[:n]]
        between_seeds.append(float(np.mean(shares)) if shares else None)
    matrix = [[float((a == b).mean()) for b in said] for a in said]
    means = [(sum(line) - 1) / (len(line) - 1) for line in matrix]
    apart = [n for n, mean in enumerate(means) if mean < float(np.median(means)) - APART]
    lowest = sorted((matrix[a][b], names[a], names[b]) for a in range(len(names)) for b in range(a))[:20]
    return {
        "pairs": names,
        "matrix": matrix,
        "between_seeds": between_seeds,
        "means": means,
        "apart": [names[n] for n in apart],
        "lowest": [{"share": share, "pairs": [b, a]} for share, a, b in lowest],
        "rows": len(said[0]),
        "of": rows,
    }


def soft_labels(run: Run, labelled: np.ndarray[Any, Any] | None) -> dict[str, Any] | None:
    """The soft labels' balance and confidence; `labelled` counts T's rows of each label, where that is known."""
    import pyarrow.parquet as pq

    file = run.folder / "labels.parquet"
    if not file.is_file():
        return None
    labels = run.task.labels
    counts, bins, total, rows = Counter[str](), np.zeros(BINS, dtype=np.int64), 0.0, 0
    for batch in pq.ParquetFile(file).iter_batches(columns=["label", *[f"probability_{label}" for label in labels]]):
        counts.update(batch.column("label").to_pylist())
        sure = np.max([batch.column(f"probability_{label}").to_numpy() for label in labels], axis=0)
        bins += np.bincount(np.minimum((sure * BINS).astype(int), BINS - 1), minlength=BINS)
        total, rows = total + float(sure.sum()), rows + len(sure)
    given = None if labelled is None or not labelled.sum() else labelled / labelled.sum()
    return {
        "rows": rows,
        "mean": total / max(rows, 1),
        "temperature": run.described["recipe"]["distill"]["temperature"],
        "labels": [
            {"label": label, "rows": counts[label], "share": counts[label] / max(rows, 1)}
            | ({} if given is None else {"labelled": float(given[number])})
            for number, label in enumerate(labels)
        ],
        "confidence": [
            {"low": n / BINS, "high": (n + 1) / BINS, "share": int(count) / max(rows, 1)}
            for n, count in enumerate(bins)
            if (n + 1) / BINS > 1 / len(labels)  # the surest label of a row cannot be less likely
        ],
    }


def unlabeled_ids(run: Run) -> list[Any] | None:
    """The ids of the pile's rows, as the run wrote them."""
    import pyarrow.parquet as pq

    file = run.folder / "labels.parquet"
    return pq.read_table(file, columns=["id"]).column("id").to_pylist() if file.is_file() else None


def label_next(run: Run, pile: Rows | None, taken: list[Rows], labelled: np.ndarray[Any, Any] | None) -> dict[str, Any]:
    """The rows to label next, with what the members say of each; without the pile's texts, their ids alone."""
    if not run.scorers:
        return {"rows": []}
    scores, weights = run.pile_scores, [member.weight for member in run.scorers]
    found = disagreement_scores(scores, weights)
    had = np.zeros(len(run.task.labels), dtype=np.int64) if labelled is None else labelled
    free = np.arange(len(found.predicted)) if pile is None else free_rows(pile, taken)
    chosen = choose(found, NEXT, free, had, pile)
    picked = None if pile is None else pile.select(chosen)
    ids = [known[place] for place in chosen] if picked is None and (known := unlabeled_ids(run)) else None
    texts = None if picked is None else {field: picked.texts(field) for field in run.task.fields}
    rows = []
    for number, place in enumerate(chosen):
        votes = Counter(run.task.labels[int(of_member[place].argmax())] for of_member in scores)
        rows.append(
            {
                "id": picked.ids()[number] if picked is not None else ids[number] if ids else int(place),
                "texts": [] if texts is None else [_cut(texts[field][number]) for field in run.task.fields],
                "label": run.task.labels[int(found.predicted[place])],
                "votes": votes.most_common(4),
                "disagreement": float(found.disagreement[place]),
                "uncertainty": float(found.uncertainty[place]),
            }
        )
    return {"rows": rows, "members": len(scores), "disagreement": float(found.disagreement.mean())}


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[:CHARACTERS].rsplit(" ", 1)[0] + " ..."
