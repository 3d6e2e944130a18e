"""How faithful are the words that `clozify explain` shows? Deletion curves on labelled rows.

A way to explain puts the words of a row in an order. The more the probability of the predicted label falls when the
first words of that order are taken away, and the less it falls when only they are kept, the more faithful is the
explanation. Words are taken away in two ways, since each way to explain has an advantage in its own: removed, or
replaced by the mask token. Compared are words that are left out by removal or by the mask token, what clozify does (the
mean of removal from the row and from a sample of it), the mean of removal and of the word alone, gradient times input,
integrated gradients, and a random order. With the last words of an order taken away the probability should rise. The
rows should be in no training set and no test set.

    python benchmarks/explain.py runs/debian --data labelled.csv --rows 60
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from clozify.methods.explain import Part, leave_out, sample_parts, split_words
from clozify.models.classifier import Classifier
from clozify.prompts.encode import EncodedRows
from clozify.prompts.reading import read_lengths
from clozify.prompts.tokenizer import RaggedTokens

FRACTIONS = (0.05, 0.1, 0.2, 0.5)  # of a row's words that are taken away, one at least
GRADIENT_STEPS = 16  # of integrated gradients
EXPLAINERS = ("random", "removal", "mask", "with alone", "clozify", "gradient times input", "integrated gradients")
Row = tuple[dict[str, str], list[Part]]


def removed(row: Row, words: Sequence[int]) -> dict[str, str]:
    """The texts without these words."""
    texts, parts = dict(row[0]), row[1]
    for index in sorted(words, key=lambda index: -parts[index].start):
        part = parts[index]
        texts[part.field] = leave_out(texts[part.field], part.start, part.end)
    return texts


def tokens_of(classifier: Classifier, row: Row) -> dict[Any, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each field of the template its token ids, and the word of each token (-1: none)."""
    tokens = {}
    for column in classifier.template.fields:
        text, skipped = row[0][column.slot.field], len(classifier.tokenizer.encode(column.context.rstrip()))
        ((ids, offsets),) = classifier.tokenizer.encode_with_offsets([column.context + text])
        words = np.full(len(ids), -1)
        for index, part in enumerate(row[1]):
            for position, (start, end) in enumerate(offsets):
                start, end = start - len(column.context), end - len(column.context)
                if part.field == column.slot.field and start < part.end and end > part.start:
                    words[position] = index
        tokens[column] = ids[skipped:], words[skipped:]
    return tokens


def ragged(rows: Sequence[NDArray[Any]]) -> RaggedTokens:
    """Token ids of rows."""
    return RaggedTokens.from_lists([row.astype(np.int32) for row in rows])


def score_ids(classifier: Classifier, rows: Sequence[dict[Any, Any]]) -> NDArray[np.float64]:
    """Probabilities of rows of token ids by field: (rows, labels)."""
    columns = {column: ragged([row[column] for row in rows]) for column in rows[0]}
    encoded = EncodedRows(classifier.template, columns, classifier.max_length)
    scores = torch.zeros(len(rows), len(classifier.task.labels))
    with torch.inference_mode():
        for batch in encoded.batches(2_048):
            scores[batch.rows] = classifier.scores(batch).float()
    return scores.double().softmax(-1).numpy()


def scorer(classifier: Classifier, way: str) -> Callable[[Row, Sequence[Sequence[int]]], NDArray[np.float64]]:
    """A function that returns the probabilities of a row without each of some sets of words."""

    def by_removal(row: Row, sets: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        texts = [removed(row, words) for words in sets]
        columns = {
            column: column.tokenize(classifier.tokenizer, [text[column.slot.field] for text in texts])
            for column in classifier.template.fields
        }
        every = [
            {c: columns[c].ids[columns[c].offsets[n] : columns[c].offsets[n + 1]] for c in columns}
            for n in range(len(texts))
        ]
        return score_ids(classifier, every)

    def by_mask(row: Row, sets: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        tokens, mask = tokens_of(classifier, row), classifier.tokenizer.mask_id
        return score_ids(
            classifier,
            [{c: np.where(np.isin(of, list(words)), mask, ids) for c, (ids, of) in tokens.items()} for words in sets],
        )

    return by_removal if way == "removal" else by_mask


def gradients(classifier: Classifier, row: Row, label: int, steps: int) -> NDArray[np.float64]:
    """The words' shares of the label's log-odds by the path from masks to the row; one step is gradient times input."""
    tokens = tokens_of(classifier, row)
    columns = {column: ragged([ids]) for column, (ids, _) in tokens.items()}
    masks = {column: ragged([np.full_like(ids, classifier.tokenizer.mask_id)]) for column, (ids, _) in tokens.items()}
    numbers = {column: ragged([words + 1]) for column, (_, words) in tokens.items()}
    batches = [
        EncodedRows(classifier.template, c, classifier.max_length).batch(np.arange(1))
        for c in (columns, masks, numbers)
    ]
    embed = classifier.model.get_input_embeddings()
    whole, start = (embed(torch.from_numpy(batch.input_ids)).detach() for batch in batches[:2])
    inputs = {"attention_mask": torch.from_numpy(batches[0].attention_mask)}
    if classifier.has_token_types:
        inputs["token_type_ids"] = torch.from_numpy(batches[0].token_type_ids)
    total = torch.zeros_like(whole)
    for step in range(steps):
        point = (start + (whole - start) * ((step + 0.5) / steps if steps > 1 else 1.0)).requires_grad_()
        logits = classifier.model(inputs_embeds=point, **inputs).logits[0]
        others = torch.cat([logits[:label], logits[label + 1 :]])
        (gradient,) = torch.autograd.grad(logits[label] - others.logsumexp(0), point)
        total += gradient / steps
    shares = (total * (whole - start)).sum(-1)[0].numpy()
    is_field = batches[0].input_ids[0] != batches[1].input_ids[0]
    of_word = np.where(is_field, batches[2].input_ids[0] - 1, -1)
    return np.array([shares[of_word == index].sum() for index in range(len(row[1]))])


def orders_of(classifier: Classifier, row: Row, label: int, names: Sequence[str], seed: int) -> dict[str, NDArray[Any]]:
    """The words' effects by each way to explain: (words,)."""
    every = list(range(len(row[1])))
    ways = {way: scorer(classifier, way) for way in ("removal", "mask")}

    def log_odds(way: str, sets: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        own = ways[way](row, sets)[:, label]
        odds: NDArray[np.float64] = np.log(own) - np.log1p(-own)
        return odds

    effects: dict[str, NDArray[Any]] = {"random": np.random.default_rng(seed).random(len(every))}
    for way in ways:
        odds = log_odds(way, [[], *([word] for word in every)])
        effects[way] = odds[0] - odds[1:]
    if "with alone" in names:
        odds = log_odds("removal", [every, *([other for other in every if other != word] for word in every)])
        effects["with alone"] = (effects["removal"] + odds[1:] - odds[0]) / 2
    if "clozify" in names:
        samples = sample_parts(row[1])
        indices = [{row[1].index(part) for part in sample} for sample in samples]
        of_word = [next(number for number, sample in enumerate(indices) if word in sample) for word in every]
        absent = [[word for word in every if word not in sample] for sample in indices]
        odds = log_odds("removal", [*absent, *([*absent[of_word[word]], word] for word in every)])
        effects["clozify"] = (effects["removal"] + odds[of_word] - odds[len(samples) :]) / 2
    for name, steps in (("gradient times input", 1), ("integrated gradients", GRADIENT_STEPS)):
        if name in names:
            effects[name] = gradients(classifier, row, label, steps)
    return {name: effects[name] for name in names}


def main(
    run: Annotated[Path, typer.Argument(help="A run with a classifier.")],
    data: Annotated[str, typer.Option(help="Labelled rows that are in no training set and no test set.")],
    rows: Annotated[int, typer.Option(help="How many of them.")] = 60,
    only: Annotated[list[str] | None, typer.Option(help="These ways to explain only; repeatable.")] = None,
) -> None:
    """Print the mean fall of the predicted label's probability for each way to explain."""
    from clozify import read_rows
    from clozify.models.classifier import load_classifier

    classifier = load_classifier(run / "classifier", "cpu", "float32")
    task = classifier.task
    every = read_rows(data, task)
    chosen = every.select(np.sort(np.random.default_rng(0).permutation(len(every))[:rows]))
    columns = {field: chosen.texts(field) for field in task.fields}
    read = read_lengths(classifier.tokenizer, [classifier.template], classifier.max_length, columns)
    ways = {way: scorer(classifier, way) for way in ("removal", "mask")}
    falls: dict[tuple[str, str, str], list[float]] = {}
    for index in range(len(chosen)):
        words = [p for f in task.fields for p in split_words(columns[f][index], f, int(read[f][index])) if p.read]
        ends = {part.field: part.end for part in words}
        row = {field: columns[field][index][: ends.get(field, 0)] for field in task.fields}, words
        base = ways["removal"](row, [[]])[0]
        label = int(base.argmax())
        for name, effects in orders_of(classifier, row, label, only or EXPLAINERS, index).items():
            order = np.argsort(-effects, kind="stable")
            counts = [max(1, round(fraction * len(words))) for fraction in FRACTIONS]
            for way, score in ways.items():
                lost = base[label] - score(row, [order[:count].tolist() for count in counts])[:, label]
                kept = base[label] - score(row, [order[count:].tolist() for count in counts])[:, label]
                falls.setdefault((name, way, "taken away"), []).append(float(lost.mean()))
                falls.setdefault((name, way, "kept alone"), []).append(float(kept.mean()))
            lost = base[label] - ways["removal"](row, [order[-count:].tolist() for count in counts])[:, label]
            falls.setdefault((name, "removal", "last"), []).append(float(lost.mean()))
    print("| words by | first removed | masked | kept alone, others removed | masked | last removed |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in only or EXPLAINERS:
        cells = [falls[name, way, kind] for kind in ("taken away", "kept alone") for way in ways]
        cells.append(falls[name, "removal", "last"])
        shown = " | ".join(f"{100 * np.mean(c):.1f} ± {100 * np.std(c) / len(c) ** 0.5:.1f}" for c in cells)
        print(f"| {name} | {shown} |")


if __name__ == "__main__":
    typer.run(main)
