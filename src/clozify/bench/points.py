"""The methods of a bench over all its data sets: ranks, and who is on the frontier of accuracy against time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clozify.bench.entries import Block, Entry
from clozify.bench.statistics import Rank, frontier, ranks


@dataclass(frozen=True)
class MethodPoint:
    """A method over all blocks in which all methods have results of the same draws."""

    name: str
    accuracy: float  # mean, of these draws
    training_seconds: float  # geometric mean
    rows_per_second: float  # geometric mean
    rank: Rank
    rank_by_size: dict[int, float]  # the mean rank at each number of rows a label
    on_training_frontier: bool
    on_speed_frontier: bool


def method_points(
    entries: Sequence[Entry], blocks: Sequence[Block], names: Sequence[str]
) -> tuple[list[MethodPoint], int]:
    """The methods over all blocks in which all have results of the same draws, and the number of these blocks.

    A method without any result is left out, so that it does not empty the table.
    """
    index = {(entry.block, entry.name): entry.common for entry in entries if entry.common is not None}
    names = [name for name in names if any((block, name) in index for block in blocks)]
    complete = [block for block in blocks if all((block, name) in index for name in names)]
    if not complete or len(names) < 2:
        return [], len(complete)
    means = [[index[block, name] for name in names] for block in complete]  # (blocks, methods)
    table = np.array([[mean.accuracy for mean in of_block] for of_block in means])
    sizes = np.array([block.per_label for block in complete])
    by_size = {int(size): [rank.mean for rank in ranks(table[sizes == size])] for size in np.unique(sizes)}
    accuracies = table.mean(axis=0).tolist()
    seconds = _geometric([[mean.training_seconds for mean in of_block] for of_block in means])
    speeds = _geometric([[mean.rows_per_second for mean in of_block] for of_block in means])
    on_training, on_speed = frontier(seconds, accuracies), frontier([-speed for speed in speeds], accuracies)
    points = [
        MethodPoint(
            name=name,
            accuracy=accuracies[column],
            training_seconds=seconds[column],
            rows_per_second=speeds[column],
            rank=rank,
            rank_by_size={size: of_size[column] for size, of_size in by_size.items()},
            on_training_frontier=on_training[column],
            on_speed_frontier=on_speed[column],
        )
        for column, (name, rank) in enumerate(zip(names, ranks(table), strict=True))
    ]
    return points, len(complete)


def _geometric(values: Sequence[Sequence[float]]) -> list[float]:
    """The geometric mean of each column."""
    table = np.array([[max(value, 1e-3) for value in row] for row in values])
    means: list[float] = np.exp(np.log(table).mean(axis=0)).tolist()
    return means
