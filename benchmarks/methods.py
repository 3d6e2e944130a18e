"""The methods on the same draws of labelled rows: accuracy on test rows, mean and standard deviation over the draws.

Each draw takes as many rows of every label at random from `--labeled`; all methods get the same rows and the same
encoder. SetFit runs as in `setfit_comparison.py`, where `--setfit-python` and `--setfit-site` are explained. The recipe
is `auto`; `--cpu-recipe` takes the settings for a CPU on a GPU, too, in float32.

    python benchmarks/methods.py emotion.toml --labeled train.csv --unlabeled pool.csv --test test.csv --sizes 12,60,100
    python benchmarks/methods.py debian --labeled builtin:labeled --unlabeled builtin:unlabeled --test builtin:test
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    from clozify.data.rows import Rows

HERE = Path(__file__).resolve().parent
METHODS = "tfidf,supervised,setfit,frozen,pet,ipet"


def draw(labeled: Rows, size: int, seed: int) -> Rows:
    """`size` rows at random, every label equally often, or once more for some labels."""
    rng, labels = np.random.default_rng(seed), len(labeled.task.labels)
    quotas = np.full(labels, size // labels)
    quotas[rng.permutation(labels)[: size % labels]] += 1
    rows = [
        rng.choice(np.flatnonzero(labeled.labels == label), quota, replace=False) for label, quota in enumerate(quotas)
    ]
    return labeled.select(np.sort(np.concatenate(rows)))


def setfit_accuracy(
    labeled: Rows,
    test: Rows,
    model: str,
    max_length: int,
    seed: int,
    command: list[str],
    site: str,
    settings: Mapping[str, Any] | None = None,
    probabilities: Path | None = None,
) -> float:
    """The accuracy of SetFit with its default settings, or others, trained in a process of its own.

    `probabilities` names a file for each test row's, (rows, labels).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows, file in ((labeled, "labeled.jsonl"), (test, "test.jsonl")):
            texts = zip(*(rows.texts(field) for field in rows.task.fields), strict=True)
            lines = [{"text": " ".join(t), "label": int(n)} for t, n in zip(texts, rows.labels, strict=True)]
            (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        job = {
            "model": model,
            "labeled": str(folder / "labeled.jsonl"),
            "test": str(folder / "test.jsonl"),
            "max_length": max_length,
            "seed": seed,
            "least_steps": 0,
            "settings": dict(settings or {}),
            "probabilities": probabilities and str(probabilities.resolve()),
            "folder": name,
            "result": str(folder / "result.json"),
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        paths = [path for path in (site, os.environ.get("PYTHONPATH")) if path]
        environment = os.environ | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
        subprocess.run(
            [*command, "-P", str(HERE / "setfit_worker.py"), str(folder / "job.json")], check=True, env=environment
        )
        return float(json.loads((folder / "result.json").read_text(encoding="utf-8"))["accuracy"])


def main(
    task: str,
    labeled: Annotated[str, typer.Option()],
    unlabeled: Annotated[str, typer.Option()],
    test: Annotated[str, typer.Option()],
    sizes: str = "56",
    draws: int = 3,
    methods: str = METHODS,
    model: str = "builtin",
    setfit_python: str = sys.executable,
    setfit_site: str = "",
    cpu_recipe: bool = False,
) -> None:
    """Train every method on every draw and print a table."""
    import clozify
    from clozify.methods.tfidf import tfidf_predictions

    settings = []
    if cpu_recipe:
        settings = ["adapt_to=cpu", "kernels=torch", "precision=float32"]
    loaded = clozify.load_task(task)
    rows = {name: clozify.read_rows(source, loaded) for name, source in (("labeled", labeled), ("test", test))}
    with tempfile.TemporaryDirectory() as folder:
        encoder = str(Path(folder) / "encoder")
        if "setfit" in methods:
            clozify.load_model(model).save(Path(encoder))  # an ordinary folder
        print("| labelled rows | " + " | ".join(methods.split(",")) + " |")
        print("|---" * (1 + len(methods.split(","))) + "|")
        for size in map(int, sizes.split(",")):
            cells = []
            for method in methods.split(","):
                accuracies = []
                for seed in range(draws):
                    few = draw(rows["labeled"], size, seed)
                    if method == "setfit":
                        accuracy = setfit_accuracy(few, rows["test"], encoder, 64, seed, [setfit_python], setfit_site)
                    elif method == "tfidf":
                        accuracy = float((tfidf_predictions(few, rows["test"]) == rows["test"].labels).mean())
                    else:
                        result = clozify.train(
                            loaded,
                            few,
                            Path(folder) / f"{method}-{size}-{seed}",
                            unlabeled=None if method == "supervised" else unlabeled,
                            method=method,
                            model=model,
                            settings=[*settings, f"seed={seed}"],
                        )
                        accuracy = result.run.evaluate(rows["test"]).accuracy
                    accuracies.append(100 * accuracy)
                cells.append(f"{np.mean(accuracies):.1f} ± {np.std(accuracies, ddof=1) if draws > 1 else 0:.1f}")
            print(f"| {size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    typer.run(main)
