"""Teachers alone and joined: accuracy on test rows with 0 and 10 examples, one JSON object a line.

    python benchmarks/teachers.py debian --examples 10
    python benchmarks/teachers.py agnews --data FOLDER --examples 0 --teachers patterns,rules,patterns+rules

`--teachers` is a list of ensembles, each of these parts joined by +:

- `patterns`: those of the task, with `--model`
- `rules`: the eight of the task file in `benchmarks/teachers/`, written before any test row was read
- `smollm2`: SmolLM2-135M-Instruct with the task's patterns, from the GGUF file or folder that the environment variable
  CLOZIFY_SMOLLM2 names; alone, it is fine-tuned by LoRA
- `random`: votes at random for every row; `random5`: five copies of that
- `copies`: the rule that votes most, five times

With examples PET is measured: its ensemble and its classifier. Without any, the calibrated ensemble without training,
and a classifier of its soft labels. Ensembles with `random` or `copies` are measured without a classifier. All
ensembles of a model share a run's folder, so that its members are trained once. Of rules alone, rows on which none
votes count 1 / |L|, and the classifier learns from the others. FOLDER holds train_first1000_per_class.csv,
train_pool.csv and test.csv of AG's News. The examples of seed 0 are the first of each label, which the rules were
written from; other seeds draw others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from accelerate import Accelerator
from numpy.typing import NDArray

import clozify
from clozify.config.auto import Conditions, fit_recipe
from clozify.config.recipe import Recipe, load_recipe
from clozify.methods.combination import OnLabeled, Votes, combine_votes, fit_weights, hard_votes
from clozify.methods.distill import distill, soft_labels
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import new_classifier
from clozify.models.loading import count_encoder_parameters
from clozify.teachers.base import Cost, ScoringContext, Teacher, votes
from clozify.teachers.rules import rule_teachers
from clozify.training.loop import TrainingSetup, seed_everything

TASKS = Path(__file__).resolve().parent / "teachers"
FILES = {"labeled": "train_first1000_per_class.csv", "unlabeled": "train_pool.csv", "test": "test.csv"}
PARTS = ("patterns", "rules", "smollm2", "random", "random5", "copies")
DEFAULT = (
    "patterns,rules,smollm2,patterns+rules,patterns+smollm2,rules+smollm2,patterns+rules+smollm2,"
    "patterns+random,patterns+random5,patterns+rules+random,patterns+rules+random5,patterns+rules+copies,"
    "patterns+rules+smollm2+random,patterns+rules+smollm2+copies"
)
COPIES = 5


@dataclass(frozen=True)
class RandomTeacher:
    """Votes for a label that depends on nothing but the row's text and a seed."""

    seed: int
    name: str = "random"
    kind: str = "function"

    def key(self) -> dict[str, Any]:
        """The seed."""
        return {"random": self.seed}

    def cost(self, rows: clozify.Rows) -> Cost:  # noqa: ARG002
        """It is free."""
        return Cost()

    def score(self, rows: clozify.Rows, context: ScoringContext) -> NDArray[np.float32]:  # noqa: ARG002
        """A vote for every row: (rows, labels)."""
        labels = len(rows.task.labels)
        drawn = [np.random.default_rng([self.seed, int(row)]).integers(labels) for row in rows.fingerprints()]
        return votes(np.array(drawn, dtype=np.int64), labels)


@dataclass(frozen=True)
class Copy:
    """Votes as another teacher does."""

    teacher: Teacher
    number: int

    @property
    def name(self) -> str:
        """The teacher's name, with a number."""
        return f"{self.teacher.name}, copy {self.number}"

    @property
    def kind(self) -> str:
        """The teacher's kind."""
        return self.teacher.kind

    def key(self) -> dict[str, Any]:
        """What the teacher depends on, and the number."""
        return {**self.teacher.key(), "copy": self.number}

    def cost(self, rows: clozify.Rows) -> Cost:
        """What the teacher costs."""
        return self.teacher.cost(rows)

    def score(self, rows: clozify.Rows, context: ScoringContext) -> NDArray[np.float32]:
        """The teacher's scores."""
        return self.teacher.score(rows, context)


@dataclass(frozen=True)
class Setting:
    """One task with some examples, a seed and a model."""

    task: clozify.Task  # with its rules
    sources: dict[str, str]
    examples: int
    seed: int
    model: str
    smollm2: str | None
    settings: tuple[str, ...]
    test_rows: int | None

    @cached_property
    def device(self) -> str:
        """Where models run."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def plain(self) -> clozify.Task:
        """The task with its patterns alone."""
        return self.task.with_changes(rules=[], teachers=[])

    def read(self, name: str) -> clozify.Rows:
        """The rows of a file."""
        return clozify.read_rows(self.sources[name], self.plain)

    @cached_property
    def labeled(self) -> clozify.Rows:
        """T."""
        return clozify.few_shot(self.read("labeled"), self.examples, self.seed or None)

    @cached_property
    def test(self) -> clozify.Rows:
        """The test rows, or some of them at random."""
        rows = self.read("test")
        if self.test_rows is None or self.test_rows >= len(rows):
            return rows
        return rows.select(np.sort(np.random.default_rng(0).choice(len(rows), self.test_rows, replace=False)))

    @cached_property
    def unlabeled(self) -> clozify.Rows:
        """The unlabelled rows without those of T and the test set."""
        return self.read("unlabeled").excluding(self.labeled, self.read("test"))

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that `clozify.train` takes for the patterns."""
        conditions = Conditions(
            device=self.device,
            encoder_parameters=count_encoder_parameters(self.model),
            labels=len(self.task.labels),
            labeled=len(self.labeled),
            unlabeled=len(self.unlabeled),
            method="pet" if self.examples else "ipet",
        )
        return load_recipe(fit_recipe(load_recipe("auto", self.settings), conditions), self.settings)

    @cached_property
    def sampled(self) -> clozify.Rows:
        """As many unlabelled rows as the recipe takes."""
        count = self.recipe.unlabeled_rows or len(self.unlabeled)
        return self.unlabeled.select(np.sort(np.argsort(self.unlabeled.fingerprints(), kind="stable")[:count]))

    def context(self, folder: Path) -> ScoringContext:
        """What teachers may use."""
        return ScoringContext(self.labeled, self.device, folder, lambda line: None)


def rules_alone(setting: Setting, folder: Path) -> Iterator[dict[str, Any]]:
    """The rules' combined votes, and a classifier that learns from the unlabelled rows on which they vote."""
    context, teachers = setting.context(folder), rule_teachers(setting.task)
    labeled, sampled, test = (
        [teacher.score(rows, context) for teacher in teachers]
        for rows in (setting.labeled, setting.sampled, setting.test)
    )
    on_labeled = [_right_votes(scores, setting.labeled) for scores in labeled]
    weights = fit_weights([Votes(scores, (on,)) for scores, on in zip(sampled, on_labeled, strict=True)])
    covered, truth = _covered(test), setting.test.labels
    right = (combine_votes(test, weights).argmax(axis=1) == truth)[covered]
    accuracy = float((right.sum() + (~covered).sum() / len(setting.task.labels)) / len(covered))
    yield {
        "result": "ensemble",
        "accuracy": accuracy,
        "coverage": float(covered.mean()),
        "accuracy_where_rules_vote": float(right.mean()),
    }
    rows = np.flatnonzero(_covered(sampled))
    targets = soft_labels(combine_votes(sampled, weights)[rows], setting.recipe.distill.temperature)
    rng = seed_everything(setting.seed)
    classifier = new_classifier(setting.model, setting.plain, setting.recipe, setting.device)
    setup = TrainingSetup(setting.recipe.distill, rng, Accelerator(cpu=setting.device == "cpu"))
    distill(classifier, classifier.encode(setting.sampled.select(rows)), targets, setup)
    chunks = classifier.score_rows(setting.test, TOKENS_PER_BATCH[setting.device])
    predicted = np.concatenate([scores.argmax(axis=1) for _, scores in chunks])
    yield {"result": "classifier", "accuracy": float((predicted == truth).mean())}


def _right_votes(scores: NDArray[np.float32], labeled: clozify.Rows) -> OnLabeled:
    """How often a teacher votes on T, and how often it is right."""
    if not len(labeled):
        return OnLabeled()
    predicted = hard_votes(scores)
    return OnLabeled(float((predicted >= 0).sum()), float((predicted == labeled.labels).sum()))


def _covered(scores: Sequence[NDArray[np.float32]]) -> NDArray[np.bool_]:
    """Whether some teacher votes on each row."""
    return np.asarray(np.any([hard_votes(of_teacher) >= 0 for of_teacher in scores], axis=0))


def more_teachers(setting: Setting, parts: Sequence[str], folder: Path) -> list[Teacher]:
    """The teachers that are no part of the task."""
    teachers: list[Teacher] = []
    if "random" in parts:
        teachers.append(RandomTeacher(setting.seed))
    if "random5" in parts:
        teachers += [Copy(RandomTeacher(setting.seed), number) for number in range(1, COPIES + 1)]
    if "copies" in parts:
        rules, context = rule_teachers(setting.task), setting.context(folder)
        most = max(rules, key=lambda rule: int((hard_votes(rule.score(setting.sampled, context)) >= 0).sum()))
        teachers += [Copy(most, number) for number in range(2, COPIES + 1)]  # the rule itself is the first
    return teachers


def measure(setting: Setting, parts: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """The results of one ensemble."""
    if list(parts) == ["rules"]:
        yield from rules_alone(setting, folder)
        return
    changes: dict[str, Any] = {"rules": setting.task.rules if "rules" in parts else []}
    main_model, options = setting.model, dict[str, Any]()
    if "smollm2" in parts and "patterns" in parts:
        changes["teachers"] = [{"kind": "model", "model": setting.smollm2, "name": "smollm2"}]
    elif "smollm2" in parts:
        main_model = str(setting.smollm2)
    task = setting.plain.with_changes(**changes)
    if teachers := more_teachers(setting, parts, folder):
        options["teachers"] = teachers
    test = setting.test.with_task(task)
    settings = ["adapter.method=lora"] if main_model != setting.model else []
    if not setting.examples:
        settings += ["ipet.generations=0", "ipet.calibrate=true"]
    settings = [*settings, *setting.settings, f"seed={setting.seed}"]
    if without_classifier := bool({"random", "random5", "copies"}.intersection(parts)):
        settings.append("distill.max_steps=0")
    trained = clozify.train(
        task,
        setting.labeled.with_task(task) if setting.examples else None,
        folder / ("run" if main_model == setting.model else "smollm2"),
        unlabeled=setting.unlabeled.with_task(task),
        test=test,
        method="pet" if setting.examples else "ipet",
        model=main_model,
        student=setting.model,
        settings=settings,
        replace=True,
        **options,
    )
    for name in ("ensemble",) if without_classifier else ("ensemble", "classifier"):
        if (metrics := getattr(trained.metrics, name)) is not None:
            yield {"result": name, "accuracy": metrics.accuracy}


def main(
    task: Annotated[str, typer.Argument(help="debian or agnews.")],
    data: Annotated[Path | None, typer.Option(help="The folder with AG's News.")] = None,
    examples: Annotated[int, typer.Option(help="0 or 10.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the draw of examples, 0 for the first, and of the training.")] = 0,
    teachers: Annotated[str, typer.Option(help="Ensembles to measure.")] = DEFAULT,
    model: Annotated[str, typer.Option(help="The masked language model, and the final classifier's.")] = "builtin",
    test_rows: Annotated[int | None, typer.Option(help="Measure on so many test rows, drawn at random.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A recipe's setting, NAME=VALUE.")] = None,
) -> None:
    """Print one JSON object a result."""
    smollm2 = os.environ.get("CLOZIFY_SMOLLM2")
    ensembles = [name.split("+") for name in teachers.split(",")]
    if unknown := {part for parts in ensembles for part in parts} - set(PARTS):
        raise typer.BadParameter(f"unknown parts {sorted(unknown)}; the parts are {', '.join(PARTS)}")
    sources = {name: f"builtin:{name}" if data is None else str(data / file) for name, file in FILES.items()}
    loaded = clozify.load_task(TASKS / f"{task}.toml")
    setting = Setting(loaded, sources, examples, seed, model, smollm2, tuple(settings or ()), test_rows)
    with tempfile.TemporaryDirectory() as folder:
        for parts in ensembles:
            if "smollm2" in parts and smollm2 is None:
                print(f"{'+'.join(parts)} is left out: CLOZIFY_SMOLLM2 names no model.", file=sys.stderr)
                continue
            started = time.perf_counter()
            for result in measure(setting, parts, Path(folder)):
                line = {"task": task, "examples": examples, "seed": seed, "model": model, "teachers": "+".join(parts)}
                seconds = round(time.perf_counter() - started, 1)
                print(json.dumps(line | result | {"test_rows": len(setting.test), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    typer.run(main)
