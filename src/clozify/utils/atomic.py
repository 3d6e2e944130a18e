"""Atomic writes: a file or folder is written under a temporary name next to its path and renamed once it is complete.

A reader sees the old content or the new, never half of it. A process that is killed leaves its temporary file behind;
`RunFolder` removes those of a run when it is opened again (`remove_leftovers`).
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".part"


def temporary_path(path: Path) -> Path:
    """A path next to `path`, in the same file system; its random part lets two processes write the same file."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{SUFFIX}")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` on success and is removed on failure."""
    tmp_path = temporary_path(path)
    try:
        yield tmp_path
        with tmp_path.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave an empty file under the new name
        tmp_path.replace(path)
    finally:
        tmp_path.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder; it replaces `path` on success and is removed on failure."""
    tmp_path = temporary_path(path)
    tmp_path.mkdir(parents=True)
    try:
        yield tmp_path
        shutil.rmtree(path, ignore_errors=True)
        tmp_path.rename(path)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)


def atomic_write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    with atomic_write(path) as tmp_path:
        tmp_path.write_text(text, encoding="utf-8")


def check_writable(path: Path) -> None:
    """Raise the OSError that writing `path` atomically would raise; nothing is left behind."""
    tmp_path = temporary_path(path)
    tmp_path.touch()
    tmp_path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder."""
    for path in list(folder.rglob(f".*{SUFFIX}")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
