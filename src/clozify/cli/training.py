"""The commands `train` and `pretrain`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import clozify
from clozify.cli.options import (
    AddressOption,
    AtOnceOrAutoOption,
    BudgetOption,
    DevicesOption,
    ExamplesOption,
    ExecutorOption,
    JsonOption,
    LabelsFromOption,
    MapOption,
    ModelOption,
    QuietOption,
    RecipeOption,
    SetOption,
    TaskArgument,
    app,
    parse_mapping,
    print_json,
    progress_logger,
)


@app.command()
def train(
    task: TaskArgument,
    output: Annotated[str, typer.Option(help="The run's folder or s3://bucket/run; the same command resumes a run.")],
    labeled: Annotated[
        str | None, typer.Option(help="The labelled rows; optional with --method ipet or frozen.")
    ] = None,
    unlabeled: Annotated[
        str | None, typer.Option(help="The unlabelled rows; without them the result is the ensemble, not a classifier.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Labelled rows to evaluate on.")] = None,
    dev: Annotated[
        str | None, typer.Option(help="Labelled rows for early stopping and for choosing the classifier.")
    ] = None,
    model: ModelOption = "builtin",
    student: Annotated[
        str | None,
        typer.Option(
            help="Another, for example smaller, model for the final classifier; 'static': a classifier of word "
            "vectors, a hundred times as fast, without PyTorch."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="'pet', 'ipet', 'frozen', or a baseline: 'supervised', 'uda', 'mixtext'.")
    ] = "pet",
    augmented: Annotated[
        str | None,
        typer.Option(help="Paraphrases of the unlabelled rows, for uda and mixtext, matched by id or in their order."),
    ] = None,
    recipe: RecipeOption = "auto",
    settings: SetOption = None,
    adapter: Annotated[
        str | None, typer.Option(help="'lora': train members as LoRA adapters of one model (needs the extra 'peft').")
    ] = None,
    examples: ExamplesOption = None,
    tracker: Annotated[
        list[str] | None, typer.Option(help="A tracker of Accelerate: tensorboard, wandb, mlflow, ...; repeatable.")
    ] = None,
    devices: DevicesOption = "auto",
    at_once: AtOnceOrAutoOption = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    labels_from: LabelsFromOption = None,
    mapping: MapOption = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Keep labelled and test rows among the unlabelled ones.")
    ] = False,
    budget: BudgetOption = None,
    no_estimate: Annotated[
        bool,
        typer.Option(
            "--no-estimate",
            help="Train no models without parts of the labelled rows: no estimate of the accuracy, no calibration.",
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Estimate time, disk space and the price of an LLM, and stop.")
    ] = False,
    replace_results: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace the method's results in the folder where rows or settings differ.",
        ),
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a classifier from a few labelled and many unlabelled rows."""
    changes = [*(settings or []), *([] if adapter is None else [f"adapter.method={adapter}"])]
    changes += ["estimate.folds=0"] if no_estimate else []
    column_mapping, loaded_recipe = parse_mapping(mapping), clozify.load_recipe(recipe, changes)
    loaded_task = clozify.load_task(task, labels_from, column_mapping)
    options: dict[str, Any] = {
        "unlabeled": unlabeled,
        "test": test,
        "dev": dev,
        "examples": examples,
        "model": model,
        "student": student,
        "method": method,
        "augmented": augmented,
        "recipe": loaded_recipe,
        "settings": changes,
        "column_mapping": column_mapping,
        "allow_overlap": allow_overlap,
        "budget": budget,
    }

    from clozify.executors.accelerate_launch import is_worker_rank
    from clozify.report.terminal import show_run

    if plan:
        _print_cost(loaded_task, labeled, devices, at_once, executor, address, options, as_json)
        return
    log = progress_logger(quiet)
    result = clozify.train(
        loaded_task,
        labeled,
        output,
        devices=devices,
        at_once=at_once,
        executor=executor,
        address=address,
        trackers=tracker or (),
        replace=replace_results,
        log=log,
        **options,
    )
    if is_worker_rank():  # the first process prints the result
        return
    if as_json:
        print_json(result.metrics.to_json())
    else:
        show_run(Console(), result.metrics, with_warnings=quiet)  # else the log has shown them
        typer.echo(f"The report is in {result.results}/report.html.")


def _print_cost(
    task: clozify.Task,
    labeled: str | None,
    devices: str,
    at_once: str | None,
    executor: str,
    address: str | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Print the estimated cost of a run."""
    from clozify.cli.tables import show_plan
    from clozify.executors.devices import parse_at_once
    from clozify.executors.select import choose_executor
    from clozify.pipeline.concurrency import plan_at_once
    from clozify.pipeline.cost import estimate
    from clozify.pipeline.prepare import TrainInputs, other_teachers, prepare
    from clozify.runs.context import RunContext

    parallel = parse_at_once(at_once)
    device, _ = choose_executor(executor, address, devices, parallel)
    inputs = TrainInputs(task, labeled, **options)
    plan = prepare(inputs, device)
    context = RunContext(device)
    cost = estimate(plan, context, other_teachers(inputs, plan))
    if parallel is None and executor == "local":
        count, reason = plan_at_once(plan, context, devices)
        cost = replace(cost, at_once=count, why=reason)
    elif parallel is None:
        cost = replace(cost, why="at once: measured on the cluster when the run begins")
    if as_json:
        print_json({name: value for name, value in asdict(cost).items() if value is not None})
    else:
        show_plan(Console(), cost)


@app.command()
def pretrain(
    data: Annotated[str, typer.Option(help="Texts to train on: a file, a folder of shards or NAME@SPLIT on the hub.")],
    output: Annotated[Path, typer.Option(help="The new model's folder; the same command resumes.")],
    task: Annotated[
        str | None, typer.Option(help="A task file or built-in task, whose fields are read, joined by a space.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="A column to read instead of the task's fields; repeatable.")
    ] = None,
    model: ModelOption = "builtin",
    recipe: RecipeOption = "auto",
    settings: SetOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Continue a model's masked-LM pretraining on your texts; use the result with --model."""
    loaded_recipe = clozify.load_recipe(recipe, settings or [])
    loaded_task = None if task is None else clozify.load_task(task)
    log = progress_logger(quiet)
    result = clozify.pretrain(data, output, loaded_task, field or (), model, loaded_recipe, log=log)
    if as_json:
        print_json(result.model_dump())
        return
    typer.echo(
        f"Masked-LM loss on held-out texts: {result.before:.4f} before, {result.after:.4f} after "
        f"{result.steps:,} steps. Use the model with --model {output}"
    )
