"""The numbers of a finished run, part by part of its test set: MNLI's two halves, x-stance's languages.

In: a run's metrics and its folder, where every member's and classifier's scores of the test rows are. Out: for each
part and measure a mean and its standard deviation over the repetitions, as shares of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.ensemble import combine_scores
from clozify.metrics import basic_metrics

Spread = list[float | None]  # a mean, and its standard deviation where there is one


def spread_of(values: Sequence[float]) -> Spread:
    """Mean and standard deviation; a single value has none."""
    return [float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None]


def numbers_of(metrics: dict[str, Any], folder: Path, test: Rows, slices: Mapping[str, slice]) -> dict[str, Any]:
    """`numbers` by part and measure, and of iPET the `generations`: by part and number, the members' mean."""
    measured = _Measured(folder, test, slices)
    final = metrics.get("classifier") or metrics.get(metrics["method"])
    found: dict[str, Any] = {"numbers": {part: {} for part in slices}}
    for part, numbers in found["numbers"].items():
        if final:
            each = [measured.of(folder / "classifiers" / job, part) for job in final["jobs"]]
            numbers["classifier"] = spread_of(each)
        if "members" in metrics:
            numbers |= _of_members(measured, metrics["members"]["each"], part)
    if "generations" in metrics:
        found["generations"] = {
            part: {
                str(told["generation"]): float(np.mean([measured.of(folder / m["job"], part) for m in told["each"]]))
                for told in metrics["generations"]
                if "each" in told
            }
            for part in slices
        }
    return found


class _Measured:
    """Scores of the test rows, read once, and how good they are on a part of them."""

    def __init__(self, folder: Path, test: Rows, slices: Mapping[str, slice]) -> None:
        self.folder, self.truth, self.slices = folder, test.labels, slices
        self.labels = len(test.task.labels)
        self.metric = test.task.metric.replace("-", "_")
        self._predicted: dict[Path, NDArray[np.intp]] = {}

    def of(self, job: Path, part: str) -> float:
        """What a job reached on a part."""
        if job not in self._predicted:
            self._predicted[job] = np.load(job / "test.npy").argmax(axis=-1)
        return self.share(self._predicted[job], part)

    def share(self, predicted: NDArray[np.intp], part: str) -> float:
        """The task's metric on a part."""
        where = self.slices[part]
        return float(getattr(basic_metrics(self.truth[where], predicted[where], self.labels), self.metric))


def _of_members(measured: _Measured, each: list[dict[str, Any]], part: str) -> dict[str, Spread]:
    """The members' mean, the worst and the best pair, and the ensemble without distillation."""
    reached = [measured.of(measured.folder / member["job"], part) for member in each]
    pairs = {member["pair"] for member in each}
    of_pairs = [np.mean([r for r, m in zip(reached, each, strict=True) if m["pair"] == pair]) for pair in pairs]
    weights = json.loads((measured.folder / "ensemble.json").read_text(encoding="utf-8"))["weights"]
    scores = [np.load(measured.folder / member["job"] / "test.npy") for member in each]
    together = combine_scores(scores, [member["weight"] for member in weights]).argmax(axis=-1)
    return {
        "members": spread_of(reached),
        "min": [float(min(of_pairs)), None],
        "max": [float(max(of_pairs)), None],
        "ensemble": [measured.share(together, part), None],
    }
