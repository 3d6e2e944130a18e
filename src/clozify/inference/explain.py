"""Implements `clozify explain`: which words of a row moved its label.

Words are left out in turn as `methods/explain.py` describes, for whatever answers in a run: a
classifier in PyTorch (also in int8) or ONNX, or an ensemble, whose members all score the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.in_memory import RowSource, load_rows
from clozify.data.rows import Rows
from clozify.errors import DataError, did_you_mean, quoted
from clozify.inference.finished_run import FinishedRun
from clozify.methods.explain import MAX_PARTS, Occlusion, occlude_rows
from clozify.models.static_classifier import StaticClassifier
from clozify.prompts.reading import read_lengths
from clozify.runs.metrics import Record
from clozify.runs.records import EnsembleRecord

DIGITS = 6  # of the numbers in a result


class WordEffect(Record):
    """What a word, or several that were left out together, does to a label."""

    text: str
    field: str
    start: int  # its first character in the field's text
    end: int
    read: bool  # False: beyond the length that the model reads, so that it has no effect
    effect: float = 0.0  # how much it adds to the label's log-odds, the mean of the next two; above 0 it speaks for it
    left_out: float | None = None  # the log-odds of the row minus those without it
    left_out_of_sample: float | None = None  # the same of a few of the row's words, where no others say the same
    against_runner_up: float | None = None  # how much it adds to log q(label) - log q(runner-up), in the mean
    probability_without: float | None = None  # the label's probability where it is left out


class Explanation(Record):
    """A row's label, and the effects of the words on it."""

    id: Any  # text or a number, as the data has it
    label: str  # the one that is explained
    predicted: bool  # whether the row gets it
    probability: float
    runner_up: str | None  # the likeliest other label; None where rows may have several labels
    runner_up_probability: float | None
    texts: dict[str, str]  # by field
    words: list[WordEffect]  # in the order of the text
    grouped: bool  # whether words next to each other were left out together

    def strongest(self, count: int = 5) -> list[WordEffect]:
        """The words with the largest effects, for or against the label, the largest first."""
        return sorted([word for word in self.words if word.effect], key=lambda word: -abs(word.effect))[:count]


class Explanations(Record):
    """Explanations of rows; where rows may have several labels, one for each predicted label."""

    model: str  # what answered
    rows: list[Explanation]
    warnings: list[str]


def explain(
    run: str | Path | FinishedRun,
    data: RowSource,
    label: str | None = None,
    column_mapping: Mapping[str, str] | None = None,
    rows: int | None = None,
    max_parts: int = MAX_PARTS,
) -> Explanations:
    """Show which words of each row moved its label: each word is left out in turn.

    - `run`: the run's folder or address, a classifier's folder, an export's, or what `load_run` returned.
    - `data`: rows as for `predict`.
    - `label`: explain this label instead of the predicted one. Where rows may have several labels, every predicted one
      is explained, or the likeliest where none is.
    - `column_mapping`: the data's column for a field, as in `{"text": "body"}`.
    - `rows`: explain the first rows only.
    - `max_parts`: how many words are left out in turn at most. In a row with more words, words next to each other are
      left out together, and then single words where that moved the label most.
    """
    for name, value in (("rows", rows), ("max_parts", max_parts)):
        if value is not None and value < 1:
            raise DataError(f"'{name}' is {value}; it must be 1 or more.")
    finished = run if isinstance(run, FinishedRun) else FinishedRun(run)
    labels = finished.task.labels
    if label is not None and label not in labels:
        raise DataError(f"There is no label '{label}'{did_you_mean(label, labels)}; the labels are {quoted(labels)}.")
    loaded = load_rows(data, finished.task, column_mapping)
    explained = loaded if rows is None or rows >= len(loaded) else loaded.select(range(rows))
    read = _read_lengths(finished, explained)
    chosen = None if label is None else [labels.index(label)] * len(explained)
    occlusions = occlude_rows(explained, finished.probabilities, read, chosen, max_parts)
    explanations = [
        _explanation(finished, row_id, occlusion, index)
        for row_id, occlusion in zip(explained.ids(), occlusions, strict=True)
        for index in _label_indices(finished, occlusion, label)
    ]
    warnings = [*finished.notes, *loaded.warnings, *_limits(occlusions, max_parts)]
    if len(explained) < len(loaded):
        warnings.append(f"The first {len(explained):,} of {len(loaded):,} rows are explained; --rows sets the number.")
    return Explanations(model=finished.description, rows=explanations, warnings=warnings)


def _read_lengths(finished: FinishedRun, rows: Rows) -> dict[str, NDArray[np.int64]] | None:
    """The characters of each field that the classifier, or some pattern of the ensemble, reads; None: all of them."""
    texts = {field: rows.texts(field) for field in finished.task.fields}
    if finished.classifier is not None:
        classifier = finished.loaded_classifier
        if isinstance(classifier, StaticClassifier):
            return None
        return read_lengths(classifier.tokenizer, [classifier.template], classifier.max_length, texts)
    ensemble = EnsembleRecord.load(finished.folder)
    if ensemble.teachers is not None:  # rules and other teachers read everything
        return None
    from clozify.models.task_prompts import compile_task

    member = next(finished.ensemble.members())
    prompts = compile_task(member.model, finished.task, wording=ensemble.recipe.wording)
    templates = [pattern.template for pattern in prompts.patterns]
    length = min(member.max_length, member.model.max_length)
    return read_lengths(member.model.tokenizer, templates, length, texts)


def _label_indices(finished: FinishedRun, occlusion: Occlusion, label: str | None) -> list[int]:
    """The labels of a row that are explained."""
    if label is not None:
        return [finished.task.labels.index(label)]
    whole, likeliest = occlusion.whole[None], [int(occlusion.whole.argmax())]
    if not finished.decision.multilabel:
        return likeliest
    predicted: list[int] = np.flatnonzero(finished.decision.predict(whole)[0]).tolist()
    return predicted or likeliest


def _explanation(finished: FinishedRun, row_id: Any, occlusion: Occlusion, label: int) -> Explanation:
    """The effects of a row's words on a label."""
    decision, labels = finished.decision, finished.task.labels
    whole = occlusion.whole
    effects = occlusion.effects(label, decision.multilabel)
    predicted = decision.predict(whole[None])[0]
    words = []
    for index, part in enumerate(occlusion.parts):
        values: dict[str, float] = {}
        if part.read:
            values = {"effect": effects.log_odds[index], "probability_without": effects.probability[index]}
            values |= {"left_out": effects.left_out[index], "left_out_of_sample": effects.left_out_of_sample[index]}
            if effects.against_runner_up is not None:
                values["against_runner_up"] = effects.against_runner_up[index]
        text = occlusion.texts[part.field][part.start : part.end]
        rounded = {name: round(float(value), DIGITS) for name, value in values.items()}
        words.append(WordEffect(text=text, field=part.field, start=part.start, end=part.end, read=part.read, **rounded))
    second = effects.runner_up
    return Explanation(
        id=row_id,
        label=labels[label],
        predicted=bool(predicted[label] if decision.multilabel else predicted == label),
        probability=round(float(whole[label]), DIGITS),
        runner_up=None if second is None else labels[second],
        runner_up_probability=None if second is None else round(float(whole[second]), DIGITS),
        texts=dict(occlusion.texts),
        words=sorted(words, key=lambda word: (finished.task.fields.index(word.field), word.start)),
        grouped=occlusion.grouped,
    )


def _limits(occlusions: list[Occlusion], max_parts: int) -> list[str]:
    """Sentences about rows whose words were left out together, and about words that are not read."""
    sentences = []
    if grouped := sum(occlusion.grouped for occlusion in occlusions):
        rows = "1 row has" if grouped == 1 else f"{grouped:,} rows have"
        sentences.append(
            f"{rows} more than {max_parts} words: where they move the label little, words next to each other were "
            "taken together; --parts sets the number."
        )
    if cut := sum(any(not part.read for part in occlusion.parts) for occlusion in occlusions):
        rows = "1 row is" if cut == 1 else f"{cut:,} rows are"
        sentences.append(f"{rows} longer than the model reads: the last words have no effect.")
    return sentences
