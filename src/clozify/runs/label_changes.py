"""What became of a task's labels since a run: which were added, removed or renamed, and what a new run keeps.

A member or a classifier chooses among all labels, so another set of labels takes new ones. The states of a frozen
encoder depend on rows and patterns alone. A label that only has another name changes no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clozify.errors import quoted

SHOWN = 3  # labels in a sentence


@dataclass(frozen=True)
class LabelChanges:
    """The labels of a task compared with those of an earlier run."""

    added: list[str]
    removed: list[str]
    renamed: dict[str, str]  # new name -> the name in the earlier run; all others are as they were

    @classmethod
    def between(cls, previous: Mapping[str, Any], inputs: Mapping[str, Any]) -> LabelChanges | None:
        """The changes between the contents of two `run.json`; None where the labels are the same, or not known."""
        before, now = _words(previous), _words(inputs)
        if not before or not now or list(before) == list(now):
            return None
        if list(before.values()) == list(now.values()):  # the same words in the same order
            names = {new: old for old, new in zip(before, now, strict=True) if new != old}
            return cls([], [], names)
        added, removed = (
            [label for label in now if label not in before],
            [label for label in before if label not in now],
        )
        return cls(added, removed, {}) if added or removed else None

    def __str__(self) -> str:
        parts = []
        if self.renamed:
            parts.append("renamed: " + quoted([f"{old} -> {new}" for new, old in self.renamed.items()], SHOWN))
        if self.added:
            parts.append(f"new: {quoted(self.added, SHOWN)}")
        if self.removed:
            parts.append(f"gone: {quoted(self.removed, SHOWN)}")
        return "; ".join(parts)

    def consequence(self, method: str) -> str:
        """What a run with the new labels keeps and what it computes anew, as the end of a sentence."""
        if self.renamed:
            return "every model is kept, since only names changed; export again what was exported"
        if method == "frozen":
            return "the rows' states are kept, and only the labels' vectors are fitted anew"
        return (
            "its models are trained anew, since each of them chooses among all labels; with --method frozen the rows' "
            "states are kept, so that a new label takes seconds"
        )


def _words(inputs: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Each label's words, by verbalizer; empty where the content is damaged."""
    try:
        verbalizers = [verbalizer["words"] for verbalizer in inputs["task"]["verbalizers"]]
        return {label: [list(words[label]) for words in verbalizers] for label in verbalizers[0]}
    except (KeyError, TypeError, IndexError, AttributeError):
        return {}
