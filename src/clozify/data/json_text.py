"""Reads JSON lines and JSON arrays as columns of text: no type is guessed.

Text stays as it is, a number keeps its literal (`1e30`, an id of 40 digits), `true` and `false` are those
words, an object or a list is its JSON text. Files are read in blocks, so their size is not limited by memory; a JSON
array is read at once. Converting 1,000,000 lines (192 MB) for the first time takes twice the processor time of
Datasets' own reader (3.2 s against 1.6 s), which guesses types; later readings come from the cache.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.builder import Key

from clozify.errors import DataError

BLOCK_BYTES = 4 << 20
BLOCK_ITEMS = 16_384  # of a JSON array
READER_VERSION = "2"  # part of the cache's path: change it where the same file gives other columns


class Number(str):
    """A number as it is written in the file."""

    __slots__ = ()


def _constant(literal: str) -> Number | None:
    """`Infinity` as it is written; `NaN`, which Python's json writes for a missing value, as None."""
    return None if literal == "NaN" else Number(literal)


LITERALS = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=_constant
)  # four times faster than with `Number`
NUMBERS = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=_constant
)  # to write nested values again


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a file, each with its position."""

    path: Path
    unit: str  # what is counted: "line" or "item"
    numbers: Sequence[int]  # from 1
    rows: list[dict[str, Any]]
    texts: list[str] | None  # the rows' JSON text; None where `rows` hold `Number` already

    def error(self, index: int, reason: str) -> DataError:
        """A `DataError` that names the file and the row."""
        return _error(self.path, f"{self.unit} {self.numbers[index]}", reason)

    def column(self, name: str) -> pa.Array:
        """A column as text."""
        values = [row.get(name) for row in self.rows]
        try:
            return pa.array(values, pa.string())
        except (pa.ArrowTypeError, pa.ArrowInvalid, UnicodeEncodeError):  # booleans, objects, lists, half a character
            return pa.array([self._text(index, name, value) for index, value in enumerate(values)], pa.string())

    def _text(self, index: int, name: str, value: Any) -> str | None:
        try:
            if isinstance(value, (dict, list)) and self.texts is not None:
                value = NUMBERS.decode(self.texts[index])[name]
            text = value if value is None or isinstance(value, str) else _to_json(value)
        except RecursionError as error:
            raise self.error(index, _explain(error)) from None
        if text is not None and not _is_unicode(text):
            raise self.error(index, f"holds half of a surrogate pair in '{name}'; repair the text")
        return text


class JsonText(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """The columns `features` of JSON files as an Arrow table in the cache of Datasets."""

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, _: Any) -> list[datasets.SplitGenerator]:
        paths = [Path(name) for name in self.config.data_files["train"]]
        return [datasets.SplitGenerator(name="train", gen_kwargs={"paths": paths})]

    def _generate_tables(self, paths: Sequence[Path]) -> Iterator[tuple[Key, pa.Table]]:
        names = dict.fromkeys(self.info.features)
        for file_index, path in enumerate(paths):
            for block_index, block in enumerate(read_blocks(path)):
                if not names.keys() >= set(chain.from_iterable(block.rows)):
                    raise NewColumnError
                table = pa.table({name: block.column(name) for name in names})
                yield Key(file_index, block_index), table


class NewColumnError(Exception):
    """A row has a key that no row before had."""


def load_json(data_files: Sequence[str], names: Sequence[str]) -> datasets.Dataset:
    """These columns of the files, whose paths are escaped as Datasets requires."""
    builder = JsonText(
        dataset_name="json_text",
        hash=READER_VERSION,
        data_files={"train": list(data_files)},
        features=datasets.Features({name: datasets.Value("string") for name in names}),
    )
    builder.download_and_prepare()
    return builder.as_dataset(split="train")


def read_columns(paths: Sequence[Path], blocks: int | None = None) -> list[str]:
    """The keys of the rows in the first `blocks` blocks of each file, or in all."""
    names: dict[str, None] = {}
    for path in paths:
        for block in islice(read_blocks(path), blocks):
            for index, row in enumerate(block.rows):
                if not row.keys() <= names.keys():
                    names |= dict.fromkeys(row)
                    if not all(map(_is_unicode, row)):
                        raise block.error(index, "has half of a surrogate pair in a key; repair it")
    return list(names)


def read_blocks(path: Path) -> Iterator[Block]:
    """The rows of a file of JSON lines, or of a JSON array."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            if file.read(3) != codecs.BOM_UTF8:
                file.seek(0)
            start, lines = 1, file.readlines(BLOCK_BYTES)
            if next((line for line in lines if line.strip()), b"").lstrip().startswith(b"["):
                yield from _array_blocks(path, b"".join(lines) + file.read())
                return
            while lines:
                yield _parse_lines(path, start, lines)
                start, lines = start + len(lines), file.readlines(BLOCK_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"The data file '{path}' is not a complete gzip file ({error}); compress it again.") from None


def _parse_lines(path: Path, start: int, lines: list[bytes]) -> Block:
    rows, numbers, texts = [], [], []
    for number, line in enumerate(lines, start):
        try:
            if not (text := str(line, "utf-8").strip()):
                continue
            row, end = LITERALS.raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise _error(path, f"line {number}", _explain(error)) from None
        if end < len(text) or not isinstance(row, dict):
            raise _error(path, f"line {number}", "is not one JSON object; write one object on each line")
        rows.append(row)
        numbers.append(number)
        texts.append(text)
    return Block(path, "line", numbers, rows, texts)


def _array_blocks(path: Path, content: bytes) -> Iterator[Block]:
    try:
        items = NUMBERS.decode(str(content, "utf-8"))
    except (ValueError, RecursionError) as error:
        line = content[: error.start].count(b"\n") + 1 if isinstance(error, UnicodeDecodeError) else 1
        raise _error(path, f"line {getattr(error, 'lineno', line)}", _explain(error)) from None
    for index, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise _error(path, f"item {index}", "of the array is not a JSON object; write one object for each row")
    for start in range(0, len(items), BLOCK_ITEMS):
        rows = items[start : start + BLOCK_ITEMS]
        yield Block(path, "item", range(start + 1, start + 1 + len(rows)), rows, texts=None)


def _error(path: Path, position: str, reason: str) -> DataError:
    return DataError(f"The data file '{path}' cannot be read: {position} {reason}.")


def _explain(error: Exception) -> str:
    """Why a text is no JSON, as the rest of a sentence that starts with its line."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"holds the byte 0x{error.object[error.start]:02x}, which is not UTF-8; save the file as UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON ({error.msg})"
    return f"is not JSON ({error})"


def _to_json(value: Any) -> str:
    """A value as JSON text; numbers keep their literal."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_to_json(key)}: {_to_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_to_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
