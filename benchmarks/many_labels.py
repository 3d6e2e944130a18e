"""Tasks with many labels whose names are their only words: accuracy on test rows of one draw, as a line of JSON.

CLOZIFY_DATA_FOLDER holds hwu64/ and clinc150/ with labeled_5.csv, labeled_10.csv, pile.csv and test.csv. With 5 rows a
label, draw 0 is labeled_5.csv, and draws 1, 2, ... are drawn from labeled_10.csv; with 10 it is labeled_10.csv. All
methods get the same rows and, apart from TF-IDF, the same encoder; SetFit with `--setfit-model` another one. SetFit
draws 20 pairs for each row and kind (`num_iterations`): all pairs of 750 rows would be 35,000 steps.

    CLOZIFY_DATA_FOLDER=data python benchmarks/many_labels.py hwu64 --draw 0 --methods tfidf,pooled,supervised,pet,ipet
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from methods import draw as draw_rows
from methods import setfit_accuracy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.config.task import Task
    from clozify.data.rows import Rows

METHODS = "tfidf,pooled,setfit,supervised,zero-shot,pet-without-pile,pet,ipet"


def load_data(folder: Path, rows_per_label: int, draw: int, held_out: bool) -> tuple[Task, Rows, Rows, Rows]:
    """The task, as `clozify init` writes it, and its labelled, unlabelled and test rows.

    `held_out`, to choose settings: the rows of labeled_10.csv that are not in labeled_5.csv instead of the test rows.
    """
    import clozify

    task = clozify.init_task(folder / "labeled_10.csv").task
    labeled = clozify.read_rows(folder / f"labeled_{rows_per_label if draw == 0 else 10}.csv", task)
    if draw > 0 and rows_per_label < 10:
        labeled = draw_rows(labeled, rows_per_label * len(task.labels), draw)
    test = clozify.read_rows(folder / "test.csv", task)
    if held_out:
        test = clozify.read_rows(folder / "labeled_10.csv", task).excluding(labeled)
    return task, labeled, clozify.read_rows(folder / "pile.csv", task).excluding(labeled, test), test


def pooled_accuracy(model: Any, labeled: Rows, test: Rows) -> float:
    """Logistic regression on the means of the encoder's states, which is not trained."""
    import torch
    from sklearn.linear_model import LogisticRegression

    def states(rows: Rows) -> NDArray[np.float32]:
        chunks = []
        tokenizer = model.tokenizer.hf_tokenizer
        for start in range(0, len(rows), 64):
            inputs = tokenizer(
                rows.texts("text", start, min(start + 64, len(rows))),
                padding=True,
                truncation=True,
                max_length=64,
                return_tensors="pt",
                return_token_type_ids=False,
            ).to(model.device)
            with torch.inference_mode():
                hidden = model.encoder(**inputs)[0]
            mask = inputs["attention_mask"][..., None]
            chunks.append(((hidden * mask).sum(dim=1) / mask.sum(dim=1)).float().cpu().numpy())
        return np.concatenate(chunks)

    classifier = LogisticRegression(max_iter=1000).fit(states(labeled), labeled.labels)
    return float((classifier.predict(states(test)) == test.labels).mean())


def main(
    name: str,
    rows_per_label: int = 5,
    draw: int = 0,
    seed: int = 0,
    methods: str = METHODS,
    model: str = "builtin",
    setfit_model: str = "",
    setfit_site: str = "",
    setfit_python: Annotated[str, typer.Option()] = sys.executable,
    cpu_recipe: bool = False,
    held_out: bool = False,
    setting: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe auto.")] = None,
) -> None:
    """Train every method on one draw and print a line of JSON for each."""
    import clozify
    from clozify.methods.tfidf import tfidf_predictions

    if not os.environ.get("CLOZIFY_DATA_FOLDER"):
        sys.exit("Set CLOZIFY_DATA_FOLDER to the folder with hwu64/ and clinc150/.")
    settings = [f"seed={seed}", *(setting or [])]
    if cpu_recipe:
        settings += ["adapt_to=cpu", "kernels=torch", "precision=float32"]
    task, labeled, unlabeled, test = load_data(
        Path(os.environ["CLOZIFY_DATA_FOLDER"]) / name, rows_per_label, draw, held_out
    )
    with tempfile.TemporaryDirectory() as folder:
        for method in methods.split(","):
            started = time.monotonic()
            if method == "tfidf":
                accuracy = float((tfidf_predictions(labeled, test) == test.labels).mean())
            elif method == "pooled":
                accuracy = pooled_accuracy(clozify.load_model(model), labeled, test)
            elif method == "setfit":
                encoder = setfit_model or f"{folder}/encoder"
                if not setfit_model:
                    clozify.load_model(model).save(Path(encoder))
                accuracy = setfit_accuracy(
                    labeled, test, encoder, 64, seed, [setfit_python], setfit_site, {"num_iterations": 20}
                )
            elif method == "zero-shot":
                zero_shot = clozify.zero_shot(task, test, model=model)
                assert zero_shot.accuracy is not None  # the test rows have labels
                accuracy = zero_shot.accuracy.ensemble
            else:
                result = clozify.train(
                    task,
                    labeled,
                    Path(folder) / method,
                    unlabeled=unlabeled if method in ("pet", "ipet") else None,
                    method=method.removesuffix("-without-pile"),
                    model=model,
                    settings=settings,
                )
                accuracy = result.run.evaluate(test).accuracy
            line = {"task": name, "rows": rows_per_label, "draw": draw, "seed": seed, "method": method, "model": model}
            line |= {"setfit_model": setfit_model} if method == "setfit" else {}
            print(json.dumps(line | {"accuracy": accuracy, "seconds": time.monotonic() - started}), flush=True)


if __name__ == "__main__":
    typer.run(main)
