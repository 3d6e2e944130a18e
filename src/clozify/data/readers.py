"""Opens a file, a folder of shards or a hub data set as a memory-mapped `datasets.Dataset`.

CSV, TSV and JSON columns are read as text, Parquet columns keep their type. Every error names the file, the line where
it can, and what to do.
"""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozify.errors import DataError, did_you_mean, quoted
from clozify.utils import libraries
from clozify.utils.progress import progress

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE = Path(__file__).parents[1] / "builtin" / "debian"
TAGS_SAMPLE = SAMPLE.with_name("debian-tags")
FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
MAX_COLUMNS = 4_096  # a table of texts has a few; libraries take minutes for 100,000


def open_data(source: str | Path, columns: Sequence[str] | None = None, fields: Sequence[str] = ()) -> Dataset:
    """The rows of a file (CSV, TSV, JSONL, Parquet, gzipped or not), a folder of shards, or `NAME@SPLIT` of the hub.

    `columns` names the columns of CSV and TSV files without a header; a file has one if its first line contains all
    `fields`.
    """
    if not str(source).strip():
        raise DataError(
            "The path of the data is empty; name a file, a folder of shards, or a hub data set as NAME@SPLIT."
        )
    path = _builtin(str(source)) if str(source).startswith("builtin:") else Path(source)
    if path.is_file() or path.is_dir():
        dataset = _open_local(path, columns, fields)
    elif os.path.lexists(path):
        raise DataError(f"The data file '{source}' is {_kind(path)}, not a file; name a file or a folder of shards.")
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


def _kind(path: Path) -> str:
    """What a path is that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a symbolic link that leads nowhere"
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


def _builtin(source: str) -> Path:
    """A file of the sample data: `builtin:labeled`, `builtin:unlabeled`, `builtin:test`, `builtin:tags-labeled`, ..."""
    samples = {"": SAMPLE, "tags-": TAGS_SAMPLE}
    names = ("labeled", "unlabeled", "test")
    files = {prefix + name: folder / f"{name}.csv.gz" for prefix, folder in samples.items() for name in names}
    name = source.removeprefix("builtin:")
    if name not in files:
        raise DataError(f"There is no sample data '{source}'; there is {quoted(f'builtin:{name}' for name in files)}.")
    return files[name]


def _open_local(path: Path, columns: Sequence[str] | None, fields: Sequence[str]) -> Dataset:
    from datasets import load_dataset

    files = _shards(path)
    suffixes = {_suffix(file) for file in files}
    if len(suffixes) > 1:
        raise DataError(f"The folder '{path}' mixes {quoted(sorted(suffixes))} files; keep one format in a folder.")
    suffix = suffixes.pop()
    for file in files:
        if file.stat().st_size == 0:
            raise DataError(f"The data file '{file}' is empty; remove it or name another.")
        if "::" in str(file.absolute()) or "://" in str(file):
            raise DataError(f"The data file '{file}' has '::' or '://' in its path, which means an address; rename it.")
        if FORMATS[suffix] == "csv":
            _check_utf8(file)
    # Datasets takes [, ] and * in a path for a glob pattern, and relative paths for names on the hub.
    names = [glob.escape(str(file.absolute())) for file in files]
    with libraries.quiet_datasets():
        if FORMATS[suffix] == "json":
            return _open_json(path, files, names)
        options = _csv_options(files, suffix, columns, fields) if suffix != ".parquet" else _parquet_options(files)
        return _load(str(path), partial(load_dataset, FORMATS[suffix], data_files=names, split="train", **options))


def _open_json(path: Path, files: Sequence[Path], data_files: Sequence[str]) -> Dataset:
    """The rows of JSON files; where a later block has other keys than the first ones, all are read for their keys."""
    from clozify.data.json_text import NewColumnError, load_json, read_columns

    def load(blocks: int | None) -> Dataset:
        names = read_columns(files, blocks)
        _check_column_count(path, names)
        if not names:
            raise DataError(f"The data '{path}' has no rows, or only empty ones; name a file that has some.")
        return load_json(data_files, names)

    try:
        return _load(str(path), lambda: load(blocks=1))
    except NewColumnError:
        return _load(str(path), lambda: load(blocks=None))


def _check_column_count(path: Path, names: Sequence[str]) -> None:
    if len(names) > MAX_COLUMNS:
        raise DataError(
            f"The data file '{path}' has {len(names):,} columns, more than {MAX_COLUMNS:,}; remove those that are not "
            "needed."
        )


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


def is_data_file(path: Path) -> bool:
    """Whether a file's name ends like that of a data file."""
    return _suffix(path) in FORMATS


def _is_shard(path: Path) -> bool:
    return is_data_file(path) and not path.name.startswith((".", "_"))


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


def _csv_options(
    files: Sequence[Path], suffix: str, columns: Sequence[str] | None, fields: Sequence[str]
) -> dict[str, Any]:
    from datasets import Features, Value

    # TSV files are read without quoting: a single quotation mark would swallow all lines up to the next one.
    options: dict[str, Any] = {"keep_default_na": False}
    options |= {"sep": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {}
    headers = [_first_line(file, suffix, options) for file in files]
    path, header = files[0], headers[0]
    if columns is not None and not set(fields) <= set(header):
        if len(header) != len(columns):
            raise DataError(
                f"The data file '{path}' has {len(header)} columns; without a header it should have the "
                f"{len(columns)} that the task names, {quoted(columns)}, or else a header with {quoted(fields)}."
            )
        options |= {"header": None, "column_names": list(columns)}
        header = list(columns)
    else:
        _check_same_columns(files, headers)
    header = [name or f"Unnamed: {index}" for index, name in enumerate(header)]  # as pandas does
    if twice := sorted(name for name, count in Counter(header).items() if count > 1):
        raise DataError(f"The data file '{path}' has the column {quoted(twice)} twice; rename one.")
    return options | {"features": Features({name: Value("string") for name in header})}


def _first_line(path: Path, suffix: str, options: Mapping[str, Any]) -> list[str]:
    import pandas as pd

    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig") as file, suppress(csv.Error):  # pandas takes long for many columns
        reader = csv.reader(file, delimiter=options.get("sep", ","), quoting=options.get("quoting", csv.QUOTE_MINIMAL))
        _check_column_count(path, next(reader, []))
    try:
        # two lines: where the second is longer than the first, pandas would take its first values for an index
        names: list[str] = pd.read_csv(path, header=None, nrows=2, dtype=str, **options).iloc[0].tolist()
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(
            f"The data file '{path}' cannot be read as {suffix[1:].upper()}: {str(error).strip()}."
        ) from None
    return names


def _parquet_options(files: Sequence[Path]) -> dict[str, Any]:
    """The columns that Datasets can hold; a map that nobody asks for is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features

    schemas = []
    for file in files:
        try:
            schemas.append(pq.read_schema(file))
        except (pa.ArrowInvalid, OSError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise DataError(f"The data file '{file}' cannot be read as Parquet: {reason}.") from None
        _check_column_count(file, schemas[-1].names)
    _check_same_columns(files, [schema.names for schema in schemas])
    supported = Features()
    for field in schemas[0]:
        with suppress(ValueError, TypeError, NotImplementedError):
            supported |= Features.from_arrow_schema(pa.schema([field]))
    if len(supported) == len(schemas[0]):
        return {}  # with what else Datasets keeps in a file's metadata, such as the names of labels
    return {"features": Features(supported), "columns": list(supported)}


def _check_same_columns(files: Sequence[Path], columns: Sequence[Sequence[str]]) -> None:
    """Raise an error that names the first shard with other columns than the first one."""
    for file, names in zip(files, columns, strict=True):
        if different := sorted(set(names) ^ set(columns[0])):
            raise DataError(
                f"The data file '{file}' has other columns than '{files[0]}': only one of them has {quoted(different)};"
                " give all files of a folder the same columns."
            )


def _is_hub_name(source: str) -> bool:
    return _suffix(Path(source.partition("@")[0])) not in FORMATS and source.count("/") <= 1 and "\\" not in source


def _open_hub(source: str) -> Dataset:
    name, _, split = source.partition("@")
    if not split:
        near = did_you_mean(source, [path.name for path in Path().iterdir()])
        raise DataError(
            f"'{source}' is no file here{near}; for a data set of the hub name its split too, as in '{name}@test'."
        )
    from datasets import load_dataset

    name, _, config = name.partition(":")
    with libraries.quiet_datasets(offline=not libraries.hub_reachable()):  # offline: what was fetched before
        return _load(source, partial(load_dataset, name, *([config] if config else []), split=split))


def _load(source: str, load: Callable[[], Dataset]) -> Dataset:
    """What `load` returns; errors of Datasets and its readers become a sentence about `source`."""
    import datasets

    from clozify.data.json_text import NewColumnError

    try:
        return load()
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"The data set '{source}' could not be fetched from the hub ({reason}); check its name and the "
            "network, or give a local file."
        ) from None
    except Exception as error:  # readers raise errors of many types
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, (DataError, NewColumnError)):
            raise cause from None
        if "corresponds to no data" in str(cause) or "BatchSize must be" in str(cause):
            raise DataError(f"The data '{source}' has no rows; name a file that has some.") from None
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise DataError(f"The data '{source}' cannot be read: {reason.rstrip('.')}.") from error
