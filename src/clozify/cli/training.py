"""Commands that train, and those that use what was trained: train, pretrain, predict, evaluate, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from clozify.cli.options import (
    AddressOption,
    AtOnceOrAutoOption,
    DevicesOption,
    ExamplesOption,
    ExecutorOption,
    JsonOption,
    MapOption,
    ModelOption,
    QuietOption,
    RecipeOption,
    SetOption,
    TaskArgument,
    app,
    mapping_of,
    print_json,
    teller,
)


@app.command()
def train(
    task: TaskArgument,
    output: Annotated[
        str, typer.Option(help="The run's folder, or s3://bucket/run; given again, the run goes on where it was.")
    ],
    labeled: Annotated[str | None, typer.Option(help="The labelled rows: T. Only ipet can do without.")] = None,
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
    method: Annotated[str, typer.Option(help="'pet', 'ipet', or a baseline: 'supervised', 'uda', 'mixtext'.")] = "pet",
    augmented: Annotated[
        str | None,
        typer.Option(help="Paraphrases of the pile, for uda and mixtext: its fields, by id or in its order."),
    ] = None,
    recipe: RecipeOption = "paper",
    settings: SetOption = None,
    adapter: Annotated[
        str | None,
        typer.Option(help="'lora': members are small adapters on one frozen model (needs the extra 'peft')."),
    ] = None,
    examples: ExamplesOption = None,
    tracker: Annotated[
        list[str] | None, typer.Option(help="A tracker that Accelerate knows: tensorboard, wandb, mlflow, ...")
    ] = None,
    devices: DevicesOption = "auto",
    at_once: AtOnceOrAutoOption = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    mapping: MapOption = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Keep labelled and test rows in the pile (D = T).")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what the run will cost, measured on the spot, and stop.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a classifier from a handful of labelled rows and a pile of unlabelled ones (PET)."""
    from clozify.config.recipe import load_recipe
    from clozify.config.task import load_task

    asked_for = [*(settings or []), *([] if adapter is None else [f"adapter.method={adapter}"])]
    loaded, how = load_task(task), load_recipe(recipe, asked_for)
    column_mapping = mapping_of(mapping)

    from clozify.cli.tables import show_plan
    from clozify.pipeline.train import prepare
    from clozify.pipeline.train import train as work
    from clozify.report.terminal import show_run
    from clozify.runs.metrics import Metrics

    asked: dict[str, Any] = {
        "unlabeled": unlabeled,
        "test": test,
        "dev": dev,
        "examples": examples,
        "trackers": tracker or (),
        "model": model,
        "student": student,
        "method": method,
        "augmented": augmented,
        "recipe": how,
        "column_mapping": column_mapping,
        "allow_overlap": allow_overlap,
    }
    if plan:
        from clozify.executors.devices import parse_at_once
        from clozify.executors.select import choose_executor
        from clozify.pipeline.concurrency import plan_at_once
        from clozify.pipeline.cost import estimate
        from clozify.runs.context import RunContext

        number = parse_at_once(at_once)
        device, _ = choose_executor(executor, address, devices, number or 1)
        prepared = prepare(loaded, labeled, device=device, **{k: v for k, v in asked.items() if k != "trackers"})
        context = RunContext(device)
        cost = estimate(prepared, context)
        if number is None and executor == "local":
            cost["at_once"], cost["why"] = plan_at_once(prepared, context, devices)
        elif number is None:
            cost["why"] = "at once: measured on the cluster when the run begins"
        if as_json:
            print_json(cost)
        else:
            show_plan(Console(), cost)
        return
    found = work(loaded, labeled, output, devices, at_once, executor, address, log=teller(quiet), **asked)
    if not found:  # one of the processes that help the first
        return
    if as_json:
        print_json(found)
    else:
        show_run(Console(), Metrics.model_validate(found))
        typer.echo(f"The report is in {output.rstrip('/')}/report.html.")


@app.command()
def pretrain(
    data: Annotated[str, typer.Option(help="Texts to read: a file, a folder of shards, or NAME@SPLIT of the hub.")],
    output: Annotated[Path, typer.Option(help="The model's folder; given again, the command goes on where it was.")],
    task: Annotated[
        str | None, typer.Option(help="A task file, or a shipped task: its fields are read, joined by a space.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="A column to read instead; several are joined by a space.")
    ] = None,
    model: ModelOption = "builtin",
    recipe: RecipeOption = "paper",
    settings: SetOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a masked language model go on reading your texts (in-domain pretraining); the result is a --model."""
    from clozify.config.recipe import load_recipe
    from clozify.config.task import load_task

    how = load_recipe(recipe, settings or [])
    loaded = None if task is None else load_task(task)

    from clozify.pipeline.pretrain import pretrain as work

    found = work(data, output, loaded, field or (), model, how, say=teller(quiet))
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"Masked-LM loss on held-out texts: {found['before']:.4f} before, {found['after']:.4f} after "
        f"{found['steps']:,} steps. Use the model with --model {output}"
    )


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="A run's folder or address, or a classifier's.")],
    data: Annotated[str, typer.Option(help="Rows to predict.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Where predictions go: .csv, .jsonl or .parquet; else they are printed as JSONL."),
    ] = None,
    mapping: MapOption = None,
) -> None:
    """Predict new rows with a finished run."""
    from clozify.inference.finished_run import predict as work

    predictions = work(run, data, output, mapping_of(mapping))
    if output is not None:
        typer.echo(f"Predictions for {len(predictions):,} rows are in {output}.")
        return
    labels = predictions.rows.task.labels
    for row_id, label, row in zip(predictions.ids, predictions.labels, predictions.probabilities, strict=True):
        probabilities = {name: round(float(value), 6) for name, value in zip(labels, row, strict=True)}
        line = {"id": row_id, "prediction": label, "probabilities": probabilities}
        typer.echo(json.dumps(line, ensure_ascii=False))


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="A run's folder or address, or a classifier's.")],
    data: Annotated[str, typer.Option(help="Labelled rows.")],
    mapping: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a finished run on labelled rows."""
    from clozify.cli.tables import show_evaluation
    from clozify.inference.finished_run import evaluate as evaluate_run

    found = evaluate_run(run, data, column_mapping=mapping_of(mapping)).model_dump()
    if as_json:
        print_json(found)
    else:
        show_evaluation(Console(), found)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Where its runs go; given again, they are not done anew.")] = Path(
        "runs/demo"
    ),
    as_json: JsonOption = False,
) -> None:
    """Try it: supervised training against PET and iPET on the sample data, in minutes."""
    from clozify.cli.tables import show_demo, show_examples
    from clozify.demo import demo as work
    from clozify.demo import demo_task

    if not as_json:
        show_examples(Console(), demo_task())
    found = work(output, teller())
    if as_json:
        print_json(found)
    else:
        show_demo(Console(), found)
