"""What the method `frozen` learns from: states at the mask, mean states, or both, measured on labelled rows kept out.

    python benchmarks/frozen.py TASK FILE --sizes 10,50,100 --draws 3

The rows of FILE are divided at random into T, balanced by label, and the rows to measure on; all centre the states.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from clozify.config.task import load_task
from clozify.data.in_memory import load_rows
from clozify.methods.frozen import Centre, compute_states, fit_label_vectors
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows


def draw(labels: NDArray[np.int16], size: int, seed: int) -> NDArray[np.int64]:
    """Rows of T: as many of each label as of the others, give or take one, where there are enough."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels))  # a row's number among those of its label, and a random tie-break
    for label in np.unique(labels):
        of_label = order[labels[order] == label]
        rank[of_label] = np.arange(len(of_label)) + rng.uniform()
    return np.argsort(rank, kind="stable")[:size]


def accuracy(
    states: list[NDArray[np.float16]], words: list[NDArray[np.float64]], labels: NDArray[np.int16], size: int, seed: int
) -> float:
    """The ensemble's accuracy on the rows that are not in T; a pattern's states are (rows, states)."""
    chosen = draw(labels, size, seed)
    others = np.setdiff1d(np.arange(len(labels)), chosen)
    scores = np.zeros((len(others), len(words[0])))
    for pattern_states, u in zip(states, words, strict=True):
        centre = Centre.of([pattern_states], u.shape[1])
        fitted, _ = fit_label_vectors(pattern_states[chosen], labels[chosen], u, centre)
        scores += fitted.scores(pattern_states[others])
    return float((np.argmax(scores, axis=1) == labels[others]).mean())


def main(
    task: Annotated[str, typer.Argument(help="A task.")],
    file: Annotated[str, typer.Argument(help="Its labelled rows.")],
    sizes: Annotated[str, typer.Option(help="Rows of T, with commas between them.")] = "10,50,100",
    draws: Annotated[int, typer.Option(help="Random T of each size.")] = 3,
    rows: Annotated[int, typer.Option(help="Use at most so many rows of the file, drawn at random.")] = 650,
    length: Annotated[int, typer.Option(help="Tokens of a row.")] = 64,
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
) -> None:
    """Print the accuracy of each kind of states, the mean and the spread over the draws."""
    cloze_model, data = load_model(model), load_rows(file, load_task(task))
    data = data.select(np.random.default_rng(0).permutation(len(data))[:rows])
    prompts = compile_task(cloze_model, data.task)
    tokens = prompts.tokenize(cloze_model, data, 0, len(data))
    states = [compute_states(cloze_model, EncodedRows(p.template, tokens, length)) for p in prompts.patterns]
    words = [cloze_model.label_vectors(p.words[0])[0].detach().double().numpy() for p in prompts.patterns]
    width = words[0].shape[1]
    kinds = {
        "mask": ([each[:, :width] for each in states], words),
        "mean": ([each[:, width:] for each in states], [u[:, :0] for u in words]),
        "both": (states, words),
    }
    print("| T | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for size in map(int, sizes.split(",")):
        line = f"| {size} "
        for kind_states, kind_words in kinds.values():
            values = [100 * accuracy(kind_states, kind_words, data.labels, size, seed) for seed in range(draws)]
            line += f"| {np.mean(values):.1f} ±{np.std(values, ddof=1):.1f} "
        print(line + "|", flush=True)


if __name__ == "__main__":
    typer.run(main)
