"""How many flipped labels does `clozify audit` rank first? On AG's News.

CLOZIFY_AGNEWS_FOLDER names a folder with `train_first1000_per_class.csv` and `train_pool.csv`, files of the training
set without a header: class, title, description. A draw has 200 rows of the pool, which are in no other draw, and 10% of
their labels, chosen at random, are replaced by another one. Counted are the flipped rows among the 20 that the audit
ranks first; the area under the ROC curve is that of all 200. The baseline is the same confident learning on
cross-fitted probabilities of logistic regression on TF-IDF vectors. Settings were chosen on rows of the other file
(--choose).

    CLOZIFY_AGNEWS_FOLDER=data/ag_news python benchmarks/audit.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from clozify import load_recipe, load_task, read_rows
from clozify.data.rows import Rows
from clozify.inference.audit_scores import load_audit_model, scoring_patterns
from clozify.inference.audit_sets import AuditSet
from clozify.methods.frozen import compute_states
from clozify.methods.label_errors import FOLDS, JointStates, cross_fit, find_label_errors, split_folds
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows

Probabilities = NDArray[np.float64]


def flip(labels: NDArray[np.int64], fraction: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The labels, of which some are replaced by another label at random."""
    flipped = rng.permutation(len(labels))[: round(fraction * len(labels))]
    result = labels.copy()
    result[flipped] = (result[flipped] + rng.integers(1, count, len(flipped))) % count
    return result


def tfidf_probabilities(texts: list[str], labels: NDArray[np.int64]) -> Probabilities:
    """Cross-fitted probabilities of logistic regression on TF-IDF vectors of words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(texts)
    folds = split_folds(labels, np.arange(len(labels)), seed=0)
    probabilities = np.zeros((len(labels), labels.max() + 1))
    for fold in range(FOLDS):
        classifier = LogisticRegression(C=10.0, max_iter=1_000).fit(vectors[folds != fold], labels[folds != fold])
        probabilities[folds == fold] = classifier.predict_proba(vectors[folds == fold])
    return probabilities


def all_states(rows: Rows, model: str, cache: Path | None) -> tuple[list[NDArray[Any]], list[NDArray[np.float64]]]:
    """The states of all rows in the patterns that an audit reads, and the words' vectors; kept in a file if named."""
    if cache is not None and cache.is_file():
        kept = np.load(cache)
        return list(kept["states"]), list(kept["words"])
    sets = [AuditSet("labeled", rows, [], None)]
    cloze_model, recipe = load_audit_model(model, load_recipe("auto"), sets)
    prompts, states, words = compile_task(cloze_model, rows.task), [], []
    tokens = prompts.tokenize(cloze_model, rows, 0, len(rows))
    for prompt in scoring_patterns(prompts):
        states.append(compute_states(cloze_model, EncodedRows(prompt.template, tokens, recipe.max_seq_length)))
        words.append(cloze_model.label_vectors(prompt.words[0])[0].detach().double().cpu().numpy())
    if cache is not None:
        np.savez(cache, states=np.stack(states), words=np.stack(words))
    return states, words


def main(
    draws: Annotated[int, typer.Option(help="How often rows are drawn and labels flipped.")] = 10,
    size: Annotated[int, typer.Option(help="Rows of a draw.")] = 200,
    noise: Annotated[float, typer.Option(help="The fraction of labels that are flipped.")] = 0.1,
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
    choose: Annotated[bool, typer.Option("--choose", help="Rows of train_first1000_per_class.csv.")] = False,
    cache: Annotated[Path | None, typer.Option(help="A file (.npz) to keep the states in.")] = None,
) -> None:
    """Print the flipped rows among the first of each draw, their mean and the mean area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    if not os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with AG's News' files; see the top of this script.")
    file = "train_first1000_per_class.csv" if choose else "train_pool.csv"
    rows = read_rows(Path(os.environ["CLOZIFY_AGNEWS_FOLDER"]) / file, load_task("agnews"))
    rows = rows.select(np.random.default_rng(0).permutation(len(rows))[: draws * size])
    texts = [" ".join(fields) for fields in zip(*(rows.texts(field) for field in rows.task.fields), strict=True)]
    started = time.monotonic()
    states, words = all_states(rows, model, cache)
    print(f"{time.monotonic() - started:.0f} s for the states of {len(rows):,} rows in {len(states)} patterns")
    first = round(noise * size)
    counts, areas, seconds = dict[str, list[int]](), dict[str, list[float]](), 0.0
    for number in range(draws):
        chosen = np.arange(number * size, (number + 1) * size)
        truth = rows.labels[chosen].astype(np.int64)
        labels = flip(truth, noise, len(rows.task.labels), np.random.default_rng(number))
        joint = JointStates.of([each[chosen] for each in states], words)
        methods: dict[str, Callable[[], Probabilities]] = {
            "audit": partial(cross_fit, joint, labels),
            "TF-IDF": partial(tfidf_probabilities, [texts[row] for row in chosen], labels),
        }
        for name, compute in methods.items():
            started = time.monotonic()
            probabilities = compute()
            seconds += time.monotonic() - started if name == "audit" else 0.0
            errors = find_label_errors(probabilities, labels)
            counts.setdefault(name, []).append(int((labels != truth)[errors.order[:first]].sum()))
            own = probabilities[np.arange(size), labels]
            areas.setdefault(name, []).append(float(roc_auc_score(labels != truth, -own)))
    print(f"{seconds / draws:.1f} s a draw to fit\n\n| | of the first {first} | each draw | AUROC |\n|---|---|---|---|")
    for name, hits in counts.items():
        spread = f"{np.mean(hits):.1f} ±{np.std(hits, ddof=1):.1f}"
        print(f"| {name} | {spread} | {', '.join(map(str, hits))} | {np.mean(areas[name]):.3f} |")


if __name__ == "__main__":
    typer.run(main)
