"""iPET: generations of members, each trained on T and on rows of the pile that others labelled for it (section 3.4).

In: a run and the pairs' weights. Out: the last generation's members, as of basic PET, and what
happened on the way. Without labelled rows M^0 is the untrained pairs. All choices of chance depend on the recipe's
seed, the generation and the member alone, so a run that was stopped makes the same ones again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.errors import RecipeError
from clozify.methods.ensemble import Ensemble
from clozify.methods.ipet import (
    CHUNK_SIZE,
    Selection,
    choose_teachers,
    count_generations,
    counts_to_draw,
    select_training_rows,
)
from clozify.pipeline.members import Drawn, MemberSpec, first_jobs, member_metrics, train_members, untrained_on_pile
from clozify.pipeline.run import Run
from clozify.runs.plan import Plan
from clozify.utils.npy import open_npy


def generation_numbers(plan: Plan) -> list[int]:
    """Which generations are trained after M^0: 1 to k, or the first and the last alone."""
    k = count_generations(len(plan.labeled), plan.recipe.ipet)
    return [1, k] if plan.recipe.ipet.skip_generations and k > 1 else list(range(1, k + 1))


def train_generations(run: Run, weights: list[float], keep: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The members of the last generation, and of every generation its numbers; `weights` are the pairs'."""
    plan = run.plan
    assert plan.unlabeled is not None
    numbers = generation_numbers(plan)
    zero_shot = len(plan.labeled) == 0
    if zero_shot and keep and not numbers:
        raise RecipeError(
            "Without labelled rows, generations and distillation nothing is trained; ask for one of them."
        )
    run.context.log(f"iPET: {len(numbers) + 1} generations, M^0 {'untrained' if zero_shot else 'trained on T'}")
    first = first_jobs(plan, keep=keep and not numbers)
    teachers = _teachers(plan, first, numbers)
    if zero_shot:  # the seeds of a pair are one model as long as nothing is trained
        pairs = untrained_on_pile(run)
        members = [pairs[job.pair] | {"seed": job.seed} for job in first]
    else:
        asked = _needed(teachers, 0)
        jobs = first if asked is None else [MemberSpec(j.pair, j.seed, None, n in asked) for n, j in enumerate(first)]
        members = train_members(run, jobs, "generation 0, member")
    story = [_told(run, 0, members, weights, None)]
    for place, number in enumerate(numbers):
        selections = _selections(run, members, weights, teachers[place], number, zero_shot and place == 0)
        asked = _needed(teachers, place + 1)
        jobs = [
            MemberSpec(
                job.pair,
                job.seed,
                Drawn(chosen.rows, chosen.labels),
                score_pile=asked is None or n in asked,
                keep=keep and asked is None,
            )
            for n, (job, chosen) in enumerate(zip(first, selections, strict=True))
        ]
        before, members = members, train_members(run, jobs, f"generation {number}, member")
        story.append(_told(run, number, members, weights, before, selections))
    return members, story


def _teachers(plan: Plan, first: list[MemberSpec], numbers: list[int]) -> list[list[NDArray[np.int64]]]:
    """For each generation and member, its teachers in the generation before, chosen before anything is trained."""
    share = plan.recipe.ipet.teachers

    def of(member: int, number: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([plan.recipe.seed, number, member, 0])
        return choose_teachers(len(first), member, share, rng)

    return [[of(member, number) for member in range(len(first))] for number in numbers]


def _needed(teachers: list[list[NDArray[np.int64]]], place: int) -> set[int] | None:
    """Which members must score the pile for the generation that follows; None is all of them, for the soft labels."""
    if place == len(teachers):
        return None
    return {int(teacher) for of_member in teachers[place] for teacher in of_member}


def _selections(
    run: Run,
    members: list[dict[str, Any]],
    weights: list[float],
    teachers: list[NDArray[np.int64]],
    number: int,
    zero_shot: bool,
) -> list[Selection]:
    """What each member of a generation is to be trained on beside T."""
    plan = run.plan
    assert plan.unlabeled is not None
    settings, labels = plan.recipe.ipet, plan.task.labels
    of_t = np.bincount(plan.labeled.labels, minlength=len(labels)).astype(np.int64)
    wanted, capped = counts_to_draw(of_t, number, len(plan.unlabeled), settings)
    if capped:
        run.context.warn(
            f"The pile has {len(plan.unlabeled):,} rows, too few for generation {number}: its training sets are "
            "smaller, with the labels in the same ratio."
        )
    scores = {
        int(teacher): open_npy(members[teacher]["folder"] / "pile.npy")
        for teacher in {int(teacher) for of_member in teachers for teacher in of_member}
    }
    by_model = [weights[member["pair"]] for member in members]
    chosen = []
    for member, of_member in enumerate(teachers):
        rng = np.random.default_rng([plan.recipe.seed, number, member, 1])
        chosen.append(select_training_rows(scores, by_model, wanted, settings, of_member, rng, zero_shot))
    short = np.max([selection.topped_up for selection in chosen], axis=0)
    if short.any():
        lacking = ", ".join(f"{label} {count:,}" for label, count in zip(labels, short, strict=True) if count)
        run.context.warn(
            f"In generation {number} some labels had too few rows of their own and were topped up with the next best "
            f"(at most: {lacking})."
        )
    return chosen


def _told(
    run: Run,
    number: int,
    members: list[dict[str, Any]],
    weights: list[float],
    before: list[dict[str, Any]] | None,
    selections: list[Selection] | None = None,
) -> dict[str, Any]:
    """A generation's numbers: accuracy, agreement with the one before, what was drawn, and how sure it was."""
    plan = run.plan
    found: dict[str, Any] = {"generation": number, "members": len(members), "training_rows": len(plan.labeled)}
    found["jobs"] = [f"{member['folder'].parent.name}/{member['folder'].name}" for member in members]
    now = _on_pile(members, weights)
    then = _on_pile(before, weights) if before is not None else None
    if now is not None:
        found["certainty"], agreement = _sure_and_agreeing(now, then)
    if selections is not None:
        drawn = np.mean([np.bincount(s.labels, minlength=len(plan.task.labels)) for s in selections], axis=0)
        found["training_rows"] += round(float(np.mean([len(s.rows) for s in selections])))
        found["drawn"] = {label: float(count) for label, count in zip(plan.task.labels, drawn, strict=True)}
        found["certainty_of_drawn"] = float(np.mean([s.certainty for s in selections]))
        found["topped_up"] = int(np.sum([s.topped_up.sum() for s in selections]))
    if now is not None and then is not None:
        found["agreement"] = agreement
    if plan.test is not None and all((member["folder"] / "test.npy").exists() for member in members):
        numbers = member_metrics(plan, members, plan.test.labels)
        found |= {name: numbers[name] for name in ("accuracy", "macro_f1", "min", "max")}
        in_short = ("pair", "seed", "job", "accuracy", "macro_f1")  # the last generation's are under `members`, whole
        found["each"] = [{name: member[name] for name in in_short} for member in numbers["each"]]
    on_test = f", mean accuracy {100 * found['accuracy']:.1f}" if "accuracy" in found else ""
    agreeing = f", agrees with the one before on {100 * found['agreement']:.1f}%" if "agreement" in found else ""
    run.context.log(f"generation {number}: {found['training_rows']:,} training rows a member{on_test}{agreeing}")
    return found


def _sure_and_agreeing(now: Ensemble, then: Ensemble | None) -> tuple[float, float]:
    """How sure a generation is of the pile's rows, and on what share of them it agrees with the one before."""
    sure, agreeing = 0.0, 0
    for start, scores in now.chunks(CHUNK_SIZE):
        sure += float(softmax(scores, axis=-1).max(axis=1).sum())
        if then is not None:
            others = then[start : start + len(scores)]
            agreeing += int((scores.argmax(axis=1) == others.argmax(axis=1)).sum())
    return sure / len(now), agreeing / len(now)


def _on_pile(members: list[dict[str, Any]], weights: list[float]) -> Ensemble | None:
    """The ensemble's scores of the pile, of those members that scored it."""
    scored = [member for member in members if (member["folder"] / "pile.npy").exists()]
    if not scored:
        return None
    scores = [open_npy(member["folder"] / "pile.npy") for member in scored]
    return Ensemble(scores, [weights[member["pair"]] for member in scored])
