"""A finished run as the report reads it: what went in, the numbers, and the members of its result.

In: a run's folder. Out: a `Run`, or a sentence that says why there is nothing to report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.errors import RunError
from clozify.runs.folder import hash_key

METHOD_NAMES = {"pet": "PET", "ipet": "iPET", "supervised": "supervised training", "uda": "UDA", "mixtext": "MixText"}


@dataclass(frozen=True)
class Member:
    """A member of the result: its pair, and where its scores are."""

    pair: str
    seed: int | None
    weight: float
    folder: Path


class Run:
    """A finished run's folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "run.json").is_file():
            raise RunError(f"The folder '{folder}' holds no run; name the folder that clozify train wrote to --output.")
        self.described: dict[str, Any] = _read(self.folder / "run.json")
        if not (self.folder / "metrics.json").is_file():
            raise RunError(
                f"The run in '{folder}' has not finished; give its command again, and it goes on where it was."
            )
        self.metrics: dict[str, Any] = _read(self.folder / "metrics.json")
        if self.metrics.get("run", hash_key(**self.described)) != hash_key(**self.described):
            raise RunError(
                f"The run in '{folder}' was started again with other settings and has not finished; give its command "
                "again, and it goes on where it was."
            )
        self.task = Task.model_validate(self.described["task"])

    @property
    def method(self) -> str:
        """`pet`, `ipet`, or a baseline."""
        return str(self.described["method"])

    @property
    def name(self) -> str:
        """What people know the run by."""
        return self.folder.resolve().name

    @cached_property
    def result(self) -> str:
        """Which of the metrics is the run's result: the classifier's, the ensemble's, or a baseline's."""
        if self.method not in ("pet", "ipet"):
            return self.method
        return "classifier" if (self.folder / "classifier").is_dir() else "ensemble"

    @cached_property
    def members(self) -> list[Member]:
        """The members of the result, the same scores once; none where a baseline was trained."""
        file = self.folder / "ensemble.json"
        if not file.is_file():
            return []
        found: dict[str, Member] = {}
        for known in _read(file)["weights"]:  # seeds of an untrained pair are one model
            kinds = [kind for kind in ("members", "untrained") if (self.folder / kind / known["member"]).is_dir()]
            if kinds:
                place = self.folder / kinds[0] / known["member"]
                found.setdefault(known["member"], Member(known["pair"], known["seed"], known["weight"], place))
        return list(found.values())

    @cached_property
    def scorers(self) -> list[Member]:
        """The members whose scores of the pile are there."""
        return [member for member in self.members if (member.folder / "pile.npy").is_file()]

    @cached_property
    def pile_scores(self) -> list[NDArray[np.float32]]:
        """Each scorer's raw scores of the pile, (rows, labels)."""
        return [np.load(member.folder / "pile.npy", mmap_mode="r") for member in self.scorers]


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
