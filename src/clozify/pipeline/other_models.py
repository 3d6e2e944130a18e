"""A mixed ensemble: the task's patterns with further language models, `[[teachers]] kind = "model"` of a task file.

Each model's members are trained like those of the run's own model, with weights from its own pairs, and are one teacher
in the combination of votes.
"""

from __future__ import annotations

from dataclasses import replace

from clozify.config.task import Task
from clozify.config.teachers import ModelEntry
from clozify.data.decision import Decision
from clozify.pipeline.generations import train_generations
from clozify.pipeline.members import first_generation, train_members
from clozify.pipeline.run import Run
from clozify.pipeline.teachers import OtherTeachers, PatternVotes, pattern_votes
from clozify.pipeline.untrained import evaluate_untrained, pair_weights


def other_models(task: Task) -> list[ModelEntry]:
    """The task's entries of further language models."""
    return [entry for entry in task.teachers if isinstance(entry, ModelEntry)]


def train_other_models(run: Run, keep_weights: bool, decision: Decision, others: OtherTeachers) -> list[PatternVotes]:
    """Train the members of every further model; `others` label rows for iPET's generations together with them."""
    return [_train_model(run, entry, keep_weights, decision, others) for entry in other_models(run.plan.task)]


def _train_model(
    run: Run, entry: ModelEntry, keep_weights: bool, decision: Decision, others: OtherTeachers
) -> PatternVotes:
    of_model = run.with_model(entry.model)
    run.context.log(f"the patterns with the model {entry.model}, a {of_model.plan.architecture}")
    for warning in of_model.worker.prompts.warnings:
        run.context.warn(warning)
    untrained, _ = evaluate_untrained(of_model)
    weights_of_pairs = pair_weights(of_model, untrained)
    if run.plan.method == "ipet":
        members, _ = train_generations(of_model, weights_of_pairs, keep_weights, decision, None, others)
    else:
        members = train_members(of_model, first_generation(of_model.plan, weights_of_pairs, keep_weights))
    weights = [weights_of_pairs[member.pair] for member in members]
    named = [replace(member, teacher=entry.title) for member in members]
    votes = pattern_votes(of_model, named, weights, untrained.accuracy_on_labeled)
    return replace(votes, name=entry.title)
