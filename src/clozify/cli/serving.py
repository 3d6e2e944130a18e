"""Commands that bring a classifier to others: export and serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clozify.cli.options import JsonOption, QuietOption, app, print_json, teller
from clozify.errors import ExportError, require_package


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or a classifier's.")],
    kind: Annotated[str, typer.Option("--format", help="'onnx'.")] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="Round weights to 8 bits: smaller, faster, nearly equal.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="The export's folder; else 'onnx' or 'onnx-int8' in DIR.")] = None,
    data: Annotated[str | None, typer.Option(help="Rows to compare both on; else the run's test rows.")] = None,
    agreement: Annotated[
        float, typer.Option(min=0, max=1, help="For --int8: the least share of rows that must keep their label.")
    ] = 0.95,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a classifier as ONNX, compared with the original before anything is kept."""
    if kind != "onnx":
        raise ExportError(f"There is no format '{kind}'; there is 'onnx'.")
    from clozify.inference.export import export as work

    result = work(folder, output, int8, data, agreement, teller(quiet))
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
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, a classifier's, or an export's.")],
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 is all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any that is free.")] = 8000,
    max_texts: Annotated[int, typer.Option(min=1, help="The most texts a request.")] = 256,
    max_body: Annotated[int, typer.Option(min=16, help="The most bytes a request.")] = 1_048_576,
    max_waiting: Annotated[int, typer.Option(min=1, help="The most requests at a time; others get 429.")] = 128,
    timeout: Annotated[float, typer.Option(min=0.01, help="The most seconds a request.")] = 30.0,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must send; else CLOZIFY_TOKEN, if set.")
    ] = None,
) -> None:
    """Answer requests over HTTP with a finished run."""
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        require_package(library, "serve", "A server")
    from clozify.serving.requests import Limits
    from clozify.serving.server import serve as run_server

    run_server(folder, host, port, Limits(max_texts, max_body, max_waiting, timeout), token_file, typer.echo)
