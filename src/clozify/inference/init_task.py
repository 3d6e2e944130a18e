"""Implements `clozify init`: a task file from a data file, with patterns that fit its columns and labels."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from clozify.config.label_names import words_of_names
from clozify.config.task import Task, parse_task
from clozify.data.columns import MAX_LABELS, Column, Columns, guess_columns, open_with_header
from clozify.data.task_labels import guess_separator, label_names, read_labels
from clozify.errors import DataError, TaskError, quoted
from clozify.utils.atomic import atomic_write_text

# Patterns by kind of data. ALL are the fields with a space between them, FIRST is the first one and REST the others.
# The full stop after a field is dropped where the texts have punctuation at their end.
PATTERNS = {
    "requests": (
        "Topic: {mask}. ALL",
        "Question about {mask}: ALL",
        "ALL. This is about {mask}.",
        "ALL. I want {mask}.",
    ),
    "questions": ("{mask} Question: ALL", "[ Category: {mask} ] ALL", "FIRST ( {mask} ) REST", "{mask}: ALL"),
    "texts": ("{mask}: ALL", "FIRST ( {mask} ) REST", "[ Category: {mask} ] ALL", "ALL. This is about {mask}."),
    "opinions": ("It was {mask}. ALL", "ALL. All in all, it was {mask}.", "Just {mask}! || ALL"),
    "pairs": ('"FIRST:no_final_punctuation"? || {mask}, "REST"', "FIRST:no_final_punctuation? || {mask}, REST"),
}
REQUEST_WORDS = 15  # a short text without punctuation is a request, on average at most so many words long
OPINIONS = {"positive": "great", "negative": "terrible", "neutral": "okay"}  # labels, and words that fit "It was"
GENERIC_NAME = re.compile(r"(labell?ed|unlabell?ed|train|dev|test|valid|data|rows|sample|examples)", re.IGNORECASE)
WIDTH = 110  # of a line in the file


@dataclass(frozen=True)
class InitResult:
    """A task made from data, its file's text, and what was recognised in the data."""

    task: Task
    toml: str
    output: Path | None  # the file, if one was written
    data: str
    rows: int
    kind: str  # a key of PATTERNS
    label_column: str | None  # None: the data has no labels
    notes: list[str]

    @property
    def commands(self) -> list[str]:
        """The commands to type next."""
        task, data = shlex.quote(str(self.output or "task.toml")), shlex.quote(self.data)
        run = f"runs/{re.sub(r'[^a-zA-Z0-9.-]+', '-', self.task.name)}"
        rows = f"--labeled {data}" if self.label_column is not None else f"--method ipet --unlabeled {data}"
        return [
            f"clozify check {task} --data {data}",
            f"clozify zero-shot {task} --data {data}",
            f"clozify train {task} {rows} --output {run}",
        ]

    def to_json(self) -> dict[str, Any]:
        """What `clozify init --json` prints."""
        return {
            "task": self.task.name,
            "output": None if self.output is None else str(self.output),
            "data": self.data,
            "rows": self.rows,
            "kind": self.kind,
            "fields": self.task.fields,
            "label": self.label_column,
            "id": self.task.id,
            "labels": self.task.labels,
            "patterns": self.task.patterns,
            "notes": self.notes,
            "next": self.commands,
        }


def init_task(
    data: str | Path,
    output: str | Path | None = None,
    text: str | Sequence[str] = (),
    label: str | None = None,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    labels_from: str | Path | None = None,
    force: bool = False,
) -> InitResult:
    """Make a task from data: its text and label columns, its labels, and patterns that fit them.

    - `data`: a file, a folder of shards, or a data set of the hub as `NAME@SPLIT`.
    - `output`: the task file to write, with comments; an existing one is replaced only with `force`.
    - `text`: the columns with the texts, `label`: the column with the labels, instead of the likeliest ones.
    - `name`: the task's name; by default the name of the file or of its folder.
    - `labels`, or `labels_from`, a file: the labels of data that has none.
    """
    path = None if output is None else Path(output)
    if path is not None and path.exists() and not force:
        raise TaskError(f"'{path}' exists already; name another file with --output, or replace it with --force.")
    dataset, generated_names = open_with_header(data)
    names = list(labels) if labels is not None else None
    text = [text] if isinstance(text, str) else list(text)
    columns = guess_columns(dataset, str(data), text, label, names is None and labels_from is None)
    if odd := [column.name for column in columns.fields if re.search(r"[:!{}]", column.name)]:
        raise DataError(
            f"The column {quoted(odd)} of '{data}' has one of the characters : ! {{ }} in its name, which a pattern "
            "cannot use; rename the column."
        )
    if generated_names is not None:
        dataset, columns, generated_names = _rename(dataset, columns, generated_names)
    own_labels = [] if columns.label is None else label_names(dataset, columns.label.name, str(data))
    separator = guess_separator(own_labels)
    if separator is not None and columns.label is not None:
        own_labels = label_names(dataset, columns.label.name, str(data), separator)
    aliases = None
    if names is None and labels_from is None:
        named = _class_names(dataset, columns.label)
        names, aliases = (named, [list(map(str, range(len(named))))]) if named else (own_labels, None)
    elif names is None and labels_from is not None:
        names = read_labels(labels_from, label or "label")
    assert names is not None
    if len(names) < 2:
        raise DataError(f"The labels of '{data}' are {quoted(names)}; classification needs two or more.")
    notes = _label_notes(names, [] if aliases else own_labels, columns.label, len(dataset))
    kind = _kind(columns, names)
    entries = {
        "name": name or _default_name(str(data)),
        "fields": [column.name for column in columns.fields],
        "label": columns.label.name if columns.label else label or "label",
        "id": None if columns.id is None else columns.id.name,
        "columns": generated_names,
        "aliases": aliases,
        "patterns": fill_patterns(kind, columns.fields),
        "labels": names,
        "separator": separator,
    }
    toml = _render(entries, kind, Path(str(data)).name)
    task = parse_task(toml, f"The task for '{data}'")
    if path is not None:
        atomic_write_text(path, toml)
    label_column = None if columns.label is None else columns.label.name
    return InitResult(task, toml, path, str(data), len(dataset), kind, label_column, notes)


def _class_names(dataset: Any, column: Column | None) -> list[str]:
    """The names of labels that the data holds as numbers, where a data set of Hugging Face has them."""
    return list(getattr(dataset.features[column.name], "names", None) or []) if column is not None else []


def fill_patterns(kind: str, fields: Sequence[Column]) -> list[str]:
    """The patterns of a kind for these fields."""
    names = ["{" + field.name + "}" for field in fields]
    stop = "" if fields[-1].ends_in_punctuation else "."
    patterns = []
    for pattern in PATTERNS[kind]:
        pattern = pattern.replace("FIRST:no_final_punctuation", "{" + fields[0].name + ":no_final_punctuation}")
        pattern = pattern.replace("ALL.", " ".join(names) + stop).replace("ALL", " ".join(names))
        patterns.append(pattern.replace("FIRST", names[0]).replace("REST", " ".join(names[1:])).strip())
    return patterns


def _kind(columns: Columns, labels: Sequence[str]) -> str:
    """The kind of data, which decides about the patterns: a key of PATTERNS."""
    first, *rest = columns.fields
    names = [re.sub(r"[\W_]", "", field.name.lower()) for field in columns.fields]
    if names == ["premise", "hypothesis"] or (len(names) == 2 and names[0].replace("1", "2") == names[1]):
        return "pairs"
    if {label.lower() for label in labels} <= OPINIONS.keys():
        return "opinions"
    if first.asks:
        return "questions"
    is_request = not rest and first.words <= REQUEST_WORDS and not first.ends_in_punctuation
    return "requests" if is_request else "texts"


def _label_notes(labels: Sequence[str], own_labels: Sequence[str], column: Column | None, rows: int) -> list[str]:
    """What the user should know about the labels."""
    notes = []
    if column is not None and len(own_labels) > min(MAX_LABELS, rows / 2) and len(own_labels) > 20:
        notes.append(
            f"The column '{column.name}' has {len(own_labels):,} different values in {rows:,} rows; if it is not the "
            "label column, name that with --label."
        )
    if others := [name for name in own_labels if name not in labels]:
        notes.append(f"The data has labels that were not named, {quoted(others, 5)}; such rows cannot be used.")
    if all(name.isdecimal() for name in labels):
        notes.append(
            "The labels are numbers, which tell a model nothing: write a word for each into the file's table [labels]."
        )
    return notes


def _rename(dataset: Any, columns: Columns, names: Sequence[str]) -> tuple[Any, Columns, list[str]]:
    """The data, the chosen columns and all columns' names, where usual names replace generated ones."""
    usual = {columns.label.name: "label"} if columns.label is not None else {}
    if len(columns.fields) == 1:
        usual[columns.fields[0].name] = "text"
    fields = [Column(usual.get(column.name, column.name), column.values) for column in columns.fields]
    label = columns.label and Column("label", columns.label.values)
    return dataset.rename_columns(usual), Columns(fields, label, columns.id), [usual.get(name, name) for name in names]


def _default_name(source: str) -> str:
    """The name of the file or data set or, where a file's name says nothing about the data, that of its folder."""
    if not Path(source).exists():
        return re.split(r"[/:@]", source.partition("@")[0])[-1]
    path = Path(source).resolve()
    stem = path.name.split(".")[0]
    return path.parent.name if GENERIC_NAME.fullmatch(stem) and path.parent.name else stem


def _render(entries: Mapping[str, Any], kind: str, source: str) -> str:
    """The task file with comments."""
    lines = [
        f"# A task for {_value(source)}, written by clozify init; change what you like.",
        f"name = {_value(entries['name'])}",
        '# description = "The question in a sentence."',
        f"fields = {_value(entries['fields'])}  # the columns that a pattern may use",
        f"label = {_value(entries['label'])}  # the column with the labels",
    ]
    if entries["id"] is not None:
        lines.append(f"id = {_value(entries['id'])}  # the column with the rows' ids, copied to predictions")
    if entries["columns"] is not None:
        lines.append(f"columns = {_value(entries['columns'])}  # the file has no header")
    if entries["aliases"] is not None:
        lines.append(f"aliases = {_value(entries['aliases'])}  # the data has the numbers of the labels")
    lines += [
        *_render_metric(entries["separator"]),
        "",
        f"# Patterns for {kind}: sentences with the row's text and {{mask}}, exactly once, for the words of its label.",
        "# || separates two segments. Use several; remove those that read badly.",
        "patterns = [",
        *(f"  {_value(pattern)}," for pattern in entries["patterns"]),
        "]",
        "",
        *_render_labels(entries["labels"], kind),
    ]
    return "\n".join(lines) + "\n"


def _render_metric(separator: str | None) -> list[str]:
    """The entries about the metric and, where there is a `separator`, about several labels a row."""
    if separator is None:
        return ['metric = "accuracy"  # or "macro-f1": rare labels count as much as frequent ones']
    return [
        "multilabel = true  # a row may have several labels, or none",
        f"separator = {_value(separator)}  # between them",
        'metric = "micro-f1"  # or "macro-f1": rare labels count as much as frequent ones',
    ]


def _render_labels(labels: Sequence[str], kind: str) -> list[str]:
    """The labels as a list of names or, where names are no words, as a table."""
    words, problems = words_of_names(labels)
    if problems:
        raise TaskError(problems)
    if kind == "opinions" or all(name.isdecimal() for name in labels):
        words = {name: OPINIONS.get(name.lower(), name) for name in labels}
        comment = '# The words that stand for the labels; a label may have several, as in ["great", "wonderful"].'
        return [comment, "[labels]", *tomli_w.dumps(words).splitlines()]
    example = next((name for name in labels if words[name] != name), labels[0])
    return [
        f"# The labels. Their names are their words: {_value(example)} is read as {_value(words[example])}.",
        "labels = [",
        *_wrap([f"{_value(name)}," for name in labels]),
        "]",
        "",
        "# Where a name says too little, write words of your own; a label may have several.",
        "[words]",
        f'# {tomli_w.dumps({example: words[example]}).split(" = ")[0]} = [{_value(words[example])}, "another word"]',
    ]


def _wrap(items: Sequence[str]) -> list[str]:
    """Lines of items with spaces between them."""
    lines = ["  "]
    for item in items:
        if len(lines[-1]) + len(item) > WIDTH:
            lines.append("  ")
        lines[-1] += item + " "
    return [line.rstrip() for line in lines]


def _value(value: Any) -> str:
    """A text or a list of texts as TOML, on one line."""
    if isinstance(value, str):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
    return "[" + ", ".join(map(_value, value)) + "]"
