"""iPET: generations of members, each trained on T and on unlabelled rows that other members labelled (section 3.4).

Without labelled rows M^0 is the untrained pairs. All random choices depend only on the recipe's seed, the generation
and the member, so a run that resumes makes the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.rows import chunk_rows
from clozify.errors import RecipeError, quoted
from clozify.methods.ensemble import Ensemble, LazyScores
from clozify.methods.ipet import (
    CHUNK_SIZE,
    Selection,
    choose_teachers,
    count_generations,
    counts_to_draw,
    is_better,
    select_training_rows,
)
from clozify.methods.ipet_label_sets import select_label_sets, set_counts_to_draw
from clozify.pipeline.member_jobs import DrawnRows
from clozify.pipeline.members import ZeroPoints, evaluate_members, first_generation, train_members
from clozify.pipeline.run import Run
from clozify.pipeline.teachers import OtherTeachers, pattern_votes
from clozify.pipeline.untrained import untrained_members
from clozify.runs.metrics import Generation, MemberMetrics
from clozify.runs.plan import Plan
from clozify.runs.records import Member

SHOWN_LABELS = 10  # in a warning

Teachers = list[NDArray[np.int64]]  # for each member, the indices of its teachers in the previous generation


def generation_indices(plan: Plan) -> list[int]:
    """The generations that are trained after M^0: 1 to k, or the first and the last alone."""
    k = count_generations(len(plan.labeled), plan.recipe.ipet)
    return [1, k] if plan.recipe.ipet.skip_generations and k > 1 else list(range(1, k + 1))


def train_generations(
    run: Run,
    pair_weights: Sequence[float],
    keep_weights: bool,
    decision: Decision,
    zero_points: ZeroPoints = None,
    others: OtherTeachers | None = None,
) -> tuple[list[Member], list[Generation]]:
    """Train all generations; returns the members of the last one, and the metrics of each.

    `others` label rows together with the members.
    """
    plan = run.plan
    indices = generation_indices(plan)
    zero_shot = len(plan.labeled) == 0
    if zero_shot and keep_weights and not indices:
        raise RecipeError(
            "Without labelled rows, generations and distillation nothing is trained; ask for one of them."
        )
    run.context.log(f"iPET: {len(indices) + 1} generations, M^0 {'untrained' if zero_shot else 'trained on T'}")
    may_be_last = not indices or plan.recipe.ipet.keep == "better"
    specs = first_generation(plan, pair_weights, keep_weights and may_be_last, zero_points)
    teachers = [choose_generation_teachers(plan, len(specs), index) for index in indices]  # before anything is trained
    scoring = [members_to_score(of_generation) for of_generation in teachers]
    scoring.append(set(range(len(specs))))  # the last generation's scores are the soft labels
    keeps_better = plan.recipe.ipet.keep == "better"
    if keeps_better:  # any generation may be the last
        scoring = [set(range(len(specs))) for _ in scoring]
    if zero_shot:
        members = untrained_members(run, sorted({spec.pair for spec in specs}))
    else:
        first = [replace(spec, score_unlabeled=member in scoring[0]) for member, spec in enumerate(specs)]
        members = train_members(run, first, "generation 0")
    generations = [_evaluate_generation(run, 0, members, None, pair_weights, decision)]
    for position, index in enumerate(indices):
        selections = _select_rows(run, index, members, teachers[position], pair_weights, decision, others)
        is_last = position + 1 == len(indices)
        drawn = [
            replace(
                spec,
                drawn=DrawnRows(selection.rows, selection.labels),
                score_unlabeled=member in scoring[position + 1],
                keep_weights=keep_weights and (is_last or keeps_better),
            )
            for member, (spec, selection) in enumerate(zip(specs, selections, strict=True))
        ]
        previous, members = members, train_members(run, drawn, f"generation {index}")
        generations.append(_evaluate_generation(run, index, members, previous, pair_weights, decision, selections))
        compared = index > 1 or not zero_shot  # the certainty of untrained pairs is no measure
        if keeps_better and compared and not _is_better(generations[-1], generations[-2]):
            run.context.log(f"generation {index} is dropped: on the unlabelled rows it is less certain than the last")
            generations[-1] = generations[-1].model_copy(update={"kept": False})
            return previous, generations
    return members, generations


def _is_better(generation: Generation, previous: Generation) -> bool:
    if generation.certainty is None or previous.certainty is None:
        return True
    assert generation.consensus is not None
    assert previous.consensus is not None
    return is_better(generation.certainty, generation.consensus, previous.certainty, previous.consensus)


def choose_generation_teachers(plan: Plan, members: int, index: int) -> Teachers:
    """The teachers of each member of a generation."""
    return [
        choose_teachers(
            members, member, plan.recipe.ipet.teachers, np.random.default_rng([plan.recipe.seed, index, member, 0])
        )
        for member in range(members)
    ]


def members_to_score(teachers: Teachers) -> set[int]:
    """The members that must score the unlabelled rows, since they teach the next generation."""
    return {int(teacher) for member_teachers in teachers for teacher in member_teachers}


def _select_rows(
    run: Run,
    index: int,
    members: Sequence[Member],
    teachers: Teachers,
    pair_weights: Sequence[float],
    decision: Decision,
    others: OtherTeachers | None,
) -> list[Selection]:
    """The unlabelled rows that each member of a generation is trained on besides T."""
    plan, settings, labels = run.plan, run.plan.recipe.ipet, run.plan.task.labels
    assert plan.unlabeled is not None
    if decision.multilabel:
        counts, capped = set_counts_to_draw(plan.labeled.label_matrix, index, len(plan.unlabeled), settings)
        label_counts = np.ones(
            len(labels), dtype=np.int64
        )  # none is drawn for labels without rows, so no warning is needed
    else:
        label_counts = np.bincount(plan.labeled.labels, minlength=len(labels)).astype(np.int64)
        counts, capped = counts_to_draw(label_counts, index, len(plan.unlabeled), settings)
    if len(plan.labeled) and not label_counts.all():
        missing = [label for label, count in zip(labels, label_counts, strict=True) if not count]
        run.context.warn(
            f"{len(missing)} of {len(labels)} labels have no labelled row ({quoted(missing, 3)}): iPET draws "
            "unlabelled rows for them as for a label with one row, by models that have not seen the label."
        )
    if capped:
        run.context.warn(
            f"There are {len(plan.unlabeled):,} unlabelled rows, too few for generation {index}: its training sets are "
            "smaller, with the labels in the same ratio."
        )
    scores = {teacher: members[teacher].unlabeled_scores() for teacher in members_to_score(teachers)}
    weights = [pair_weights[member.pair] for member in members]
    by_untrained = len(plan.labeled) == 0 and index == 1  # the teachers are the untrained pairs
    combine = _combine_with(others, run, [members[member] for member in sorted(scores)], pair_weights)
    selections = []
    for member, member_teachers in enumerate(teachers):
        rng = np.random.default_rng([plan.recipe.seed, index, member, 1])
        if decision.multilabel:
            chosen = [int(teacher) for teacher in member_teachers]
            s_n = Ensemble([scores[teacher] for teacher in chosen], [weights[teacher] for teacher in chosen])
            selections.append(select_label_sets(s_n, counts, decision, rng))
            continue
        selections.append(
            select_training_rows(scores, weights, counts, settings, member_teachers, rng, by_untrained, combine)
        )
    _warn_of_topped_up(run, index, selections)
    return selections


def _combine_with(
    others: OtherTeachers | None, run: Run, members: Sequence[Member], pair_weights: Sequence[float]
) -> Callable[[Ensemble], LazyScores] | None:
    """A function that joins some members' scores with the votes of other teachers; None where there are none."""
    if not others:
        return None
    plan, weights = run.plan, [pair_weights[member.pair] for member in members]
    before_training = pair_weights if len(plan.labeled) and plan.recipe.weighting != "uniform" else None
    return others.combine([pattern_votes(run, members, weights, before_training)]).with_patterns


def _warn_of_topped_up(run: Run, index: int, selections: Sequence[Selection]) -> None:
    """Warn of labels that had too few rows of their own."""
    labels = run.plan.task.labels
    topped_up = np.max([selection.topped_up for selection in selections], axis=0)
    if topped_up.any():
        short = [label for label in np.argsort(-topped_up, kind="stable") if topped_up[label]]
        lacking = ", ".join(f"{labels[label]} {topped_up[label]:,}" for label in sorted(short[:SHOWN_LABELS]))
        more = f" and {len(short) - SHOWN_LABELS} more labels" if len(short) > SHOWN_LABELS else ""
        run.context.warn(
            f"In generation {index} some labels had too few rows of their own and were topped up with the next best "
            f"(at most: {lacking}{more})."
        )


def _evaluate_generation(
    run: Run,
    index: int,
    members: Sequence[Member],
    previous: Sequence[Member] | None,
    pair_weights: Sequence[float],
    decision: Decision,
    selections: Sequence[Selection] | None = None,
) -> Generation:
    """A generation's metrics: its training rows, its certainty, its agreement with the previous one, its accuracy."""
    plan, labels = run.plan, run.plan.task.labels
    ensemble = _ensemble(members, pair_weights)
    before = None if previous is None else _ensemble(previous, pair_weights)
    certainty, agreement = _compare(ensemble, before, decision)
    generation = Generation(
        generation=index,
        members=len(members),
        training_rows=len(plan.labeled),
        jobs=[member.job for member in members],
        certainty=certainty,
        agreement=agreement,
        consensus=_consensus(ensemble, decision),
    )
    if selections is not None:
        drawn = np.mean([_label_counts(s.labels, len(labels)) for s in selections], axis=0)
        generation = generation.model_copy(
            update={
                "training_rows": len(plan.labeled) + round(float(np.mean([len(s.rows) for s in selections]))),
                "drawn": {label: float(count) for label, count in zip(labels, drawn, strict=True)},
                "certainty_of_drawn": float(np.mean([s.certainty for s in selections])),
                "topped_up": int(np.sum([s.topped_up.sum() for s in selections])),
            }
        )
    if plan.test is not None:
        metrics = evaluate_members(plan, members, decision)
        summary = {name: getattr(metrics, name) for name in ("accuracy", "macro_f1", "micro_f1", "min", "max")}
        generation = generation.model_copy(update=summary | {"each": [_summarize(member) for member in metrics.each]})
    on_test = "" if generation.accuracy is None else f", mean accuracy {100 * generation.accuracy:.1f}"
    agreeing = "" if agreement is None else f", agrees with the one before on {100 * agreement:.1f}%"
    run.context.log(f"generation {index}: {generation.training_rows:,} training rows per member{on_test}{agreeing}")
    return generation


def _label_counts(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    """How many rows have each label, of indices or of a matrix of 0 and 1."""
    return labels.sum(axis=0, dtype=np.int64) if labels.ndim == 2 else np.bincount(labels, minlength=count)


def _summarize(member: MemberMetrics) -> MemberMetrics:
    """A member's metrics without details, which metrics.json has of the last generation's members alone."""
    return MemberMetrics(**member.model_dump(include={"pair", "seed", "job", "accuracy", "macro_f1", "micro_f1"}))


def _ensemble(members: Sequence[Member], pair_weights: Sequence[float]) -> Ensemble | None:
    """The ensemble of those members that were asked to score the unlabelled rows."""
    scored = [member for member in members if member.scored_unlabeled]
    if not scored:
        return None
    return Ensemble([member.unlabeled_scores() for member in scored], [pair_weights[member.pair] for member in scored])


def _consensus(ensemble: Ensemble | None, decision: Decision) -> float | None:
    """The mean over the members of the fraction of rows to which they give the ensemble's label, or labels."""
    if ensemble is None:
        return None
    agreeing = 0.0
    for start, scores in ensemble.chunks(chunk_rows(ensemble.scores[0].shape[1], CHUNK_SIZE)):
        stop = start + len(scores)
        agreeing += float(np.mean([decision.same(of[start:stop], scores).sum() for of in ensemble.scores]))
    return agreeing / len(ensemble)


def _compare(
    ensemble: Ensemble | None, previous: Ensemble | None, decision: Decision
) -> tuple[float | None, float | None]:
    """The mean probability of the predicted labels, and the fraction of rows that are predicted as before."""
    if ensemble is None:
        return None, None
    certainty, agreeing = 0.0, 0
    for start, scores in ensemble.chunks(chunk_rows(ensemble.scores[0].shape[1], CHUNK_SIZE)):
        certainty += float(decision.certainty(scores).sum())
        if previous is not None:
            agreeing += int(decision.same(scores, previous[start : start + len(scores)]).sum())
    rows = len(ensemble)
    return certainty / rows, None if previous is None else agreeing / rows
