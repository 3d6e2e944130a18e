"""The memory of a training on a CPU that returns freed memory to the system, and of one that does not.

PET on 400 of the sample data's test rows as labelled rows, with descriptions cut to 1 to 45 words, in a process
of its own for each side. Printed are the peak of the resident memory and the seconds that the processors worked.

    python benchmarks/training_memory.py [--model builtin] [--members 3] [--steps 100] [--max-length 64]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from typing import Annotated

import typer

WORK = """
import csv, sys, time
import clozify
from clozify.utils import memory
side, model, folder, *settings = sys.argv[1:]
if side == "kept":
    memory.return_freed_memory = lambda: None
rows = clozify.read_rows("builtin:test", clozify.load_task("debian")).table().to_pylist()[:400]
with open(f"{folder}/rows.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["label", "summary", "description"])
    for n, row in enumerate(rows):
        writer.writerow([row["label"], row["summary"], " ".join(row["description"].split()[: 1 + n % 45])])
labeled, run = f"{folder}/rows.csv", f"{folder}/run"
clozify.train("debian", labeled, run, unlabeled="builtin:unlabeled", model=model, settings=settings)
print("worked", time.process_time())
print(open("/proc/self/status").read())
"""


def main(
    model: Annotated[str, typer.Option(help="A built-in model, a folder or a name of the hub.")] = "builtin",
    members: Annotated[int, typer.Option(help="Members of the ensemble.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of a member, and of the classifier.")] = 100,
    max_length: Annotated[int, typer.Option(help="Tokens per row.")] = 64,
) -> None:
    """Train once in each way."""
    settings = [
        f"max_pairs={members}",
        f"finetune_without_lm.max_steps={steps}",
        f"distill.max_steps={steps}",
        f"max_seq_length={max_length}",
        "estimate.folds=0",
    ]
    for side in ("kept", "returned"):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", WORK, side, model, folder, *settings],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        peak = re.search(r"VmHWM:\s+(\d+)", done.stdout)
        worked = re.search(r"worked ([\d.]+)", done.stdout)
        assert peak
        assert worked
        print(f"freed memory {side}: peak {int(peak[1]) / 1024:,.0f} MiB, {float(worked[1]):,.0f} processor seconds")


if __name__ == "__main__":
    typer.run(main)
