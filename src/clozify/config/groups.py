"""Groups of labels, the entry `[groups]` of a task file: a tree of two levels above the words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clozify.errors import did_you_mean, quoted


class LabelGroups:
    """Which group each label is in; a label that no group names is a group of its own, with its name."""

    def __init__(self, labels: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
        group_of = {label: name for name, members in groups.items() for label in members}
        self.by_label = [group_of.get(label, label) for label in labels]  # each label's group
        self.names = list(dict.fromkeys([*groups, *self.by_label]))  # as in the file, then single labels

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """Each label's group as an index into `names`: (labels,)."""
        index = {name: position for position, name in enumerate(self.names)}
        return np.array([index[name] for name in self.by_label], dtype=np.int64)

    def sum_columns(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """A group's probability is the sum of its labels': (rows, labels) -> (rows, groups)."""
        sums = np.zeros((len(values), len(self.names)))
        for label, group in enumerate(self.indices):
            sums[:, group] += values[:, label]
        return sums


def group_problems(labels: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The faults of a task's groups, one sentence each."""
    problems = []
    counts = Counter(label for members in groups.values() for label in dict.fromkeys(members))
    for name, members in groups.items():
        if not name or name != name.strip():
            problems.append(f"The group '{name}' is empty or has white space around its name; rename it.")
        if not members:
            problems.append(f"The group '{name}' has no label; list its labels, or remove it.")
        problems += [
            f"The group '{name}' names '{label}', which is no label{did_you_mean(label, labels)}; the labels are "
            f"{quoted(labels, 5)}."
            for label in dict.fromkeys(members)
            if label not in labels
        ]
        if twice := [label for label, count in Counter(members).items() if count > 1]:
            problems.append(f"The group '{name}' names the label {quoted(twice)} twice; remove one.")
    for label, count in counts.items():
        if count > 1:
            owners = [name for name, members in groups.items() if label in members]
            problems.append(f"The label '{label}' is in the groups {quoted(owners)}; a label is in one at most.")
    if clash := [name for name in groups if name in labels and name not in counts]:
        problems.append(
            f"The group {quoted(clash)} has the name of a label that is in no group, and would be taken for that "
            "label's own group; rename the group, or put the label into one."
        )
    return problems
