"""Does memory grow with the number of rows?

A tiny model scores files of short rows, each file in its own process. Printed is the peak of the resident memory above
what the process used after loading the model.

    python benchmarks/memory.py [--rows 10000,100000,1000000]
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

TASK = """
name = "short"
fields = ["text"]
patterns = ["It was {mask}. {text}", "{text} It was {mask}."]
[labels]
good = "good"
bad = "bad"
"""


def score(data: Path, folder: Path) -> tuple[float, float]:
    """(MiB above the loaded model, seconds) of scoring one file."""
    import transformers

    from clozify.config.task import parse_task
    from clozify.inference.zero_shot import zero_shot
    from clozify.models.builtin import builtin_folder
    from clozify.models.cloze import ClozeModel

    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = ClozeModel(transformers.BertForMaskedLM(config), tokenizer, "tiny")
    before, began = _peak(), time.monotonic()
    zero_shot(parse_task(TASK), data, model, output=folder / "predictions.parquet")
    return _peak() - before, time.monotonic() - began


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(
    rows: Annotated[str, typer.Option(help="Row counts, separated by commas.")] = "10000,100000,1000000",
) -> None:
    """Print the memory and the time for each number of rows."""
    context = multiprocessing.get_context("spawn")
    for count in map(int, rows.split(",")):
        with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, mp_context=context) as pool:
            data = Path(name) / "rows.jsonl"
            with data.open("w") as file:
                for index in range(count):
                    label = "good" if index % 2 else "bad"
                    file.write(json.dumps({"text": f"row {index} of many short texts", "label": label}) + "\n")
            extra, seconds = pool.submit(score, data, Path(name)).result()
        print(f"{count:>10,} rows: {extra:,.0f} MiB above the model, {seconds:,.0f} s, {count / seconds:,.0f} rows/s")


if __name__ == "__main__":
    typer.run(main)
