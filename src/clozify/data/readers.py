"""Opens a file, a folder of shards or a hub data set as a memory-mapped `datasets.Dataset`.

CSV and TSV columns are read as text. Every error names the file, the line where it can, and what to do.
"""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import json
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozify.errors import DataError, did_you_mean, quoted
from clozify.utils import libraries
from clozify.utils.progress import progress

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE = Path(__file__).parents[1] / "builtin" / "debian"
FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}


def open_data(source: str | Path, columns: Sequence[str] | None = None, fields: Sequence[str] = ()) -> Dataset:
    """The rows of a file (CSV, TSV, JSONL, Parquet, gzipped or not), a folder of shards, or `NAME@SPLIT` of the hub.

    `columns` names the columns of CSV and TSV files without a header; a file has one if its first line contains all
    `fields`.
    """
    path = _builtin(str(source)) if str(source).startswith("builtin:") else Path(source)
    if path.is_file() or path.is_dir():
        dataset = _open_local(path, columns, fields)
    elif _is_hub_name(str(source)):
        dataset = _open_hub(str(source))
    else:
        near = [str(p) for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise DataError(
            f"The data file '{source}' does not exist{did_you_mean(str(path), near)}; "
            "name a file, a folder of shards, or a hub data set as NAME@SPLIT."
        )
    if len(dataset) == 0:
        raise DataError(f"The data '{source}' has no rows; name a file that has some.")
    return dataset


def _load_json_lines(files: Sequence[Path]) -> Dataset:
    """JSONL read line by line, for files that Datasets refuses: rows with other keys or types than the first ones."""
    from datasets import Dataset, Features, Value

    def lines() -> Iterator[tuple[Path, int, dict[str, Any]]]:
        for file in files:
            opener = gzip.open if file.name.lower().endswith(".gz") else open
            with opener(file, "rt", encoding="utf-8-sig") as text:
                for number, line in enumerate(text, start=1):
                    if line.strip():
                        yield file, number, _json_object(file, number, line)

    keys = list(dict.fromkeys(key for _, _, row in lines() for key in row))

    def rows() -> Iterator[dict[str, str | None]]:
        for _, _, row in lines():
            yield {key: _json_text(row.get(key)) for key in keys}

    with tempfile.TemporaryDirectory(prefix="clozify-") as folder:  # a mapped file may be unlinked
        features = Features({key: Value("string") for key in keys})
        return Dataset.from_generator(rows, features=features, cache_dir=folder, fingerprint=uuid.uuid4().hex)


def _json_object(file: Path, number: int, line: str) -> dict[str, Any]:
    """The JSON object of a line; `number` is the line's, from 1."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"The data file '{file}' cannot be read: line {number} is not JSON ({error.msg}).") from None
    if not isinstance(row, dict):
        raise DataError(f"The data file '{file}' cannot be read: line {number} is not a JSON object like the others.")
    return row


def _json_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _builtin(source: str) -> Path:
    """A file of the sample data: `builtin:labeled`, `builtin:unlabeled`, `builtin:test`."""
    files = {path.name.split(".")[0]: path for path in SAMPLE.glob("*.csv.gz")}
    name = source.removeprefix("builtin:")
    if name not in files:
        raise DataError(f"There is no sample data '{source}'; there is {quoted(f'builtin:{name}' for name in files)}.")
    return files[name]


def _open_local(path: Path, columns: Sequence[str] | None, fields: Sequence[str]) -> Dataset:
    files = _shards(path)
    suffixes = {_suffix(file) for file in files}
    if len(suffixes) > 1:
        raise DataError(f"The folder '{path}' mixes {quoted(sorted(suffixes))} files; keep one format in a folder.")
    suffix = suffixes.pop()
    for file in files:
        if file.stat().st_size == 0:
            raise DataError(f"The data file '{file}' is empty; remove it or name another.")
        if FORMATS[suffix] != "parquet":
            _check_utf8(file)
    options = _csv_options(files[0], suffix, columns, fields) if FORMATS[suffix] == "csv" else {}
    # Datasets takes [, ] and * in a path for a glob pattern, and relative paths for names on the hub.
    names = [glob.escape(str(file.absolute())) for file in files]
    try:
        with libraries.quiet_datasets():
            return _load(str(path), FORMATS[suffix], data_files=names, split="train", **options)
    except DataError:
        if FORMATS[suffix] != "json":
            raise
        return _load_json_lines(files)


def _shards(path: Path) -> list[Path]:
    """The data files of a folder, or the file itself."""
    supported = quoted(FORMATS)
    if path.is_file():
        if _suffix(path) not in FORMATS:
            raise DataError(f"The data file '{path}' is in no supported format; use {supported}, gzipped or not.")
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and _is_shard(file))
    if not files:
        raise DataError(f"The folder '{path}' holds no data files; put {supported} files into it.")
    return files


def _is_shard(path: Path) -> bool:
    return _suffix(path) in FORMATS and not path.name.startswith((".", "_"))


def _suffix(path: Path) -> str:
    """The suffix in lower case, without `.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _check_utf8(path: Path) -> None:
    """Read the file once to name the line of a byte that is not UTF-8; parsers' messages do not."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    line = 1
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file, progress(f"reading {path.name}", path.stat().st_size, "bytes") as advance:
            while block := file.read(1 << 20):
                try:
                    decode(block)
                except UnicodeDecodeError as error:
                    line += block.count(b"\n", 0, error.start)
                    raise DataError(
                        f"The data file '{path}' is not UTF-8 text: line {line} holds the byte "
                        f"0x{error.object[error.start]:02x}; save the file as UTF-8."
                    ) from None
                line += block.count(b"\n")
                advance(len(block))
        try:
            decode(b"", True)
        except UnicodeDecodeError:
            raise DataError(
                f"The data file '{path}' is not UTF-8 text: it ends in the middle of a character, so it may be "
                "incomplete; save it again as UTF-8."
            ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"The data file '{path}' is not a complete gzip file ({error}); compress it again.") from None


def _csv_options(path: Path, suffix: str, columns: Sequence[str] | None, fields: Sequence[str]) -> dict[str, Any]:
    import pandas as pd
    from datasets import Features, Value

    # TSV files are read without quoting: a single quotation mark would swallow all lines up to the next one.
    options: dict[str, Any] = {"keep_default_na": False}
    options |= {"sep": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {}
    try:
        # two lines: where the second is longer than the first, pandas would take its first values for an index
        header = pd.read_csv(path, header=None, nrows=2, dtype=str, **options).iloc[0].tolist()
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(
            f"The data file '{path}' cannot be read as {suffix[1:].upper()}: {str(error).strip()}."
        ) from None
    if columns is not None and not set(fields) <= set(header):
        if len(header) != len(columns):
            raise DataError(
                f"The data file '{path}' has {len(header)} columns; without a header it should have the "
                f"{len(columns)} that the task names, {quoted(columns)}, or else a header with {quoted(fields)}."
            )
        options |= {"header": None, "column_names": list(columns)}
        header = list(columns)
    header = [name or f"Unnamed: {index}" for index, name in enumerate(header)]  # as pandas does
    if len(set(header)) != len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise DataError(f"The data file '{path}' has the column {quoted(twice)} twice; rename one.")
    return options | {"features": Features({name: Value("string") for name in header})}


def _is_hub_name(source: str) -> bool:
    return _suffix(Path(source.partition("@")[0])) not in FORMATS and source.count("/") <= 1 and "\\" not in source


def _open_hub(source: str) -> Dataset:
    name, _, split = source.partition("@")
    if not split:
        near = did_you_mean(source, [path.name for path in Path().iterdir()])
        raise DataError(
            f"'{source}' is no file here{near}; for a data set of the hub name its split too, as in '{name}@test'."
        )
    name, _, config = name.partition(":")
    with libraries.quiet_datasets(offline=not libraries.hub_reachable()):  # offline: what was fetched before
        return _load(source, name, *([config] if config else []), split=split)


def _load(source: str, *args: Any, **kwargs: Any) -> Dataset:
    """`datasets.load_dataset`, whose errors become a sentence about `source`."""
    import datasets

    try:
        return datasets.load_dataset(*args, **kwargs)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"The data set '{source}' could not be fetched from the hub ({reason}); check its name and the "
            "network, or give a local file."
        ) from None
    except Exception as error:  # readers raise errors of many types
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if "corresponds to no data" in str(cause) or "BatchSize must be" in str(cause):
            raise DataError(f"The data '{source}' has no rows; name a file that has some.") from None
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise DataError(f"The data '{source}' cannot be read: {reason.rstrip('.')}.") from error
