"""Commands that look and ask, without any training: tasks, recipe, check, zero-shot, find-words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clozify.cli.options import (
    ExamplesOption,
    JsonOption,
    LengthOption,
    MapOption,
    ModelOption,
    RecipeOption,
    SetOption,
    TaskArgument,
    app,
    mapping_of,
    print_json,
)
from clozify.errors import TaskError


@app.command()
def tasks(as_json: JsonOption = False) -> None:
    """List the tasks that come with clozify."""
    from clozify.cli.tables import show_tasks
    from clozify.config.task import load_task, shipped_tasks

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
        print_json(found)
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
    from clozify.config.task import load_task

    loaded = load_task(task)
    column_mapping = mapping_of(mapping)

    from clozify.cli.tables import show_check
    from clozify.inference.check import check as look
    from clozify.models.cloze import load_model

    found = look(loaded, load_model(model), data, column_mapping, max_length).model_dump()
    if as_json:
        print_json(found)
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
    from clozify.config.task import load_task

    loaded = load_task(task)
    column_mapping = mapping_of(mapping)

    from clozify.cli.tables import show_zero_shot
    from clozify.inference.zero_shot import zero_shot as predict

    result = predict(loaded, data, model, output, calibrate, column_mapping, max_length)
    if as_json:
        print_json(result.to_json())
        return
    count = min(5, len(result.rows))
    probabilities = result.scores.probabilities(0, count)  # (rows, labels)
    texts = [result.rows.texts(field, 0, count) for field in loaded.fields]
    examples = [
        (str(row_id), " ".join(filter(None, fields))[:60], loaded.labels[row.argmax()], float(row.max()))
        for row_id, row, *fields in zip(result.rows.ids(0, count), probabilities, *texts, strict=True)
    ]
    show_zero_shot(Console(), result.to_json(), examples)


@app.command("find-words")
def find_words(
    task: TaskArgument,
    labeled: Annotated[str, typer.Option(help="The labelled rows: T.")],
    unlabeled: Annotated[str | None, typer.Option(help="The pile: D. Its most frequent words are tried.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the task with the words goes; by default NAME-words.toml, if it is new.")
    ] = None,
    model: ModelOption = "builtin",
    recipe: RecipeOption = "paper",
    settings: SetOption = None,
    examples: ExamplesOption = None,
    allow: Annotated[Path | None, typer.Option(help="A file of words, the only ones that may be found.")] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(help="A word that may not be found, or several with commas.")
    ] = None,
    seed_words: Annotated[
        list[str] | None, typer.Option(help="LABEL=WORD,WORD: words that a label has already and keeps.")
    ] = None,
    mapping: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find words for the labels from labelled rows, and write a task file with them."""
    from clozify.config.recipe import load_recipe
    from clozify.config.task import load_task

    loaded, how = load_task(task), load_recipe(recipe, settings or [])
    column_mapping = mapping_of(mapping)
    seeds: dict[str, list[str]] = {}
    for given in seed_words or []:
        label, equals, words = given.rpartition("=")
        if not equals:
            raise TaskError(f"--seed-words takes LABEL=WORD,WORD, not '{given}'.")
        seeds.setdefault(label, []).extend(words.split(","))

    from clozify.cli.tables import show_words
    from clozify.pipeline.find_words import default_output
    from clozify.pipeline.find_words import find_words as search

    _, report = search(
        loaded,
        labeled,
        unlabeled,
        output or default_output(loaded),
        model,
        how,
        examples=examples,
        allowed_words=allow,
        forbidden_words=[word for words in forbid or [] for word in words.split(",")],
        seed_words=seeds,
        column_mapping=column_mapping,
    )
    if as_json:
        print_json(report)
    else:
        show_words(Console(), report)


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="'paper', 'quick', 'original-code', or a recipe file.")] = "paper",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE to change.")] = None,
) -> None:
    """Print a recipe as a file: every number of the paper's appendix B, with its help."""
    from clozify.config.recipe import load_recipe

    typer.echo(load_recipe(name, settings or []).to_toml())
