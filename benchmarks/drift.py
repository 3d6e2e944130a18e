"""How often does `clozify drift` raise a false alarm, and what does it detect? On the sample data.

The unlabelled rows that a run was not trained on are predicted once. Then they are split at random into reference rows
and new rows, many times: without a change, with one predicted label twice as frequent among the new rows, and with new
rows of another source, the second sample's.

    python benchmarks/drift.py runs/debian --output predictions.npz --splits 200
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from clozify import load_run, read_rows
from clozify.data.rows import Rows
from clozify.inference import drift as module
from clozify.inference.drift_scope import probabilities_and_states
from clozify.inference.finished_run import FinishedRun
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.report.unlabeled import unlabeled_ids

SIZES = (100, 300, 1_000)  # new rows
OTHER_SOURCE = "builtin:tags-unlabeled"
COMMON = 0.05  # a label with this share of the rows is frequent
Split = tuple[NDArray[np.int64], NDArray[np.int64]]  # reference and new rows


def predictions(finished: FinishedRun, rows: dict[str, Rows], path: Path) -> dict[str, NDArray[Any]]:
    """Each set's probabilities, (rows, labels), and states, (rows, hidden); kept in a file."""
    if not path.exists():
        arrays: dict[str, Any] = {}
        for name, of_name in rows.items():
            arrays[name], arrays[f"{name} states"] = probabilities_and_states(finished, of_name)
        np.savez(path, **arrays)
    with np.load(path) as content:
        return dict(content)


def random_splits(count: int, rows: int, size: int) -> Iterator[Split]:
    """Random new rows; the others are the reference."""
    for seed in range(count):
        order = np.random.default_rng(seed).permutation(rows)
        yield order[size:], order[:size]


def doubled(count: int, predicted: NDArray[np.int64], labels: NDArray[np.int64], size: int) -> Iterator[Split]:
    """New rows among which one of these labels, each in turn, is twice as frequent as among the reference rows."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        order, label = rng.permutation(len(predicted)), labels[seed % len(labels)]
        reference, rest = order[: len(order) // 3], order[len(order) // 3 :]
        of_label, others = rest[predicted[rest] == label], rest[predicted[rest] != label]
        wanted = min(round(2 * size * float((predicted[reference] == label).mean())), len(of_label))
        yield reference, np.concatenate([of_label[:wanted], others[: size - wanted]])


class Benchmark:
    """Rows with stored predictions, compared as the command compares them."""

    def __init__(self, finished: FinishedRun, rows: dict[str, Rows], predictions: dict[str, NDArray[Any]]) -> None:
        self.finished, self.rows = finished, rows
        self.probabilities = {name: predictions[name] for name in rows}
        self.states = {name: predictions[f"{name} states"] for name in rows}

    def profile(self, name: str, chosen: NDArray[np.int64], reference: Any = None) -> module.Profile:
        """The profile of some rows of a set."""
        rows, of_rows = self.rows[name].select(chosen), self.probabilities[name][chosen]
        return module.profile_of(rows, of_rows, self.states[name][chosen], self.finished, reference)

    def alarms(
        self, splits: Iterator[Split], new: str = "unused", reference: str = "unused"
    ) -> tuple[int, Counter[str]]:
        """How often there is an alarm, and by which statistic."""
        labels, count, by_statistic = self.finished.task.labels, 0, Counter[str]()
        for before_rows, after_rows in splits:
            before = self.profile(reference, before_rows[: module.MAX_ROWS])
            after = self.profile(new, after_rows, before)
            report = module.compare_profiles(labels, before, after, False, module.LEVEL, module.MIN_EFFECT)
            count += report.drift
            by_statistic.update(statistic.name for statistic in report.statistics if statistic.drift)
        return count, by_statistic

    def doubled_alarms(
        self, count: int, predicted: NDArray[np.int64], labels: NDArray[np.int64], size: int
    ) -> tuple[int, Counter[str]]:
        """The same where one of these labels is twice as frequent among the new rows."""
        return self.alarms(doubled(count, predicted, labels, size))


def show(name: str, count: int, run: Callable[[int], tuple[int, Counter[str]]], sizes: tuple[int, ...] = SIZES) -> None:
    """Print a line of the table for each number of new rows."""
    for size in sizes:
        alarms, by_statistic = run(size)
        shown = ", ".join(f"{statistic} {number}" for statistic, number in by_statistic.most_common())
        print(f"| {name} | {size:,} | {alarms} of {count} | {shown} |", flush=True)


def main(
    folder: Annotated[Path, typer.Argument(help="A run of the sample task with fewer unlabelled rows than there are.")],
    output: Annotated[Path, typer.Option(help="Where the predictions are kept.")] = Path("predictions.npz"),
    splits: Annotated[int, typer.Option(help="Random splits without a change; a fourth as many with one.")] = 200,
) -> None:
    """Print how often there is an alarm as a Markdown table."""
    finished, record = load_run(folder), RunRecord.load(folder)
    used = reread_rows(record.inputs, "unlabeled", unlabeled_ids(record))
    unused = module._unlabeled_rows(record, [])
    other = read_rows(OTHER_SOURCE, finished.task).excluding(unused, used)
    rows = {"unused": unused, "used": used, "other": module.sample_rows(other, 1_500)}
    probabilities = predictions(finished, rows, output)
    benchmark, size = Benchmark(finished, rows, probabilities), len(unused)
    changed, predicted = splits // 4, probabilities["unused"].argmax(axis=1)
    print("| new rows | rows | alarms | by |\n|---|---:|---:|---|")
    show("the same", splits, lambda new: benchmark.alarms(random_splits(splits, size, new)), (*SIZES, size // 2))
    shares = np.bincount(predicted, minlength=len(finished.task.labels)) / size
    for name, labels in (("frequent", shares >= COMMON), ("rare", shares < COMMON)):
        run = partial(benchmark.doubled_alarms, changed, predicted, np.flatnonzero(labels))
        show(f"a {name} label doubled", changed, run)

    def with_other(new: int) -> Iterator[Split]:
        for seed in range(changed):
            rng = np.random.default_rng(seed)
            yield rng.permutation(size), rng.permutation(len(rows["other"]))[:new]

    show("of another source", changed, lambda new: benchmark.alarms(with_other(new), "other"))

    def with_used(new: int) -> Iterator[Split]:
        for seed in range(changed):
            yield np.arange(len(used)), np.random.default_rng(seed).permutation(size)[:new]

    show("the same, reference trained on", changed, lambda new: benchmark.alarms(with_used(new), reference="used"))


if __name__ == "__main__":
    typer.run(main)
