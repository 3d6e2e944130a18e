"""`studio.json`: which file was loaded and the user's labels. It is written atomically and never dropped.

A file that cannot be read, or that somebody else wrote, is kept under another name before the studio writes its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clozify.errors import RunError
from clozify.studio.labels import UserLabels, make_row_key
from clozify.utils.atomic import SUFFIX, atomic_write

STATE_FILE, LOCK_FILE = "studio.json", ".studio.lock"


@dataclass
class StudioState:
    """The content of `studio.json`."""

    source: str | None = None
    labels: UserLabels = field(default_factory=dict)
    row_labels: dict[int, str] = field(default_factory=dict)  # by row number, as older versions wrote them
    row_source: str | None = None  # the file that `row_labels` belong to


def parse_state(text: str) -> StudioState:
    """The state from JSON; raises `ValueError` where it is not as `format_state` or an older version writes it."""
    try:
        content = json.loads(text)
        labels: UserLabels = {}
        row_labels, row_source = content.get("row_labels", {}), content.get("row_source")
        if isinstance(content["labels"], dict):
            row_labels, row_source = content["labels"], content["source"]
        else:
            for entry in content["labels"]:
                labels[make_row_key({_text(name): _text(value) for name, value in entry["texts"].items()})] = (
                    None if entry["label"] is None else _text(entry["label"])
                )
        source = None if content["source"] is None else _text(content["source"])
        row_source = None if row_source is None else _text(row_source)
        return StudioState(source, labels, {int(row): _text(label) for row, label in row_labels.items()}, row_source)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    value.encode()  # a lone surrogate, which no file can hold, raises a `ValueError`
    return value


def format_state(state: StudioState) -> str:
    """The state as JSON."""
    content: dict[str, Any] = {
        "source": state.source,
        "labels": [{"texts": dict(key), "label": label} for key, label in state.labels.items()],
    }
    if state.row_labels:
        content["row_source"] = state.row_source
        content["row_labels"] = {str(row): label for row, label in state.row_labels.items()}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` on success; a `RunError` says so if it cannot be written."""
    try:
        with atomic_write(path) as tmp_path:
            yield tmp_path
    except OSError as error:
        raise RunError(
            f"The file '{path}' could not be written ({error.strerror or error}), so the last change is not saved; "
            "make space on the disk or permit writing, and repeat it."
        ) from None


def save_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with saving(path) as tmp_path:
        tmp_path.write_text(text, encoding="utf-8")


def lock_folder(folder: Path) -> FileLock:
    """Lock a project's folder for this process; raises a `RunError` if another studio has it."""
    lock = FileLock(folder / LOCK_FILE, thread_local=False)  # the system releases it when a process dies
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise RunError(
            f"Another studio is open on the folder '{folder}'; use its page or name another folder."
        ) from None
    for leftover in [*folder.glob(f".{STATE_FILE}.*{SUFFIX}"), *(folder / "data").glob(f".*{SUFFIX}")]:
        leftover.unlink(missing_ok=True)  # of a process that was killed
    return lock


def keep(path: Path, move: bool = False) -> Path:
    """Keep a file under another name as well, or with `move` under that name alone; returns the name."""
    number = 1
    while (kept := path.with_name(f"{path.stem}.kept-{number}{path.suffix}")).exists():
        number += 1
    with saving(kept) as tmp_path:
        try:
            os.link(path, tmp_path)  # atomic writes replace `path` and leave the kept file alone
        except OSError:
            shutil.copy2(path, tmp_path)
    if move:
        path.unlink()
    return kept
