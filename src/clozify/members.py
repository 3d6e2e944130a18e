"""The ensemble's members: every pair times every seed (section 3.3, step 1), and the pairs before any training.

In: a run's plan and a `ClozeModel`. Out: for each member its raw scores of the pile and the test rows. Scores are the
artifact, not the model: a member's weights are dropped once it has scored, unless there is no pile to distill from.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.cloze import ClozeModel
from clozify.data import Rows
from clozify.encode import Encoded
from clozify.metrics import evaluate
from clozify.plan import Plan
from clozify.questions import Questions
from clozify.run import RunFolder, key_of
from clozify.steps.annotate import annotate
from clozify.steps.finetune import finetune


def untrained(plan: Plan, folder: RunFolder, model: ClozeModel, questions: Questions) -> dict[str, Any]:
    """Every pair's accuracy before any training: on T, for the weights; on the test rows, the paper's lines 1 and 2."""
    pairs = [[pair.pattern.text, pair.verbalizer.model_dump()] for pair in plan.task.pairs]
    key = key_of(step="untrained", pairs=pairs, **plan.shared_key)
    place = folder.job("untrained", key) / "untrained.json"
    if not place.exists():
        plan.say("scoring the labelled and test rows before training")
        found: dict[str, Any] = {}
        for name, rows in (("labeled", plan.labeled), ("test", plan.test)):
            if rows is None:
                continue
            scores = _scored(plan, model, questions, rows)
            each = [evaluate(rows.labels, of_pair.argmax(axis=-1), scores.shape[-1]) for of_pair in scores]
            if name == "labeled":
                found["accuracy_on_labeled"] = [result["accuracy"] for result in each]
            else:
                found["test"] = {
                    metric: float(np.mean([result[metric] for result in each])) for metric in ("accuracy", "macro_f1")
                } | {"best": max(result["accuracy"] for result in each), "pairs": each}
        with folder.writing("untrained", key) as beside:
            (beside / "untrained.json").write_text(json.dumps(found, indent=2))
    result: dict[str, Any] = json.loads(place.read_text())
    return result


def _scored(plan: Plan, model: ClozeModel, questions: Questions, rows: Rows) -> NDArray[np.float32]:
    parts = [part for _, part in annotate(model, questions, rows, plan.recipe.max_seq_length)]
    return np.concatenate(parts, axis=1)


def train_members(plan: Plan, folder: RunFolder, model: ClozeModel, questions: Questions) -> list[dict[str, Any]]:
    """Every pair times every seed: fine-tuned, its scores of the pile and the test rows kept, its weights dropped."""
    recipe = plan.recipe
    section = recipe.finetune if plan.with_lm else recipe.finetune_without_lm
    pairs = plan.task.pairs
    jobs = [
        (n, pair, seed)
        for n, (pair, seeds) in enumerate(zip(pairs, plan.seeds(len(pairs)), strict=True))
        for seed in seeds
    ]
    initial = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    members = []
    began, fresh = time.monotonic(), 0
    for number, (place, pair, seed) in enumerate(jobs, start=1):
        key = key_of(
            step="finetune",
            pattern=pair.pattern.text,
            words=pair.verbalizer.words,
            seed=seed,
            settings=section.model_dump(),
            with_lm=plan.with_lm,
            balance=recipe.balance,
            attention_dropout=recipe.attention_dropout,
            keep=plan.unlabeled is None,
            **plan.shared_key,
        )
        member: dict[str, Any] = {"pair": place, "seed": seed, "folder": folder.job("members", key)}
        members.append(member)
        name = f"member {number}/{len(jobs)}  {pair.name}  seed {seed}"
        if (member["folder"] / "member.json").exists():
            plan.say(f"{name}  already there")
            continue
        model.model.load_state_dict(initial)
        started = time.monotonic()
        question = questions.only(place)
        pile = questions.keep(model, plan.unlabeled) if plan.with_lm and plan.unlabeled is not None else None
        template = question.asked[0].template
        length = min(recipe.max_seq_length, model.longest)

        def on_dev(question: Questions = question) -> NDArray[np.float32]:
            assert plan.dev is not None
            return _scored(plan, model, question, plan.dev)[0]  # type: ignore[no-any-return]

        with plan.watching(name, section.steps(len(plan.labeled)), on_dev) as (watch, looks):
            course = finetune(
                model,
                question.asked[0].words[0],
                Encoded(template, questions.keep(model, plan.labeled), length),
                plan.labeled.labels,
                Encoded(template, pile, length) if pile is not None else None,
                recipe,
                seed,
                plan.accelerator,
                watch,
            )
        trained = time.monotonic() - started
        with folder.writing("members", key) as beside:
            for rows, file in ((plan.unlabeled, "pile.npy"), (plan.test, "test.npy")):
                if rows is not None:
                    questions.keep(model, rows)
                    np.save(beside / file, _scored(plan, model, question, rows)[0])
            if plan.unlabeled is None:
                model.model.save_pretrained(beside / "model")
                model.tokens.tokenizer.save_pretrained(beside / "model")
            on_labeled = _scored(plan, model, question, plan.labeled)[0].argmax(axis=-1)
            description = {
                "pair": pair.name,
                "pattern": pair.pattern.text,
                "seed": seed,
                "loss": course,
                "dev": looks,
                "accuracy_on_labeled": float((on_labeled == plan.labeled.labels).mean()),
                "training_seconds": trained,
                "seconds": time.monotonic() - started,
            }
            (beside / "member.json").write_text(json.dumps(description, indent=2))
        fresh += 1
        left = (len(jobs) - number) * (time.monotonic() - began) / fresh
        loss = course[-1] if course else float("nan")
        on_dev_rows = f"  dev {100 * max(looks):.1f}" if looks else ""
        plan.say(
            f"{name}  loss {loss:.4f}{on_dev_rows}  trained in {trained:,.0f} s, all in {description['seconds']:,.0f} s"
            f"  about {left / 60:,.0f} min left for members"
        )
    return members


def member_metrics(plan: Plan, members: list[dict[str, Any]], truth: NDArray[np.int16]) -> dict[str, Any]:
    """Each member's numbers on the test rows, each pair's mean, and the worst and the best pair."""
    each = []
    for member in members:
        scores = np.load(member["folder"] / "test.npy")
        result = evaluate(truth, scores.argmax(axis=-1), scores.shape[-1])
        each.append({"pair": plan.task.pairs[member["pair"]].name, "seed": member["seed"], **result})
    pairs = {
        pair.name: {
            metric: float(np.mean([m[metric] for m in each if m["pair"] == pair.name]))
            for metric in ("accuracy", "macro_f1")
        }
        for pair in plan.task.pairs
    }
    accuracies = [of_pair["accuracy"] for of_pair in pairs.values()]
    return {
        "accuracy": float(np.mean([m["accuracy"] for m in each])),
        "macro_f1": float(np.mean([m["macro_f1"] for m in each])),
        "min": min(accuracies),
        "max": max(accuracies),
        "pairs": pairs,
        "each": each,
    }
