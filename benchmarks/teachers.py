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
and a classifier of its soft labels. The members of a model are trained once, and their scores combined with the other
teachers' votes as `clozify.train` does; classifiers are those of each part alone and of patterns with rules. Of rules
alone, rows on which none
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
from clozify.methods.ensemble import combine_scores
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import new_classifier
from clozify.models.loading import count_encoder_parameters
from clozify.runs.metrics import Metrics
from clozify.runs.records import TEST_SCORES, UNLABELED_SCORES, EnsembleRecord
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


def train(setting: Setting, parts: Sequence[str], folder: Path, distilled: bool) -> clozify.TrainResult:
    """Train an ensemble; those of a model share a folder, so that its members are trained once."""
    changes: dict[str, Any] = {"rules": setting.task.rules if "rules" in parts else []}
    main_model = setting.model if "patterns" in parts else str(setting.smollm2)
    if "smollm2" in parts and "patterns" in parts:
        changes["teachers"] = [{"kind": "model", "model": setting.smollm2, "name": "smollm2"}]
    task = setting.plain.with_changes(**changes)
    settings = ["adapter.method=lora"] if main_model != setting.model else []
    if not setting.examples:
        settings += ["ipet.generations=0", "ipet.calibrate=true"]
    if not distilled:
        settings.append("distill.max_steps=0")
    return clozify.train(
        task,
        setting.labeled.with_task(task) if setting.examples else None,
        folder / ("run" if main_model == setting.model else "smollm2"),
        unlabeled=setting.unlabeled.with_task(task),
        test=setting.test.with_task(task),
        method="pet" if setting.examples else "ipet",
        model=main_model,
        student=setting.model,
        settings=[*settings, *setting.settings, f"seed={setting.seed}"],
        replace=True,
    )


@dataclass(frozen=True)
class Scored:
    """A teacher's scores of the unlabelled and the test rows, (rows, labels), and its votes on T."""

    unlabeled: Votes
    test: NDArray[Any]


def read_patterns(setting: Setting, run: Path) -> dict[str, Scored]:
    """The patterns of each model of a finished run as one teacher, as `clozify.train` combines them."""
    record, metrics = EnsembleRecord.load(run), Metrics.load(run / "metrics.json")
    before = None if metrics.untrained is None else metrics.untrained.accuracy_on_labeled
    names, scored = [pair.name for pair in setting.plain.pairs], {}
    for model in dict.fromkeys(entry.teacher for entry in record.weights):
        entries = [entry for entry in record.weights if entry.teacher == model]
        kind = "members" if setting.examples else "untrained"
        folders, weights = [run / kind / entry.member for entry in entries], [entry.weight for entry in entries]
        rows, voters = len(setting.labeled), [np.load(folder / UNLABELED_SCORES) for folder in folders]
        accuracies = [before[names.index(entry.pair)] if before and model is None else None for entry in entries]
        on_labeled = [OnLabeled() if a is None else OnLabeled(rows, rows * a).at_most(5) for a in accuracies]
        votes_on_unlabeled = Votes(combine_scores(voters, weights), tuple(on_labeled), tuple(voters))
        test = combine_scores([np.load(folder / TEST_SCORES) for folder in folders], weights)
        scored["patterns" if model is None else model] = Scored(votes_on_unlabeled, test)
    return scored


def score_teachers(setting: Setting, folder: Path) -> dict[str, list[Scored]]:
    """The rules, the random teacher, and copies."""
    context, rules = setting.context(folder), rule_teachers(setting.task)

    def score(teacher: Teacher) -> Scored:
        on_labeled = _right_votes(teacher.score(setting.labeled, context), setting.labeled)
        return Scored(
            Votes(teacher.score(setting.sampled, context), (on_labeled,)), teacher.score(setting.test, context)
        )

    of_rules, random = [score(rule) for rule in rules], score(RandomTeacher(setting.seed))
    most = max(of_rules, key=lambda scored: int((hard_votes(scored.unlabeled.scores) >= 0).sum()))
    return {
        "rules": of_rules,
        "random": [random],
        "random5": [random] * COPIES,
        "copies": [most] * (COPIES - 1),  # the rule itself is the first
    }


def measure(setting: Setting, ensembles: Sequence[Sequence[str]], folder: Path) -> Iterator[dict[str, Any]]:
    """The results of all ensembles, and the classifiers of those without random teachers and copies."""
    scored: dict[str, list[Scored]] = score_teachers(setting, folder)
    for model in ("patterns", "smollm2"):
        if any(model in parts for parts in ensembles):
            run = train(setting, [model], folder, distilled=[model] in ensembles)
            (of_model,) = read_patterns(setting, Path(run.run.folder)).values()
            scored[model] = [of_model]
            if [model] in ensembles and run.metrics.classifier is not None:
                yield {"teachers": model, "result": "classifier", "accuracy": run.metrics.classifier.accuracy}
    truth = setting.test.labels
    for parts in ensembles:
        teachers = [teacher for part in parts for teacher in scored[part]]
        combined = combine_votes([t.test for t in teachers], fit_weights([t.unlabeled for t in teachers]))
        if len(teachers) == 1:
            combined = teachers[0].test
        right = combined.argmax(axis=1) == truth
        if list(parts) == ["rules"]:
            yield from ({"teachers": "rules", **line} for line in rules_alone(setting, folder))
            continue
        yield {"teachers": "+".join(parts), "result": "ensemble", "accuracy": float(right.mean())}
        if list(parts) == ["patterns", "rules"]:
            classifier = train(setting, parts, folder, distilled=True).metrics.classifier
            if classifier is not None:
                yield {"teachers": "+".join(parts), "result": "classifier", "accuracy": classifier.accuracy}


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
    if smollm2 is None and any("smollm2" in parts for parts in ensembles):
        print("Ensembles with smollm2 are left out: CLOZIFY_SMOLLM2 names no model.", file=sys.stderr)
        ensembles = [parts for parts in ensembles if "smollm2" not in parts]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for result in measure(setting, ensembles, Path(folder)):
            line = {"task": task, "examples": examples, "seed": seed, "model": model, **result}
            seconds = round(time.perf_counter() - started, 1)
            print(json.dumps(line | {"test_rows": len(setting.test), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    typer.run(main)
