"""The command `bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clozify.cli.options import (
    AddressOption,
    DevicesOption,
    ExecutorOption,
    JsonOption,
    QuietOption,
    RecipeOption,
    SetOption,
    app,
    print_json,
    progress_logger,
)
from clozify.errors import ClozifyError


@app.command("bench")
def bench_command(
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Labelled rows: a file, a folder with train and test files, a folder or name of `reproduce`, "
            "NAME@SPLIT of the hub, or 'sample' (the default); NAME=... names it; repeatable."
        ),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(help="Test rows, for each --data in its order ('-': none); without them rows are held out."),
    ] = None,
    unlabeled: Annotated[
        list[str] | None,
        typer.Option(
            help="Unlabelled rows, for each --data in its order ('-': none); default: rows that are not drawn."
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A task file or name, for each --data in its order ('-': none); default: made from the data."
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="The labels' names with commas, for data without a task file.")
    ] = None,
    per_label: Annotated[str, typer.Option(help="Labelled rows a label, with commas.")] = "8",
    draws: Annotated[int, typer.Option(min=1, help="Draws of the labelled rows.")] = 3,
    methods: Annotated[
        str,
        typer.Option(
            help="With commas: tfidf, embeddings, zero-shot, nli, supervised, finetune, frozen, pet, pet-static, ipet, "
            "setfit, model2vec, fastfit, llm."
        ),
    ] = "tfidf,embeddings,supervised,pet",
    model: Annotated[
        str, typer.Option(help="The encoder of all methods: 'builtin', a folder or a hub name.")
    ] = "builtin",
    recipe: RecipeOption = "auto",
    settings: SetOption = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=8, help="Tokens of a row, for methods with the bench's encoder; default: 64 on a CPU, 256 on a GPU."
        ),
    ] = None,
    test_rows: Annotated[
        int | None, typer.Option(min=1, help="Measure on this many test rows, drawn at random.")
    ] = None,
    unlabeled_rows: Annotated[
        int | None, typer.Option(min=0, help="Unlabelled rows at most; default: 40 a label, 600 or more.")
    ] = None,
    held_out: Annotated[float, typer.Option(help="The part of data without test rows that is held out.")] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="The seed of all draws; draw n trains with this plus n.")] = 0,
    setfit_encoder: Annotated[
        str | None, typer.Option(help="Another Sentence Transformers model for SetFit: a folder or a hub name.")
    ] = None,
    nli_model: Annotated[str | None, typer.Option(help="The model of the method nli: a folder or a hub name.")] = None,
    llm: Annotated[
        Path | None,
        typer.Option(help="A TOML file with the entries of a teacher of the kind 'openai', for the method llm."),
    ] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option(help="METHOD=PYTHON, or METHOD=FOLDER with its packages, instead of making one; repeatable."),
    ] = None,
    output: Annotated[str, typer.Option(help="The folder of the bench; the same command resumes.")] = "bench",
    devices: DevicesOption = "auto",
    at_once: Annotated[int, typer.Option(min=1, help="Cells at a time on each device; times are longer then.")] = 1,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Stop after this many hours; the same command goes on.")
    ] = None,
    cell_minutes: Annotated[
        float | None, typer.Option(min=0, help="A cell that takes longer counts as failed.")
    ] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print how many cells each method has and an estimate of the hours, and stop."),
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on your data: the same labelled rows, test rows and encoder for each, with times and sizes."""
    from clozify.bench.datasets import pair_sources
    from clozify.bench.draws import DrawOptions
    from clozify.bench.plan import BenchOptions

    named = {"setfit-encoder": setfit_encoder, "nli-model": nli_model, "llm": None if llm is None else str(llm)}
    options = BenchOptions(
        output=output,
        data=pair_sources(data or ["sample"], task or [], test or [], unlabeled or []),
        labels=split(labels),
        per_label=_numbers(per_label),
        draws=draws,
        methods=split(methods),
        model=model,
        recipe=recipe,
        settings=settings or [],
        max_length=max_length,
        drawing=DrawOptions(seed, held_out, test_rows, unlabeled_rows),
        rival_options={name: value for name, value in named.items() if value is not None},
        environments=_pairs(environment or []),
        devices=devices,
        at_once=at_once,
        executor=executor,
        address=address,
        hours=hours,
        cell_minutes=cell_minutes,
        log=progress_logger(quiet),
    )
    if plan:
        from clozify.bench.cost import plan_cost
        from clozify.bench.terminal import show_cost

        cost = plan_cost(options)
        if as_json:
            print_json(asdict(cost))
        else:
            show_cost(Console(), cost)
        return
    from clozify.bench.render import to_json
    from clozify.bench.run import run_bench
    from clozify.bench.terminal import show_bench

    result = run_bench(options)
    if as_json:
        counts = {"done": result.done, "reused": result.reused, "failed": result.failed, "left": result.left}
        print_json(to_json(result.summary) | counts | {"files": [str(file) for file in result.files]})
    else:
        show_bench(Console(), result)
    if result.failed and not result.done + result.reused:
        raise typer.Exit(1)  # every cell failed


def split(text: str | None) -> list[str]:
    """The items of a list with commas."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def _numbers(text: str) -> list[int]:
    items = split(text)
    if wrong := [item for item in items if not item.isdecimal()]:
        raise ClozifyError(f"--per-label takes numbers separated by commas, such as 8,16,64; not '{wrong[0]}'.")
    return [int(item) for item in items]


def _pairs(texts: list[str]) -> dict[str, str]:
    if wrong := [text for text in texts if "=" not in text]:
        raise ClozifyError(f"--environment takes METHOD=PYTHON, not '{wrong[0]}'.")
    return dict(text.split("=", 1) for text in texts)
