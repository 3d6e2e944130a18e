"""The command line: a thin door to the rooms behind it. Bad input ends with one sentence and exit status 2."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from clozify import __version__
from clozify.errors import ClozifyError, TaskError

app = typer.Typer(
    name="clozify",
    help="Few-shot text classification by Pattern-Exploiting Training (PET).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TaskArgument = Annotated[str, typer.Argument(help="A task file (TOML), or the name of a shipped task.")]
ModelOption = Annotated[str, typer.Option(help="A masked language model: a folder, a hub name, or 'builtin'.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
MapOption = Annotated[
    list[str] | None, typer.Option("--map", help="FIELD=COLUMN, where the data calls a field otherwise.")
]
LengthOption = Annotated[int, typer.Option(min=8, help="The most tokens of a row; longer ones are shortened.")]


def _mapping(pairs: list[str] | None) -> dict[str, str]:
    for pair in pairs or []:
        if "=" not in pair:
            raise TaskError(f"--map takes FIELD=COLUMN, not '{pair}'.")
    return dict(pair.split("=", 1) for pair in pairs or [])


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=2))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"clozify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def tasks(as_json: JsonOption = False) -> None:
    """List the tasks that come with clozify."""
    from clozify.report.terminal import show_tasks
    from clozify.task import load_task, shipped_tasks

    found = [
        {
            "name": name,
            "description": task.description,
            "fields": task.fields,
            "labels": task.labels,
            "metric": task.metric,
            "patterns": task.patterns,
            "pairs": len(task.pairs),
            "file": str(path),
        }
        for name, path in shipped_tasks().items()
        for task in [load_task(name)]
    ]
    if as_json:
        _print_json(found)
    else:
        show_tasks(Console(), found)


@app.command()
def check(
    task: TaskArgument,
    data: Annotated[str | None, typer.Option(help="Rows to show the patterns on.")] = None,
    model: ModelOption = "builtin",
    mapping: MapOption = None,
    max_length: LengthOption = 256,
    as_json: JsonOption = False,
) -> None:
    """Show a task as the model will see it, and every problem it has."""
    from clozify.task import load_task

    loaded = load_task(task)
    column_of = _mapping(mapping)

    from clozify.check import check as look
    from clozify.cloze import load_model
    from clozify.report.terminal import show_check

    found = look(loaded, load_model(model), data, column_of, max_length)
    if as_json:
        _print_json(found)
    else:
        show_check(Console(), found)
    if found["problems"]:
        raise typer.Exit(2)


@app.command("zero-shot")
def zero_shot(
    task: TaskArgument,
    data: Annotated[str, typer.Option(help="Rows to predict: a file, a folder of shards, or NAME@SPLIT of the hub.")],
    model: ModelOption = "builtin",
    output: Annotated[
        Path | None,
        typer.Option(help="Where predictions go: .csv, .jsonl or .parquet, by the name's ending."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Divide by each label's mean probability over the data.")
    ] = False,
    mapping: MapOption = None,
    max_length: LengthOption = 256,
    as_json: JsonOption = False,
) -> None:
    """Predict without any training; with labels, say how good each pattern is."""
    from clozify.task import load_task

    loaded = load_task(task)
    column_of = _mapping(mapping)

    from clozify.report.terminal import show_zero_shot
    from clozify.zeroshot import zero_shot as predict

    found, report = predict(loaded, data, model, output, calibrate, column_of, max_length)
    if as_json:
        _print_json(report)
        return
    shown = min(5, len(found.rows))
    shares = found.probabilities(0, shown)
    texts = [found.rows.texts(field, 0, shown) for field in loaded.fields]
    examples = [
        (str(row), " ".join(filter(None, fields))[:60], loaded.labels[share.argmax()], float(share.max()))
        for row, share, *fields in zip(found.rows.ids(0, shown), shares, *texts, strict=True)
    ]
    show_zero_shot(Console(), report, examples)


@app.command()
def train(
    task: TaskArgument,
    labeled: Annotated[str, typer.Option(help="The labelled rows: T.")],
    output: Annotated[Path, typer.Option(help="The run's folder; given again, the run goes on where it was.")],
    unlabeled: Annotated[
        str | None, typer.Option(help="The pile: D. Without it the result is the ensemble itself.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Labelled rows to measure on.")] = None,
    dev: Annotated[
        str | None, typer.Option(help="Labelled rows to stop training early by, and to choose the classifier.")
    ] = None,
    model: ModelOption = "builtin",
    student: Annotated[
        str | None, typer.Option(help="Another model for the final classifier, a smaller one say.")
    ] = None,
    method: Annotated[str, typer.Option(help="'pet', or the baseline 'supervised'.")] = "pet",
    recipe: Annotated[str, typer.Option(help="'paper', 'quick', 'original-code', or a recipe file.")] = "paper",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe, as in distill.max_steps=500.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=0, help="Take so many labelled rows: the first of each label, as the paper does.")
    ] = None,
    tracker: Annotated[
        list[str] | None, typer.Option(help="A tracker that Accelerate knows: tensorboard, wandb, mlflow, ...")
    ] = None,
    mapping: MapOption = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Keep labelled and test rows in the pile (D = T).")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what the run will cost, measured on the spot, and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing on the way.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a classifier from a handful of labelled rows and a pile of unlabelled ones (PET)."""
    from clozify.recipe import load_recipe
    from clozify.task import load_task

    loaded, how = load_task(task), load_recipe(recipe, settings or [])
    column_of = _mapping(mapping)

    from clozify.pet import prepare
    from clozify.pet import train as work
    from clozify.report.terminal import show_plan, show_run

    began = time.monotonic()

    def say(line: str) -> None:
        if not quiet:
            typer.echo(f"[{time.monotonic() - began:6.0f} s] {line}", err=True)

    asked: dict[str, Any] = {
        "unlabeled": unlabeled,
        "test": test,
        "dev": dev,
        "examples": examples,
        "trackers": tracker or (),
        "model": model,
        "student": student,
        "method": method,
        "recipe": how,
        "column_of": column_of,
        "allow_overlap": allow_overlap,
    }
    if plan:
        from clozify.estimate import estimate

        cost = estimate(prepare(loaded, labeled, **asked))
        if as_json:
            _print_json(cost)
        else:
            show_plan(Console(), cost)
        return
    found = work(loaded, labeled, output, say=say, **asked)
    if as_json:
        _print_json(found)
    else:
        show_run(Console(), found)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a classifier's.")],
    data: Annotated[str, typer.Option(help="Rows to predict.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Where predictions go: .csv, .jsonl or .parquet; else they are printed as JSONL."),
    ] = None,
    mapping: MapOption = None,
) -> None:
    """Predict new rows with a finished run."""
    from clozify.predict import predict as work

    rows, probabilities = work(run, data, output, _mapping(mapping))
    if output is not None:
        typer.echo(f"Predictions for {len(rows):,} rows are in {output}.")
        return
    labels = rows.task.labels
    for row, shares in zip(rows.ids(), probabilities, strict=True):
        found = {label: round(float(share), 6) for label, share in zip(labels, shares, strict=True)}
        line = {"id": row, "prediction": labels[int(shares.argmax())], "probabilities": found}
        typer.echo(json.dumps(line, ensure_ascii=False))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a classifier's.")],
    data: Annotated[str, typer.Option(help="Labelled rows.")],
    mapping: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a finished run on labelled rows."""
    from clozify.predict import evaluate_run
    from clozify.report.terminal import show_evaluation

    found = evaluate_run(run, data, _mapping(mapping))
    if as_json:
        _print_json(found)
    else:
        show_evaluation(Console(), found)


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="'paper', 'quick', 'original-code', or a recipe file.")] = "paper",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE to change.")] = None,
) -> None:
    """Print a recipe as a file: every number of the paper's appendix B, with its help."""
    from clozify.recipe import load_recipe

    typer.echo(load_recipe(name, settings or []).to_toml())


@app.command()
def demo(as_json: JsonOption = False) -> None:
    """Try it: check the sample task, then predict the sample data without any training."""
    from clozify.check import check as look
    from clozify.cloze import load_model
    from clozify.report.terminal import show_check, show_zero_shot
    from clozify.task import load_task
    from clozify.zeroshot import zero_shot as predict

    task, model, console = load_task("debian"), load_model(), Console()
    found = look(task, model, "builtin:labeled")
    if not as_json:
        console.print(Text("$ clozify check debian --data builtin:labeled", style="bold"))
        show_check(console, found)
        console.print()
        console.print(Text("$ clozify zero-shot debian --data builtin:test --calibrate", style="bold"))
    _, report = predict(task, "builtin:test", model, calibrate=True)
    if as_json:
        _print_json({"check": found, "zero_shot": report})
    else:
        show_zero_shot(console, report, [])


def main() -> None:
    """Run the command line; what a user can mend is told in sentences, with exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ? instead of a traceback
    try:
        app()
        return
    except ClozifyError as error:
        problems = error.problems
    except BrokenPipeError:
        raise
    except OSError as error:  # no space, no permission, a name too long
        where = f" '{error.filename}'" if error.filename else ""
        problems = [f"The system refused{where}: {error.strerror or error}."]
    console = Console(stderr=True, soft_wrap=True)
    for problem in problems:
        console.print(Text.assemble(("error: ", "bold red"), problem))
    sys.exit(2)


if __name__ == "__main__":
    main()
