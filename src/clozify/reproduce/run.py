"""Implements `clozify reproduce`: runs the requested cells of a table or figure and writes it.

Results of earlier commands in the same folder are used again. Written are `NAME.md`, `NAME.html` and, for a figure,
`NAME.svg` and `NAME.png`, with every result so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clozify.config.recipe import Recipe
from clozify.errors import DataError, RunError
from clozify.reproduce.catalog import build_table
from clozify.reproduce.cost import TableCost, estimate_cost
from clozify.reproduce.data_locations import TITLES
from clozify.reproduce.datasets import UNLABELED_PER_LABEL, PaperData
from clozify.reproduce.draw import check_matplotlib, draw
from clozify.reproduce.experiments import METHOD_NAMES, Experiment, ExperimentRunner, NotRunError, check_model
from clozify.reproduce.render import html, markdown
from clozify.reproduce.results import FilledTable, fill_table
from clozify.reproduce.specs import TableSpec
from clozify.utils.atomic import atomic_write


@dataclass(frozen=True)
class ReproduceOptions:
    """What to reproduce, and how."""

    table: str  # such as 'table1' or 'figure3'
    output: str | Path
    tasks: Sequence[str] | None = None  # None: all of the paper's, as the following two
    examples: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    model: str | None = None  # None: the paper's, or the built-in one if only the sample data is requested
    data: str | Path | None = None  # folder with the original files; None: the hub
    recipe: str | Path | Recipe = "paper"
    settings: Sequence[str] = ()
    unlabeled_per_label: int = UNLABELED_PER_LABEL
    test_rows: int | None = None
    log: Callable[[str], None] = lambda line: None
    devices: str = "auto"
    at_once: int | None = None


def reproduce(options: ReproduceOptions) -> tuple[FilledTable, list[Path]]:
    """Run the requested cells and write the table or figure; returns it and its files."""
    spec, runner = _prepare(options)
    not_run = _run_experiments(spec.requested_experiments(), runner, required=options.tasks is not None)
    table = fill_table(spec, runner.find, not_run, _notes(spec, runner))
    return table, write_table(table, runner.output)


def plan_cost(options: ReproduceOptions) -> TableCost:
    """Estimate the cost of the requested cells; nothing is written."""
    spec, runner = _prepare(options)
    requested = spec.requested_experiments()
    missing = _check_data(requested, runner, required=options.tasks is not None)
    cost = estimate_cost(runner, [experiment for experiment in requested if experiment not in missing])
    cost.notes += [f"Not included: {reason}" for reason in dict.fromkeys(missing.values())]
    return cost


def _prepare(options: ReproduceOptions) -> tuple[TableSpec, ExperimentRunner]:
    """Check everything that can be checked before anything runs; nothing is written."""
    spec = build_table(options.table, options.tasks, options.examples, options.methods)
    if options.table.startswith("figure"):
        check_matplotlib()
    output = Path(options.output)
    if output.is_file():
        raise RunError(f"The results cannot be written to '{output}', which is a file; name a folder.")
    requested = spec.requested_experiments()
    only_sample = {experiment.task for experiment in requested} == {"sample"}
    runner = ExperimentRunner(
        output=output,
        data=PaperData(
            None if options.data is None else Path(options.data), options.unlabeled_per_label, options.test_rows
        ),
        model=options.model or ("builtin" if only_sample else spec.model),
        recipe=options.recipe,
        settings=options.settings,
        log=options.log,
        devices=options.devices,
        at_once=options.at_once,
    )
    for experiment in requested:
        runner.experiment_recipe(experiment)  # raises if the table's settings do not fit the recipe
    return spec, runner


def _check_data(requested: list[Experiment], runner: ExperimentRunner, required: bool) -> dict[Experiment, str]:
    """Load the data of the experiments to run; returns those without data, with the reason.

    Missing data of a task that the user named (`required`) is an error, and so is missing data of all tasks.
    """
    remaining = [experiment for experiment in requested if runner.find(experiment) is None]
    missing: dict[str, str] = {}
    for task in dict.fromkeys(experiment.task for experiment in remaining):
        try:
            runner.data.load(task)
        except DataError as error:
            if required:
                raise
            missing[task] = " ".join(error.problems)
    if missing and not set(missing) < {experiment.task for experiment in requested}:
        raise DataError(list(dict.fromkeys(missing.values())))
    not_run = {experiment: missing[experiment.task] for experiment in remaining if experiment.task in missing}
    if set(remaining) - set(not_run):
        check_model(runner.model)
    return not_run


def _run_experiments(requested: list[Experiment], runner: ExperimentRunner, required: bool) -> dict[Experiment, str]:
    """Run the experiments; returns those that could not be run, with the reason."""
    not_run = _check_data(requested, runner, required)
    for index, experiment in enumerate(requested, start=1):
        if experiment in not_run:
            continue
        done = "" if runner.find(experiment) is None else "  already done"
        runner.log(f"cell {index}/{len(requested)}: {experiment}{done}")
        try:
            runner.run(experiment)
        except NotRunError as error:
            not_run[experiment] = " ".join(error.problems)
            runner.log(f"not run: {not_run[experiment]}")
    return not_run


def _notes(spec: TableSpec, runner: ExperimentRunner) -> tuple[str, ...]:
    """Model, recipe, and where the data differs from the paper's."""
    recipe = runner.experiment_recipe(spec.requested_experiments()[0])
    settings = f" with {', '.join(runner.settings)}" if runner.settings else ""
    paper_model = "" if runner.model == spec.model else f" (the paper's is {spec.model})"
    notes = [f"Model: {runner.model}{paper_model}. Recipe: {recipe.name}{settings}."]
    for experiment in spec.experiments():
        result = runner.find(experiment)
        if result is None:
            continue
        name = TITLES.get(experiment.task, experiment.task.replace("xstance-", "x-stance, "))
        notes += [f"{name}: {note}" for note in result.notes]
        if result.augmentation:
            notes.append(f"{METHOD_NAMES[experiment.method]}: augmented text by {result.augmentation}.")
        if result.chosen:
            notes.append(f"{experiment}: {result.steps:,} steps, {result.chosen}.")
    return tuple(dict.fromkeys(notes))


def write_table(table: FilledTable, output: Path) -> list[Path]:
    """Write the files of a table or figure, each atomically."""
    name = table.spec.name
    output.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes] = {}
    svg = None
    if name.startswith("figure"):
        svg, png = draw(table)
        contents = {f"{name}.svg": svg.encode(), f"{name}.png": png}
    contents[f"{name}.md"] = markdown(table, f"{name}.svg" if svg else None).encode()
    contents[f"{name}.html"] = html(table, svg).encode()
    for file, content in contents.items():
        with atomic_write(output / file) as tmp_path:
            tmp_path.write_bytes(content)
    return [output / file for file in contents]
