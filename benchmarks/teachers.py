"""Teachers alone and joined: accuracy on test rows with 0 and 10 examples, for several draws of the examples.

    python benchmarks/teachers.py debian --output FOLDER --examples 10 --seeds 0
    python benchmarks/teachers.py agnews debian --data NEWS --output FOLDER --processes 6

NEWS holds train_first1000_per_class.csv, train_pool.csv and test.csv of AG's News. A cell is a task, a number of
examples and a seed; it has a folder in FOLDER with the trained members, the scores of every ensemble and one JSON
object a result in results.jsonl. What is there is not computed again, so a command that was stopped is given again. At
the end, or with `--summary` alone, a table has the mean over the seeds.

`--teachers` is a list of ensembles, each of these parts joined by +:

- `patterns`: those of the task, with `--model`
- `rules`: the eight of the task file in `benchmarks/teachers/`, written before any test row was read
- `smollm2`: SmolLM2-135M-Instruct with the task's patterns, from the GGUF file or folder that the environment variable
  CLOZIFY_SMOLLM2 names; with examples it is fine-tuned by LoRA
- `random`: votes at random for every row; `random5`: five copies of that
- `copies`: the rule that votes most, four times more

With examples PET is measured, without any the calibrated patterns without training. The members of a model are trained
once, and their scores combined with the other teachers' votes as `clozify.train` does. `--classifiers` says of which
ensembles a classifier is distilled. Of rules alone, rows on which none votes count 1 / |L|, and the classifier learns
from the others. The examples of seed 0 are the first of each label, which the rules were written from; other seeds draw
others. Without examples the seed draws the unlabelled rows.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from clozify.data.label_matrix import indicators
from clozify.methods.combination import COMBINED_TEMPERATURE, combine_votes, fit_weights
from clozify.methods.distill import confident_rows, distill, soft_labels
from clozify.methods.ensemble import combine_scores
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.methods.votes import OnLabeled, Votes, hard_votes
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
MODELS = ("patterns", "smollm2")
CLASSIFIERS = "patterns,rules,smollm2,patterns+rules,patterns+smollm2,patterns+rules+smollm2"
HARMLESS = (
    "patterns+random,patterns+random5,smollm2+random,patterns+rules+random,patterns+rules+random5,"
    "patterns+rules+copies,patterns+smollm2+random,patterns+rules+smollm2+random,patterns+rules+smollm2+random5,"
    "patterns+rules+smollm2+copies"
)
ENSEMBLES = f"{CLASSIFIERS},rules+smollm2,{HARMLESS}"
SMOLLM2_SETTINGS = ("generative.chat=never", "max_pairs=3")
COPIES = 5
RESULTS = "results.jsonl"


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
class Cell:
    """One task with some examples and a seed, its models and its folder."""

    task: clozify.Task  # with its rules
    sources: dict[str, str]
    examples: int
    seed: int
    model: str
    smollm2: str | None
    settings: tuple[str, ...]
    test_rows: int | None
    folder: Path

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
    def recipe(self) -> Recipe:
        """The recipe that `clozify.train` takes for the patterns."""
        conditions = Conditions(
            device=self.device,
            encoder_parameters=count_encoder_parameters(self.model),
            labels=len(self.task.labels),
            labeled=len(self.labeled),
            unlabeled=len(self._all_unlabeled),
            method="pet" if self.examples else "ipet",
        )
        return load_recipe(fit_recipe(load_recipe("auto", self.settings), conditions), self.settings)

    @cached_property
    def _all_unlabeled(self) -> clozify.Rows:
        return self.read("unlabeled").excluding(self.labeled, self.read("test"))

    @cached_property
    def unlabeled(self) -> clozify.Rows:
        """As many unlabelled rows as the recipe takes, drawn by the seed."""
        rows = self._all_unlabeled
        count = min(self.recipe.unlabeled_rows or len(rows), len(rows))
        return rows.select(np.sort(np.random.default_rng(self.seed).choice(len(rows), count, replace=False)))

    @cached_property
    def context(self) -> ScoringContext:
        """What teachers may use."""
        return ScoringContext(self.labeled, self.device, self.folder, lambda line: None)


@dataclass(frozen=True)
class Scored:
    """A teacher's scores of the unlabelled rows, with its votes on T, and of the test rows, (rows, labels)."""

    unlabeled: Votes
    test: NDArray[Any]


def train_members(cell: Cell, model: str) -> Scored:
    """The patterns of a model as one teacher: trained by PET or, without examples, calibrated."""
    smollm2 = model == "smollm2"
    settings = [*cell.settings, *(SMOLLM2_SETTINGS if smollm2 else ()), f"seed={cell.seed}", "distill.max_steps=0"]
    if not cell.examples:
        settings += ["ipet.generations=0", "ipet.calibrate=true"]
    elif smollm2:
        settings.append("adapter.method=lora")
    run = cell.folder / model
    clozify.train(
        cell.plain,
        cell.labeled if cell.examples else None,
        run,
        unlabeled=cell.unlabeled,
        test=cell.test,
        method="pet" if cell.examples else "ipet",
        model=str(cell.smollm2) if smollm2 else cell.model,
        student=cell.model,
        settings=[*settings, f"unlabeled_rows={len(cell.unlabeled)}"],
        replace=True,
    )
    return read_members(cell, run)


def read_members(cell: Cell, run: Path) -> Scored:
    """The members of a finished run as one teacher, as `clozify.train` combines them with others."""
    record, metrics = EnsembleRecord.load(run), Metrics.load(run / "metrics.json")
    before = None if metrics.untrained is None else metrics.untrained.accuracy_on_labeled
    names, rows = [pair.name for pair in cell.plain.pairs], len(cell.labeled)
    folders = [run / ("members" if cell.examples else "untrained") / entry.member for entry in record.weights]
    weights = [entry.weight for entry in record.weights]
    on_labeled = [
        OnLabeled(rows, rows * before[names.index(entry.pair)]).at_most(5) if before else OnLabeled()
        for entry in record.weights
    ]
    voters = tuple(np.load(folder / UNLABELED_SCORES) for folder in folders)
    test = combine_scores([np.load(folder / TEST_SCORES) for folder in folders], weights)
    return Scored(Votes(combine_scores(voters, weights), tuple(on_labeled), voters), test)


def score_teachers(cell: Cell) -> dict[str, list[Scored]]:
    """The rules, the random teacher, and copies."""

    def score(teacher: Teacher) -> Scored:
        predicted = hard_votes(teacher.score(cell.labeled, cell.context)) if len(cell.labeled) else np.empty(0)
        right = float((predicted == cell.labeled.labels).sum()) if len(predicted) else 0.0
        on_labeled = OnLabeled(float((predicted >= 0).sum()), right)
        unlabeled, test = (teacher.score(rows, cell.context) for rows in (cell.unlabeled, cell.test))
        return Scored(Votes(unlabeled, (on_labeled,)), test)

    rules, random = [score(rule) for rule in rule_teachers(cell.task)], score(RandomTeacher(cell.seed))
    most = max(rules, key=lambda scored: int((hard_votes(scored.unlabeled.scores) >= 0).sum()))
    return {"rules": rules, "random": [random], "random5": [random] * COPIES, "copies": [most] * (COPIES - 1)}


@dataclass(frozen=True)
class Joined:
    """An ensemble's combined scores, (rows, labels)."""

    unlabeled: NDArray[Any]
    test: NDArray[Any]
    accuracies: list[float] | None = None  # of the teachers, as estimated; None for a model's patterns alone


def join(teachers: Sequence[Scored]) -> Joined:
    """The teachers' scores combined as in `clozify.train`; patterns alone keep the paper's."""
    if len(teachers) == 1:
        return Joined(teachers[0].unlabeled.scores, teachers[0].test)
    weights = fit_weights([teacher.unlabeled for teacher in teachers])
    unlabeled = combine_votes([teacher.unlabeled.scores for teacher in teachers], weights)
    test = combine_votes([teacher.test for teacher in teachers], weights)
    return Joined(unlabeled, test, [round(weight.accuracy, 3) for weight in weights])


def accuracy_of(joined: Joined, truth: NDArray[Any]) -> float:
    """Accuracy; a row for which all labels have the same score counts 1 / |L|."""
    best = joined.test == joined.test.max(axis=1, keepdims=True)
    return float((best[np.arange(len(truth)), truth] / best.sum(axis=1)).mean())


def distilled_accuracy(cell: Cell, joined: Joined) -> float:
    """The accuracy of a classifier that learns from the soft labels and T, as in `clozify.train`."""
    settings, rows = cell.recipe.distill, np.flatnonzero(np.ptp(joined.unlabeled, axis=1) > 0)  # somebody votes
    temperature = settings.temperature if joined.accuracies is None else COMBINED_TEMPERATURE
    if joined.accuracies is not None:
        rows = rows[confident_rows(soft_labels(joined.unlabeled[rows], temperature), settings.confident_rows)]
    targets = soft_labels(joined.unlabeled[rows], temperature)
    texts = {field: list(cell.unlabeled.select(rows).texts(field)) for field in cell.plain.fields}
    if settings.labeled_rows and len(cell.labeled):
        texts = {field: [*of_field, *cell.labeled.texts(field)] for field, of_field in texts.items()}
        targets = np.concatenate([targets, indicators(cell.labeled)])
    rng = seed_everything(cell.seed)
    classifier = new_classifier(cell.model, cell.plain, cell.recipe, cell.device)
    setup = TrainingSetup(settings, rng, Accelerator(cpu=cell.device == "cpu"))
    distill(classifier, classifier.encode_texts(texts), targets, setup)
    with torch.autocast(cell.device, dtype=torch.bfloat16, enabled=classifier.trains_in_bf16):
        chunks = classifier.score_rows(cell.test, TOKENS_PER_BATCH[cell.device])
        predicted = np.concatenate([scores.argmax(axis=1) for _, scores in chunks])
    return float((predicted == cell.test.labels).mean())


def read_results(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The results of a cell that are there, by ensemble and kind."""
    path = folder / RESULTS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(line["teachers"], line["result"]): line for line in map(json.loads, lines)}


def measure(cell: Cell, ensembles: Sequence[str], classifiers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The results of all ensembles, and of their classifiers, that are not there yet."""
    done = read_results(cell.folder)
    wanted = [(name, "ensemble") for name in ensembles] + [(name, "classifier") for name in classifiers]
    missing = [key for key in wanted if key not in done]
    if not missing:
        return
    scored = score_teachers(cell)
    parts = {part for name, _ in missing for part in name.split("+")}
    scored |= {model: [train_members(cell, model)] for model in MODELS if model in parts}
    scores = cell.folder / "scores"
    scores.mkdir(exist_ok=True)
    np.save(scores / "truth.npy", cell.test.labels)
    for name, result in missing:
        joined = join([teacher for part in name.split("+") for teacher in scored[part]])
        if result == "ensemble":
            np.save(scores / f"{name}.npy", joined.test.astype(np.float32))
            line = {"accuracy": accuracy_of(joined, cell.test.labels), "estimated": joined.accuracies}
            yield {"teachers": name, "result": result, **line}
        else:
            yield {"teachers": name, "result": result, "accuracy": distilled_accuracy(cell, joined)}


def summarize(folder: Path) -> str:
    """A table of the mean accuracies over the seeds, in %, and how many seeds there are."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for path in sorted(folder.glob(f"*/{RESULTS}")):
        column = path.parent.name.rpartition("-")[0]
        for key, line in read_results(path.parent).items():
            values.setdefault(key, {}).setdefault(column, []).append(100 * line["accuracy"])
    columns = sorted({column for of_key in values.values() for column in of_key})
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for (name, result), of_key in sorted(values.items(), key=lambda item: (item[0][1] != "ensemble", item[0][0])):
        cells = [of_key.get(column, []) for column in columns]
        shown = [f"{np.mean(c):.1f} ± {np.std(c, ddof=min(1, len(c) - 1)):.1f} ({len(c)})" if c else "" for c in cells]
        lines.append(f"| {name}, {result} | {' | '.join(shown)} |")
    return "\n".join(lines)


def run_cells(commands: Sequence[tuple[str, list[str]]], processes: int, output: Path) -> None:
    """Run each cell in a process of its own, some at a time, with its output in log.txt."""

    def run(command: tuple[str, list[str]]) -> int:
        name, arguments = command
        (output / name).mkdir(parents=True, exist_ok=True)
        with (output / name / "log.txt").open("a", encoding="utf-8") as log:
            code = subprocess.run(
                [sys.executable, __file__, *arguments], stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        print(f"{name}: {'done' if code == 0 else f'failed, see {output / name}/log.txt'}", flush=True)
        return code

    with ThreadPoolExecutor(processes) as pool:
        codes = list(pool.map(run, commands))
    if any(codes):
        raise typer.Exit(1)


def main(
    tasks: Annotated[list[str], typer.Argument(help="debian, agnews or both.")],
    output: Annotated[Path, typer.Option(help="The folder of all results.")],
    data: Annotated[Path | None, typer.Option(help="The folder with AG's News.")] = None,
    examples: Annotated[str, typer.Option(help="Numbers of examples.")] = "0,10",
    seeds: Annotated[
        str, typer.Option(help="Of the draw of examples, 0 for the first, and of the training.")
    ] = "0,1,2",
    teachers: Annotated[str, typer.Option(help="Ensembles to measure.")] = ENSEMBLES,
    classifiers: Annotated[str, typer.Option(help="Ensembles to distil a classifier from.")] = CLASSIFIERS,
    model: Annotated[str, typer.Option(help="The masked language model, and the final classifier's.")] = "builtin",
    test_rows: Annotated[int | None, typer.Option(help="Measure on so many test rows, drawn at random.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A recipe's setting, NAME=VALUE.")] = None,
    processes: Annotated[int, typer.Option(help="Cells at a time.")] = 1,
    summary: Annotated[bool, typer.Option(help="Only show the table of what is there.")] = False,
) -> None:
    """Measure all cells and print a table."""
    smollm2 = os.environ.get("CLOZIFY_SMOLLM2")
    names, of_classifiers = teachers.split(","), [name for name in classifiers.split(",") if name]
    if unknown := {part for name in [*names, *of_classifiers] for part in name.split("+")} - set(PARTS):
        raise typer.BadParameter(f"unknown parts {sorted(unknown)}; the parts are {', '.join(PARTS)}")
    if smollm2 is None and any("smollm2" in name for name in [*names, *of_classifiers]):
        print("Ensembles with smollm2 are left out: CLOZIFY_SMOLLM2 names no model.", file=sys.stderr)
        names, of_classifiers = ([n for n in of if "smollm2" not in n] for of in (names, of_classifiers))
    cells = list(itertools.product(tasks, map(int, examples.split(",")), map(int, seeds.split(","))))
    if len(cells) > 1 and not summary:
        shared = ["--output", str(output), "--teachers", ",".join(names), "--classifiers", ",".join(of_classifiers)]
        shared += ["--model", model, *(["--data", str(data)] if data else [])]
        shared += [] if test_rows is None else ["--test-rows", str(test_rows)]
        shared += [part for setting in settings or () for part in ("--set", setting)]
        commands = [
            (f"{task}-{count}-{seed}", [task, "--examples", str(count), "--seeds", str(seed), *shared])
            for task, count, seed in cells
        ]
        run_cells(commands, processes, output)
    elif not summary:
        (task, count, seed), started = cells[0], time.perf_counter()
        if task != "debian" and data is None:
            raise typer.BadParameter("AG's News needs --data, the folder with its files")
        sources = {name: str((data or Path()) / file) for name, file in FILES.items()}
        if task == "debian":
            sources = {name: f"builtin:{name}" for name in FILES}
        folder = output / f"{task}-{count}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        loaded = clozify.load_task(TASKS / f"{task}.toml")
        cell = Cell(loaded, sources, count, seed, model, smollm2, tuple(settings or ()), test_rows, folder)
        for result in measure(cell, names, of_classifiers):
            line = {"task": task, "examples": count, "seed": seed, "model": model, **result}
            line |= {"test_rows": len(cell.test), "seconds": round(time.perf_counter() - started, 1)}
            with (folder / RESULTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
        return
    print(summarize(output))


if __name__ == "__main__":
    typer.run(main)
