"""What do adapters (`--adapter lora`) do to accuracy, time, disk and memory?

The built-in model on its sample data, recipe `quick`, without unlabelled rows: members are fully fine-tuned and trained
as adapters, alternately, each in its own process, with the same labelled and test rows. Accuracy is the mean of the
members and of their ensembles; a step's time is the median over members; memory is the process' peak. Then steps and
scoring are timed alternately in one process, in CPU time, which other work on the machine affects least (--rounds 0
skips this, --seeds 0 skips the rest).

    python benchmarks/adapters.py [--seeds 3] [--patterns 2] [--examples 42] [--test 200] [--rounds 5] [--set ...]
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer


def measure(settings: list[str], patterns: int, examples: int, test: int) -> dict[str, Any]:
    """One run's accuracies, seconds per step of each member, bytes per member, and peak memory."""
    from clozify import train
    from clozify.config.task import load_task
    from clozify.data.few_shot import few_shot
    from clozify.data.rows import read_rows

    task = load_task("debian")
    task = task.with_changes(patterns=task.patterns[:patterns])
    rows = read_rows("builtin:test", task)
    rows = rows.select(np.unique(np.linspace(0, len(rows) - 1, min(test, len(rows))).astype(int)))
    few = few_shot(read_rows("builtin:labeled", task), examples)
    with tempfile.TemporaryDirectory() as name:
        before = _peak()
        results = train(task, few, Path(name) / "run", test=rows, recipe="quick", settings=settings).metrics
        assert results.unsupervised is not None
        assert results.members is not None
        assert results.ensemble is not None
        members = list((Path(name) / "run" / "members").iterdir())
        recipe = json.loads((Path(name) / "run" / "run.json").read_text())["recipe"]
        steps = recipe["finetune_without_lm"]["max_steps"]
        return {
            "untrained": results.unsupervised.accuracy,
            "members": [of_one.accuracy for of_one in results.members.each],
            "ensemble": results.ensemble.accuracy,
            "step": [json.loads((path / "member.json").read_text())["training_seconds"] / steps for path in members],
            "bytes": sum(file.stat().st_size for file in (members[0] / "model").iterdir()),
            "memory": _peak() - before,
        }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_turns(rounds: int, settings: list[str]) -> None:
    """Print the CPU time of a step and of scoring a row, fully fine-tuned and with an adapter."""
    from clozify.config.task import load_task
    from clozify.data.few_shot import few_shot
    from clozify.data.rows import read_rows
    from clozify.methods.finetune import finetune
    from clozify.methods.score import score_rows
    from clozify.models.task_prompts import compile_task
    from clozify.pipeline.prepare import TrainInputs, prepare
    from clozify.prompts.encode import EncodedRows
    from clozify.runs.context import RunContext
    from clozify.training.loop import TrainingSetup, seed_everything

    task = load_task("debian")
    rows = few_shot(read_rows("builtin:labeled", task), 42)
    taken: dict[str, dict[str, list[float]]] = {way: {"a step": [], "scoring a row": []} for way in ("none", "lora")}
    work, context = {}, RunContext("cpu")
    for way in taken:
        options = [*settings, f"adapter.method={way}", "finetune_without_lm.max_steps=2"]
        plan = prepare(TrainInputs(task, rows, recipe="quick", settings=options))
        model = plan.load_model("cpu")
        questions = compile_task(model, task)
        encoded = EncodedRows(
            questions.patterns[0].template, questions.tokenize(model, rows, 0, len(rows)), plan.recipe.max_seq_length
        )
        work[way] = plan, model, questions.for_pair(0), encoded
    for number in range(rounds + 1):
        for way, (plan, model, question, encoded) in work.items():
            words = question.patterns[0].words[0]
            began = time.process_time()
            section = plan.recipe.member_settings(with_lm=False)
            setup = TrainingSetup(section, seed_everything(number), context.accelerator)
            finetune(model, words, encoded, rows.labels, None, setup)
            taken[way]["a step"].append((time.process_time() - began) / 2)
            began = time.process_time()
            list(score_rows(model, question, rows, plan.recipe.max_seq_length))
            taken[way]["scoring a row"].append((time.process_time() - began) / len(rows))
    for what in ("a step", "scoring a row"):
        whole, adapter = (statistics.median(taken[way][what][1:]) for way in ("none", "lora"))  # the first: a warm-up
        print(
            f"{what}, processor's time: whole {1000 * whole:.1f} ms, adapter {1000 * adapter:.1f} ms: "
            f"{adapter / whole:.2f}x"
        )


def main(
    seeds: Annotated[int, typer.Option(help="Runs each way.")] = 3,
    patterns: Annotated[int, typer.Option(help="Patterns of the sample task: members of a run.")] = 2,
    examples: Annotated[int, typer.Option(help="Labelled rows.")] = 42,
    test: Annotated[int, typer.Option(help="Test rows.")] = 200,
    rounds: Annotated[int, typer.Option(help="How often steps are timed by the processor's own time.")] = 5,
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe, for both.")] = None,
) -> None:
    """Print a line for each, and the differences."""
    if rounds:
        in_turns(rounds, settings or [])
    if not seeds:
        return
    ways: dict[str, list[dict[str, Any]]] = {"none": [], "lora": []}
    context = multiprocessing.get_context("spawn")
    for seed in range(seeds):
        for way, results in ways.items():
            options = [*(settings or []), f"seed={seed}", f"adapter.method={way}"]
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                results.append(pool.submit(measure, options, patterns, examples, test).result())
            members = ", ".join(f"{100 * accuracy:.1f}" for accuracy in results[-1]["members"])
            step = 1000 * statistics.median(results[-1]["step"])
            print(
                f"seed {seed}, adapter {way}: members {members}; ensemble {100 * results[-1]['ensemble']:.1f}; "
                f"{step:.0f} ms a step; {results[-1]['memory']:,.0f} MiB",
                flush=True,
            )
    for way, results in ways.items():
        accuracies = [100 * accuracy for one in results for accuracy in one["members"]]
        ensembles = [100 * one["ensemble"] for one in results]
        step = 1000 * statistics.median(seconds for one in results for seconds in one["step"])
        print(
            f"adapter {way}: untrained {100 * results[0]['untrained']:.1f}; members {statistics.mean(accuracies):.1f} "
            f"(standard deviation {statistics.pstdev(accuracies):.1f}, {len(accuracies)} of them); ensembles "
            f"{statistics.mean(ensembles):.1f}; {step:.0f} ms a step; "
            f"{results[0]['bytes'] / 2**20:.2f} MiB a member; "
            f"{statistics.median(one['memory'] for one in results):,.0f} MiB of memory beyond the libraries"
        )
    pairs = zip(ways["none"], ways["lora"], strict=True)
    changes = [100 * (b - a) for one, two in pairs for a, b in zip(one["members"], two["members"], strict=True)]
    spread = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    print(f"a member with an adapter instead: {statistics.mean(changes):+.1f} points (standard error {spread:.1f})")
    times = [statistics.median(seconds for one in results for seconds in one["step"]) for results in ways.values()]
    print(f"a step takes {times[1] / times[0]:.2f} times as long")


if __name__ == "__main__":
    typer.run(main)
