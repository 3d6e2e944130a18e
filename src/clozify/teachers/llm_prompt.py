"""The messages that ask a large language model for a row's label, made from the task and T."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from clozify.config.label_names import name_to_words
from clozify.config.task import Task
from clozify.config.teachers import OpenAIEntry
from clozify.data.rows import Rows

Message = dict[str, str]
Texts = Mapping[str, str]  # field -> text

DEFAULT_PROMPT = """{task}
Read the text and choose the label that fits it best.

Labels:
{labels}

{examples}Text:
{row}

Answer with the {code} of the label and nothing else."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WORDS_SHOWN = 5  # of a label, besides its name


@dataclass(frozen=True)
class LabelCodes:
    """A short name for each label, one token if possible, so that the first token of an answer tells labels apart."""

    kind: str  # "number" or "letter"
    codes: tuple[str, ...]


def label_codes(labels: Sequence[str]) -> LabelCodes:
    """Digits for up to 9 labels, letters for up to 26, else numbers of equal length.

    A code that is another label's name ("1" for the label "0", where "1" is a label, too) is avoided if possible.
    """
    count = len(labels)
    numbers = tuple(str(index).zfill(len(str(count))) for index in range(1, count + 1))
    letters = LabelCodes("letter", tuple(LETTERS[:count]))
    schemes = [LabelCodes("number", numbers)]
    if count <= len(LETTERS):
        schemes.insert(0 if count > 9 else 1, letters)
    names = [label.casefold() for label in labels]
    for scheme in schemes:
        codes = [code.casefold() for code in scheme.codes]
        if all(code not in names or names.index(code) == index for index, code in enumerate(codes)):
            return scheme
    return schemes[0]


def iterate_texts(rows: Rows) -> Iterator[dict[str, str]]:
    """The texts of each row, field by field; read a chunk at a time."""
    fields = rows.task.fields
    for start, stop in rows.chunks():
        for texts in zip(*(rows.texts(field, start, stop) for field in fields), strict=True):
            yield dict(zip(fields, texts, strict=True))


def balanced_order(labels: Sequence[int]) -> list[int]:
    """Indices of labelled rows, the first of each label, then the second of each, and so on; -1 is no label."""
    seen: dict[int, int] = {}
    ranks = []
    for index, label in enumerate(labels):
        if label >= 0:
            seen[label] = seen.get(label, 0) + 1
            ranks.append((seen[label], label, index))
    return [index for _, _, index in sorted(ranks)]


class PromptBuilder:
    """Builds the messages for a row; `labeled` gives the examples."""

    def __init__(self, entry: OpenAIEntry, task: Task, labeled: Rows | None = None) -> None:
        self.entry, self.task = entry, task
        self.codes = label_codes(task.labels)
        self._template = entry.prompt or DEFAULT_PROMPT
        self._labels = "\n".join(self._label_line(index) for index in range(len(task.labels)))
        self._examples = self._pick_examples(labeled)

    def _label_line(self, index: int) -> str:
        label = self.task.labels[index]
        own = {label.casefold(), name_to_words(label).casefold()}
        words = [word for word in self.task.verbalizers[0].words[label] if word.casefold() not in own]
        shown = f" ({', '.join(words[:WORDS_SHOWN])})" if words else ""
        description = self.entry.descriptions.get(label, "")
        return f"{self.codes.codes[index]}. {label}{shown}" + (f": {description}" if description else "")

    def _pick_examples(self, labeled: Rows | None) -> list[tuple[dict[str, str], int]]:
        """Labelled rows and their labels, in the order in which they become examples."""
        if labeled is None or not len(labeled) or not self.entry.examples:
            return []
        order = balanced_order(labeled.labels.tolist())
        chosen = labeled.select(np.array(order, dtype=np.int64))
        return list(zip(iterate_texts(chosen), chosen.labels.tolist(), strict=True))

    def messages(self, texts: Texts) -> list[Message]:
        """The messages for one row. A row of T is never its own example: the answer would be in the prompt."""
        examples = islice(((own, label) for own, label in self._examples if own != texts), self.entry.examples)
        blocks = [f"Text:\n{self._row(own)}\nLabel: {self.codes.codes[label]}\n\n" for own, label in examples]
        values = {
            **{field: self._cut(text) for field, text in texts.items()},
            "task": self.task.description,
            "labels": self._labels,
            "examples": "".join(blocks),
            "row": self._row(texts),
            "code": self.codes.kind,
        }
        return [{"role": "user", "content": self._template.format_map(values).strip()}]

    def reminder(self, messages: Sequence[Message], answer: str) -> list[Message]:
        """The messages that ask again after an answer that was no label."""
        codes = ", ".join(self.codes.codes)
        text = f"That is none of the labels. Answer with one of these and nothing else: {codes}."
        return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": text}]

    def _row(self, texts: Texts) -> str:
        if len(texts) == 1:
            return self._cut(next(iter(texts.values())))
        return "\n".join(f"{field}: {self._cut(text)}" for field, text in texts.items() if text)

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.entry.characters else text[: self.entry.characters] + " ..."


def estimate_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens messages have: a token is four bytes of UTF-8, and a message takes some more."""
    return sum(len(message["content"].encode()) // 4 + 8 for message in messages)
