"""The files that a run has besides the results of its jobs: run.json, ensemble.json and log.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch

from clozify import __version__
from clozify.config.recipe import Estimate, Generative
from clozify.data.decision import Decision
from clozify.pipeline.run import Run
from clozify.runs.folder import RunFolder
from clozify.runs.keys import data_inputs, hash_key, model_key
from clozify.runs.plan import Plan
from clozify.runs.records import ENSEMBLE_FILE, EnsembleMember, EnsembleRecord, EnsembleTeacher, Member
from clozify.teachers.base import Teacher


def describe_run(plan: Plan, teachers: Sequence[Teacher] = ()) -> dict[str, Any]:
    """The content of run.json: everything that the run works on."""
    data: dict[str, dict[str, Any]] = {
        name: {**key, "source": str(getattr(plan, name).source), "columns": getattr(plan, name).renamed_columns}
        for name, key in data_inputs(plan).items()
    }
    if plan.test is not None:
        data["test"]["labels"] = hash_key(labels=plan.test.targets.tolist())
    return {
        "clozify": __version__,
        "torch": torch.__version__,
        "method": plan.method,
        "model": plan.model,
        "student": plan.student,
        "task": plan.task.model_dump(),
        "recipe": plan.recipe.model_dump(exclude=_unused_sections(plan)),
        "data": data,
        "hashes": {
            "model": model_key(plan.model),
            "student": model_key(plan.student),
            "paraphrases": None if plan.paraphrases is None else plan.paraphrases.digest,
            **({} if plan.static_rows is None else {"static_rows": plan.static_rows.digest}),
        },
        **({"teachers": [teacher.key() for teacher in teachers]} if teachers else {}),
    }


def _unused_sections(plan: Plan) -> set[str]:
    """Later sections of the recipe that the run does not use; run.json is as it was before they existed."""
    unused = set() if plan.task.multilabel else {"multilabel"}
    unused |= set() if plan.recipe.generative != Generative() else {"generative"}
    unused |= set() if plan.static_rows is not None else {"static"}
    return unused if plan.recipe.estimate != Estimate() else unused | {"estimate"}


@dataclass(frozen=True)
class EnsembleInputs:
    """What an ensemble's scores are computed from."""

    members: Sequence[Member]
    weights: Sequence[float]
    teachers: Sequence[EnsembleTeacher] = ()  # where there are others than patterns
    combined: Member | None = None  # the combined scores of all teachers, as those of one member

    @property
    def scored(self) -> tuple[Sequence[Member], Sequence[float]]:
        """The members whose weighted scores are the ensemble's, and the weights."""
        return (self.members, self.weights) if self.combined is None else ([self.combined], [1.0])


def write_ensemble(run: Run, ensemble: EnsembleInputs, decision: Decision) -> None:
    """Write ensemble.json: the members with their weights, and the task and recipe to predict with them."""
    pairs, combined = run.plan.task.pairs, ensemble.combined
    record = EnsembleRecord(
        task=run.plan.task,
        recipe=run.plan.recipe,
        weights=[
            EnsembleMember(
                member=member.key,
                pair=pairs[member.pair].name,
                seed=member.seed,
                weight=weight,
                zero_points=None if member.zero_points is None else list(member.zero_points),
                teacher=member.teacher,
            )
            for member, weight in zip(ensemble.members, ensemble.weights, strict=True)
        ],
        thresholds=decision.by_label(),
        teachers=list(ensemble.teachers) or None,
        combined=None if combined is None else combined.key,
        temperature=decision.temperature,
    )
    content = record.model_dump(exclude={"recipe": _unused_sections(run.plan)})
    if combined is None:
        del content["teachers"], content["combined"]
    for member in content["weights"]:
        if member["teacher"] is None:
            del member["teacher"]
    if decision.temperature == 1.0:
        del content["temperature"]
    if not decision.multilabel:
        del content["thresholds"]
        for member in content["weights"]:
            del member["zero_points"]
    run.folder.write_json(run.prefix + ENSEMBLE_FILE, content)


@contextmanager
def log_file(folder: RunFolder, log: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yields a log that passes messages on to `log` and writes them, with the time, to log.txt."""
    with (folder.path / "log.txt").open("a", encoding="utf-8") as file:

        def log_both(message: str) -> None:
            file.write(f"{datetime.now().isoformat(timespec='seconds')} {message}\n")
            file.flush()
            log(message)

        yield log_both
