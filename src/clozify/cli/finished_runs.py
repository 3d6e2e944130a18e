"""The commands that use finished runs: `predict`, `evaluate`, `report`, `suggest`, `export` and `push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import clozify
from clozify.cli.options import (
    BudgetOption,
    CoverageOption,
    JsonOption,
    MapOption,
    MaxRiskOption,
    MethodOption,
    MinConfidenceOption,
    OptionalFraction,
    PrecisionOption,
    QuietOption,
    RejectOption,
    SetsOption,
    app,
    parse_mapping,
    print_json,
    progress_logger,
)
from clozify.errors import DataError, ExportError, RunError, quoted

RunArgument = Annotated[str, typer.Argument(metavar="DIR", help="A run's folder or address, or a classifier's folder.")]


@app.command(cls=OptionalFraction)
def predict(
    run: RunArgument,
    data: Annotated[str | None, typer.Option(help="Rows to predict.")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text to predict instead of --data, for tasks with one field; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the predictions to this file (.csv, .jsonl or .parquet); default: print JSONL."),
    ] = None,
    method: MethodOption = None,
    with_text: Annotated[bool, typer.Option("--with-text", help="Write the rows' texts, too.")] = False,
    top: Annotated[
        int | None, typer.Option(min=1, help="Write this many likeliest labels, not every label's probability.")
    ] = None,
    mapping: MapOption = None,
    precision: PrecisionOption = "auto",
    min_confidence: MinConfidenceOption = None,
    max_risk: MaxRiskOption = None,
    coverage: CoverageOption = None,
    sets: SetsOption = None,
    reject_out_of_scope: RejectOption = None,
    budget: BudgetOption = None,
) -> None:
    """Predict new rows with a finished run."""
    from clozify.inference.abstaining import AbstainOptions, Tally

    if (data is None) == (not text):
        raise DataError("predict takes rows, either as --data FILE or as --text TEXT; write one of the two.")
    options = AbstainOptions(min_confidence, max_risk, coverage, sets, reject_out_of_scope)
    finished, tally = clozify.load_run(run, method, precision, budget), Tally()
    abstainer = finished.abstainer(options)
    rows = data if data is not None else text_rows(text or [], finished.task)
    predictions = None
    if output is not None:
        columns = parse_mapping(mapping)
        predicted_rows = finished.predict_to_file(rows, output, columns, with_text, top, abstainer, tally)
    else:
        chosen = (min_confidence, max_risk, coverage, sets, reject_out_of_scope)
        predictions = finished.predict(rows, None, parse_mapping(mapping), False, None, *chosen)
        predicted_rows = predictions.rows
        tally.add(predictions.answers, len(predictions))
    typer.echo(f"Predicted by {finished.description}.", err=True)
    for line in abstainer.lines(tally):
        typer.echo(line, err=True)
    for note in [*finished.notes, *predicted_rows.warnings]:
        typer.echo(f"note: {note}", err=True)
    if predictions is None:
        typer.echo(f"Predictions for {len(predicted_rows):,} rows are in {output}.")
        return
    _print_predictions(predictions, with_text, top)


def _print_predictions(predictions: clozify.Predictions, with_text: bool, top: int | None) -> None:
    """Print predictions as JSONL."""
    from clozify.data.predictions import top_labels

    task, labels, groups = predictions.rows.task, predictions.rows.task.labels, predictions.groups
    texts = {field: predictions.rows.texts(field) for field in (task.fields if with_text else [])}
    order = None if top is None else top_labels(predictions.probabilities, top)
    sums = predictions.group_probabilities
    answers = predictions.answers.keep(predictions.label_sets if task.multilabel else predictions.labels)
    decided = {"abstained": predictions.answers.abstained, "prediction_set": predictions.sets}
    if predictions.out_of_scope is not None:
        decided["out_of_scope"] = predictions.out_of_scope.round(6).tolist()
    for index, (row_id, label, row) in enumerate(zip(predictions.ids, answers, predictions.probabilities, strict=True)):
        content = {"id": row_id, **{field: values[index] for field, values in texts.items()}, "prediction": label}
        content |= {name: values[index] for name, values in decided.items() if values is not None}
        shown = range(len(row)) if order is None else order[index]
        content["probabilities"] = {labels[i]: round(float(row[i]), 6) for i in shown}
        if groups is not None and sums is not None and task.label_groups is not None:
            content["prediction_group"] = groups[index]
            content["group_probabilities"] = dict(
                zip(task.label_groups.names, sums[index].round(6).tolist(), strict=True)
            )
        print_json(content, indent=None)


def text_rows(texts: list[str], task: clozify.Task) -> list[dict[str, str]]:
    """The texts as rows of a task with one required field."""
    required = [field for field in task.fields if field not in task.optional] or task.fields[:1]
    if len(required) > 1:
        raise DataError(f"--text is one text, but this task has the fields {quoted(required)}; use --data FILE.")
    return [{required[0]: text} for text in texts]


@app.command()
def evaluate(
    run: RunArgument,
    data: Annotated[str, typer.Option(help="Labelled rows.")],
    method: MethodOption = None,
    mapping: MapOption = None,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
    budget: BudgetOption = None,
) -> None:
    """Evaluate a finished run on labelled rows."""
    from clozify.cli.tables import show_evaluation

    result = clozify.load_run(run, method, precision, budget).evaluate(data, column_mapping=parse_mapping(mapping))
    typer.echo(f"Predicted by {result.model}.", err=True)
    if as_json:
        print_json(result.model_dump(exclude_none=True))
    else:
        show_evaluation(Console(), result)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR", help="A run's folder; several runs are compared.")],
    output: Annotated[
        Path | None, typer.Option(help="The HTML file; default: DIR/report.html, or comparison.html for several runs.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Another run on the same rows, for example a supervised one, to compare with.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Of several runs: their test rows, if these are no longer where they were.")
    ] = None,
    method: MethodOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report, or a comparison of several runs, as one HTML page."""
    from pydantic_core import to_jsonable_python

    from clozify.report.run import RunRecord
    from clozify.report.terminal import show_comparison, show_findings, show_run
    from clozify.report.write import compare, write_report
    from clozify.runs.results import find_results

    if len(runs) == 1:
        if test is not None:
            raise RunError("--test is for comparisons of several runs; to measure one on other rows, use evaluate.")
        path, findings = write_report(find_results(runs[0], method), output, baseline)
        if as_json:
            print_json(to_jsonable_python(findings))
        else:
            show_run(Console(), RunRecord.load(find_results(runs[0], method)).metrics)
            show_findings(Console(), findings)
            typer.echo(f"The report is in {path}.")
        return
    if baseline is not None:
        raise RunError("--baseline takes one run to report on; to compare several runs, name all of them as DIR.")
    if method is not None:
        raise RunError(
            "--method takes one run; of several runs, name a method's own folder, as DIR/methods/supervised."
        )
    page = output or Path("comparison.html")
    comparison = compare(runs, page, test)
    if as_json:
        print_json(to_jsonable_python(comparison))
    else:
        show_comparison(Console(), comparison)
        typer.echo(f"The comparison is in {page}.")


@app.command()
def suggest(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    count: Annotated[int, typer.Option(min=1, help="The number of rows.")] = 20,
    output: Annotated[Path, typer.Option(help="The file to write: .csv, .jsonl or .parquet.")] = Path("to-label.csv"),
    unlabeled: Annotated[
        str | None, typer.Option(help="Unlabelled rows to choose from; default: those of the run.")
    ] = None,
    with_labeled: Annotated[
        bool, typer.Option("--with-labeled", help="Put the run's labelled rows first in the file.")
    ] = False,
    previous: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="An earlier run with fewer labelled rows, to see what changed; repeatable."),
    ] = None,
    method: MethodOption = None,
    mapping: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the unlabelled rows to label next, and say what their labels will probably bring."""
    from clozify.cli.tables import show_suggestions

    result = clozify.suggest(
        run, count, output, unlabeled, with_labeled, parse_mapping(mapping), method, previous or ()
    )
    if as_json:
        print_json(result.model_dump())
    else:
        show_suggestions(Console(), result)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's or a classifier's folder.")],
    export_format: Annotated[str, typer.Option("--format", help="'onnx'.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Quantize the weights to 8 bits.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="The export's folder; default: DIR/onnx or DIR/onnx-int8.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Rows to compare the models on; default: the run's test rows.")
    ] = None,
    agreement: Annotated[
        float, typer.Option(min=0, max=1, help="With --int8: the fraction of rows that must keep their label.")
    ] = 0.95,
    method: MethodOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Export a classifier to ONNX and compare its predictions with the original."""
    if export_format != "onnx":
        raise ExportError(f"The format '{export_format}' is not supported; use 'onnx'.")
    result = clozify.export(folder, output, int8, data, agreement, progress_logger(quiet), method)
    if as_json:
        print_json(result.to_json())
        return
    typer.echo(
        f"{result.agreement:.1%} of {result.rows:,} rows get the same label; probabilities differ by "
        f"{result.largest_difference:.1e} at most."
    )
    if result.accuracy is not None:
        before, after = 100 * result.accuracy.pytorch, 100 * result.accuracy.onnx
        typer.echo(f"Accuracy: {before:.1f} before, {after:.1f} after.")
    speed = result.rows_per_second
    typer.echo(
        f"Rows a second: {speed.pytorch:.1f} by PyTorch, {speed.onnx:.1f} by ONNX Runtime. "
        f"The export, {result.bytes / 1e6:.1f} MB, is in {result.output}"
    )


@app.command()
def push(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's or a classifier's folder.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name on the hub: NAME or OWNER/NAME.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new model private.")] = False,
    method: MethodOption = None,
) -> None:
    """Upload a run's classifier and its model card to the Hugging Face hub."""
    from clozify.inference.push import push as push_to_hub

    typer.echo(f"Pushed to {push_to_hub(run, name, private, method)}.")
