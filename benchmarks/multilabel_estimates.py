"""Several labels a row: how often the 95% intervals of micro-F1 and exact match hold them, and sets all true labels.

NLU++ (hotels), 40 labels: CLOZIFY_NLUPP names the file `rows.csv` as in `multilabel.py`. The encoder is frozen, since
that is cheap: states are computed once and cached, and label vectors are fitted to every random T of the rows of
`--folds`; the other rows of these folds are the test rows. So settings can be chosen on some folds and reported on
others. The models of the three parts of T, thresholds, estimates and sets are those of `methods/multilabel.py`,
`methods/label_set_reliability.py` and `methods/conformal.py`. Two kinds of results:

- one pattern: the parts' models are of the same kind as the result, as with `--method supervised`;
- four patterns: the parts' models are of the pattern with the highest average precision on T alone, as with PET.

    CLOZIFY_NLUPP=rows.csv python benchmarks/multilabel_estimates.py --folds 10-19 --draws 200 --sizes 50,100
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from multilabel import make_task, matrix
from numpy.typing import NDArray
from scipy.special import expit

from clozify.data.decision import Decision
from clozify.methods.conformal import prediction_sets, set_threshold
from clozify.methods.frozen import Centre, LabelVectors, fit_label_vectors, pad_words
from clozify.methods.label_set_reliability import (
    HeldOutLabelSets,
    decision_counts,
    estimate_label_sets,
    f1_of,
    thresholds_without_fold,
)
from clozify.methods.multilabel import choose_thresholds, split_folds, zero_points_of
from clozify.metrics import average_precision

LENGTH, PARTS, SHRINKAGE = 64, 3, 10.0  # the recipe's multilabel.folds and multilabel.shrinkage
LEVELS = (0.8, 0.9, 0.95)
Array = NDArray[Any]


@dataclass(frozen=True)
class States:
    """All rows: each pattern's states and words, the labels and the folds."""

    states: list[Array]  # of each pattern, (rows, states)
    words: list[Array]  # of each pattern, (labels, width)
    targets: NDArray[np.int8]  # 0 and 1, (rows, labels)
    folds: NDArray[np.int64]  # (rows,)

    @classmethod
    def load(cls, model: str, cache: Path) -> States:
        """From the cache, or computed."""
        path = cache / f"{Path(model).name.replace(':', '-')}-nlupp.npz"
        if not path.exists():
            _compute(model, path)
        with np.load(path) as stored:
            patterns = range((len(stored.files) - 2) // 2)
            words = [stored[f"words{p}"] for p in patterns]
            return cls([stored[f"states{p}"] for p in patterns], words, stored["targets"], stored["folds"])

    def select(self, rows: Array, patterns: list[int]) -> States:
        """Some rows and patterns."""
        states = [self.states[pattern][rows] for pattern in patterns]
        return States(states, [self.words[pattern] for pattern in patterns], self.targets[rows], self.folds[rows])


def _compute(model_name: str, path: Path) -> None:
    from clozify.data.in_memory import load_rows
    from clozify.methods.frozen import compute_states
    from clozify.models.cloze import load_model
    from clozify.models.task_prompts import compile_task
    from clozify.prompts.encode import EncodedRows

    frame = pd.read_csv(os.environ["CLOZIFY_NLUPP"], keep_default_na=False).rename(columns={"labels": "label"})
    labels = sorted({name for text in frame["label"] for name in text.split("|") if name})
    task, model = make_task(labels, "names"), load_model(model_name)
    rows, prompts = load_rows(frame[["text", "label"]], task), compile_task(model, task)
    tokens = prompts.tokenize(model, rows, 0, len(rows))
    arrays: dict[str, Array] = {"targets": matrix(frame, labels), "folds": frame["fold"].to_numpy(dtype=np.int64)}
    for index, prompt in enumerate(prompts.patterns):
        arrays[f"states{index}"] = compute_states(model, EncodedRows(prompt.template, tokens, LENGTH))
        arrays[f"words{index}"] = model.label_vectors(prompt.words[0])[0].detach().double().cpu().numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Draw:
    """The scores of one draw: of T by models of its parts, of the test rows by the result."""

    held_out: Array  # logits, (rows of T, labels)
    parts: NDArray[np.int64]  # (rows of T,)
    targets: Array
    scores: Array  # (test rows, labels)
    truth: Array

    @classmethod
    def make(cls, data: States, size: int, seed: int) -> Draw:
        """Fit label vectors to a random T and to it without each part."""
        order = np.random.default_rng(seed).permutation(len(data.targets))
        chosen, others = order[:size], order[size:]
        targets = data.targets[chosen]
        parts = split_folds(targets, PARTS, seed)
        weights, penalties, scores = [], [], np.zeros((len(others), targets.shape[1]))
        for states, words in zip(data.states, data.words, strict=True):
            weights.append(_average_precision(states[chosen], targets, words))
            fitted, penalty = fit_label_vectors(states[chosen], targets, words, Centre.of([states], words.shape[1]))
            scores += weights[-1] * fitted.scores(states[others])
            penalties.append(penalty)
        best = int(np.argmax(weights))
        states, words = data.states[best], data.words[best]
        held_out, centre = np.zeros(targets.shape), Centre.of([states], words.shape[1])
        for part in range(PARTS):
            kept, left = chosen[parts != part], chosen[parts == part]
            fitted, _ = fit_label_vectors(states[kept], data.targets[kept], words, centre, penalties[best])
            held_out[parts == part] = fitted.scores(states[left])
        return cls(held_out, parts, targets, scores / sum(weights), data.targets[others])

    def measure(self) -> dict[str, float]:
        """Micro-F1, exact match, their estimates, and what sets contain."""
        chosen = thresholds_without_fold(self.held_out, self.targets, self.parts, "micro-f1", SHRINKAGE)
        held_out = HeldOutLabelSets(self.held_out, self.targets, chosen, PARTS)
        estimate = estimate_label_sets(held_out)
        thresholds = expit(choose_thresholds(self.held_out, self.targets, "micro-f1", SHRINKAGE))
        probabilities = expit(self.scores)
        predicted = Decision(list(map(str, range(len(thresholds)))), tuple(thresholds)).predict(probabilities)
        micro_f1 = float(f1_of(decision_counts(self.truth, predicted).sum(axis=0)))
        exact_match = float((predicted == self.truth).all(axis=1).mean())
        values: dict[str, float] = {}
        intervals = (
            ("micro-F1", micro_f1, estimate.micro_f1, estimate.micro_f1_interval),
            (
                "exact match",
                exact_match,
                estimate.exact_match,
                estimate.exact_match_interval,
            ),
        )
        for name, value, estimated, (low, high) in intervals:
            values |= {name: value, f"{name}, estimate": estimated, f"{name}, half width": (high - low) / 2}
            values |= {f"{name}, covered": low <= value <= high, f"{name}, below": value < low}
        for level in LEVELS:
            sets = prediction_sets(probabilities, set_threshold(held_out.true_probability, level), predicted)
            values[f"sets {level}"] = float((sets | (self.truth == 0)).all(axis=1).mean())
            values[f"sets {level}, labels"] = float(sets.sum(axis=1).mean())
        return values


def _average_precision(states: Array, targets: Array, words: Array) -> float:
    """A pattern's average precision on T before the fit."""
    start = pad_words(words, states.shape[1])
    scores = LabelVectors(start, np.zeros(len(start))).scores(states)
    return average_precision(targets, scores - zero_points_of(scores, targets))


def show(title: str, each: pd.DataFrame) -> None:
    """Print a line of each table."""
    draws = len(each)
    line = f"| {title} | {draws} |"
    for name in ("micro-F1", "exact match"):
        means = " | ".join(
            f"{100 * each[key].mean():.1f}" for key in (name, f"{name}, estimate", f"{name}, half width")
        )
        error = f"{100 * (each[name] - each[f'{name}, estimate']).std():.1f}"
        covered, below = int(each[f"{name}, covered"].sum()), int(each[f"{name}, below"].sum())
        line += f" {means} | {error} | {covered} ({below} below) |"
    for level in LEVELS:
        held, spread = 100 * each[f"sets {level}"].mean(), 100 * each[f"sets {level}"].std()
        line += f" {held:.1f} ± {spread / np.sqrt(draws):.1f}; {each[f'sets {level}, labels'].mean():.1f} |"
    print(line, flush=True)


def main(
    folds: Annotated[str, typer.Option(help="The folds whose rows are drawn from, as 10-19.")] = "10-19",
    draws: Annotated[int, typer.Option(help="Random T.")] = 200,
    sizes: Annotated[str, typer.Option(help="Rows of T, with commas between them.")] = "50,100",
    model: Annotated[str, typer.Option(help="The masked language model.")] = "builtin",
    cache: Annotated[Path, typer.Option(help="A folder for the states and the scores.")] = Path("runs/multilabel"),
) -> None:
    """Print a line for each size of T and kind of result."""
    data, (first, last) = States.load(model, cache), map(int, folds.split("-"))
    rows = np.flatnonzero((data.folds >= first) & (data.folds <= last))
    columns = [f"{n}{more}" for n in ("micro-F1", "exact match") for more in ("", " est.", " half", " sd", " covered")]
    print("| " + " | ".join(["T", "draws", *columns, *(f"sets {level}" for level in LEVELS)]) + " |")
    print("|---" * (2 + len(columns) + len(LEVELS)) + "|")
    for size in map(int, sizes.split(",")):
        for name, patterns in (("one pattern", [0]), ("four patterns", list(range(len(data.states))))):
            of_kind = data.select(rows, patterns)
            values = [Draw.make(of_kind, size, seed).measure() for seed in range(draws)]
            show(f"{size} rows, {name}", pd.DataFrame(values).astype(float))


if __name__ == "__main__":
    typer.run(main)
