"""The commands that need no training: `tasks`, `init`, `check`, `zero-shot`, `find-words` and `recipe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import clozify
from clozify.cli.options import (
    BudgetOption,
    ExamplesOption,
    JsonOption,
    LabelsFromOption,
    LengthOption,
    MapOption,
    ModelOption,
    RecipeOption,
    SetOption,
    TaskArgument,
    app,
    parse_mapping,
    print_json,
    progress_logger,
)
from clozify.errors import TaskError

GenerativeSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE: a setting of causal models, such as generative.chat=never; repeatable."),
]


@app.command()
def tasks(as_json: JsonOption = False) -> None:
    """List the built-in tasks."""
    from clozify.cli.tables import show_tasks
    from clozify.config.task import shipped_tasks

    listed = [
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
        for task in [clozify.load_task(name)]
    ]
    if as_json:
        print_json(listed)
    else:
        show_tasks(Console(), listed)


@app.command()
def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The data: a file, a folder or NAME@SPLIT on the hub.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The task file to write.")] = Path("task.toml"),
    text: Annotated[
        list[str] | None, typer.Option(help="A column with texts; repeatable. Default: the likeliest columns.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column with the labels. Default: the likeliest column.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The task's name. Default: the name of the file or its folder.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="LABEL,LABEL: the labels, for data that has none.")] = None,
    labels_from: Annotated[
        str | None, typer.Option(help="A file with the labels: data with a label column, or text with one a line.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a task file for your data: its columns, its labels, and patterns that fit."""
    names = None if labels is None else [name.strip() for name in labels.split(",")]
    result = clozify.init_task(data, output, text or (), label, name, names, labels_from, force)
    if as_json:
        print_json(result.to_json())
        return

    from clozify.cli.tables import show_init

    show_init(Console(), result)


@app.command()
def check(
    task: TaskArgument,
    data: Annotated[str | None, typer.Option(help="Rows to show the patterns with.")] = None,
    model: ModelOption = "builtin",
    labels_from: LabelsFromOption = None,
    mapping: MapOption = None,
    max_length: LengthOption = 256,
    settings: GenerativeSetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a task as the model reads it, with all its problems."""
    column_mapping = parse_mapping(mapping)
    loaded_task = clozify.load_task(task, labels_from, column_mapping)

    from clozify.cli.check_tables import show_check
    from clozify.inference.check import check as check_task
    from clozify.models.language_model import load_model as load_language_model

    generative = clozify.load_recipe("paper", settings or []).generative
    result = check_task(
        loaded_task, load_language_model(model, generative=generative), data, column_mapping, max_length
    )
    if as_json:
        print_json(result.model_dump())
    else:
        show_check(Console(), result)
    if result.problems:
        raise typer.Exit(2)


@app.command("zero-shot")
def zero_shot(
    task: TaskArgument,
    data: Annotated[str, typer.Option(help="Rows to predict: a file, a folder of shards or NAME@SPLIT on the hub.")],
    model: ModelOption = "builtin",
    output: Annotated[
        Path | None, typer.Option(help="Write the predictions to this file: .csv, .jsonl or .parquet.")
    ] = None,
    calibrate: Annotated[
        bool | None,
        typer.Option(
            help="Divide probabilities by each label's mean probability over the data; by default where there are "
            "enough rows.",
            show_default=False,
        ),
    ] = None,
    labels_from: LabelsFromOption = None,
    mapping: MapOption = None,
    max_length: LengthOption = 256,
    labels_a_row: Annotated[
        float, typer.Option(help="How many labels a row has on average, where the task has multilabel = true.")
    ] = 1.0,
    budget: BudgetOption = None,
    settings: GenerativeSetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict rows without training; if they have labels, print each pattern's accuracy."""
    column_mapping = parse_mapping(mapping)
    loaded_task = clozify.load_task(task, labels_from, column_mapping)
    result = clozify.zero_shot(
        loaded_task,
        data,
        model,
        output,
        calibrate,
        column_mapping,
        max_length,
        labels_a_row,
        (),
        budget,
        settings or (),
    )
    if as_json:
        print_json(result.to_json())
        return

    from clozify.cli.tables import show_zero_shot

    show_zero_shot(Console(), result)


@app.command("find-words")
def find_words(
    task: TaskArgument,
    labeled: Annotated[str, typer.Option(help="The labelled rows.")],
    unlabeled: Annotated[
        str | None, typer.Option(help="Unlabelled rows; their most frequent words are candidates.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The new task file; default: NAME-words.toml, unless that exists.")
    ] = None,
    model: ModelOption = "builtin",
    recipe: RecipeOption = "auto",
    settings: SetOption = None,
    examples: ExamplesOption = None,
    allow: Annotated[
        Path | None, typer.Option(help="A file with the only words to consider, separated by white space.")
    ] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="WORD,WORD: words not to consider; repeatable.")] = None,
    seed_words: Annotated[
        list[str] | None, typer.Option(help="LABEL=WORD,WORD: words that the label keeps; repeatable.")
    ] = None,
    labels_from: LabelsFromOption = None,
    mapping: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find words for the labels from labelled rows and write a task file with them."""
    column_mapping, loaded_recipe = parse_mapping(mapping), clozify.load_recipe(recipe, settings or [])
    loaded_task = clozify.load_task(task, labels_from, column_mapping)
    words_by_label: dict[str, list[str]] = {}
    for seed in seed_words or []:
        label, equals, words = seed.rpartition("=")
        if not equals:
            raise TaskError(f"--seed-words takes LABEL=WORD,WORD, not '{seed}'.")
        words_by_label.setdefault(label, []).extend(words.split(","))

    from clozify.cli.tables import show_words
    from clozify.pipeline.find_words import default_output

    _, report = clozify.find_words(
        loaded_task,
        labeled,
        unlabeled,
        output or default_output(loaded_task),
        model,
        loaded_recipe,
        examples=examples,
        allowed_words=allow,
        forbidden_words=[word for words in forbid or [] for word in words.split(",")],
        seed_words=words_by_label,
        column_mapping=column_mapping,
        log=progress_logger(),
    )
    if as_json:
        print_json(report.model_dump(by_alias=True))
    else:
        show_words(Console(), report)


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="'auto', 'paper', 'quick', 'original-code' or a recipe file.")] = "paper",
    settings: SetOption = None,
) -> None:
    """Print a recipe (the hyperparameters of the paper's appendix B) as a TOML file."""
    typer.echo(clozify.load_recipe(name, settings or []).to_toml())
