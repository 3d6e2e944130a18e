"""A run: its folder, what is done and what is left.

A run's folder holds one folder a job, named by a hash of all that went into it: a changed pattern redoes only what
depends on it. A job writes beside its place and is renamed when whole, so a killed run goes on where it was and never
counts half a job. Arrays are `.npy`, weights safetensors, the rest JSON; nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clozify.errors import RunError
from clozify.utils.atomic import SUFFIX, atomic_folder, atomic_write_text, remove_leftovers

CACHE_KINDS = ("tokens", "soft", "weights", "trained", "shards")  # kinds of jobs that nobody needs once the run is done


def hash_key(**inputs: Any) -> str:
    """A short name for everything that goes into a job."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(path: Path) -> str:
    """A hash of a model folder's files, their names and all that is in them."""
    files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in (".json", ".safetensors"))
    return hash_key(files={file.name: _content(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files})


@cache
def _content(file: Path, _: int, __: int) -> str:
    """A hash of a file, read once for a size and a time of its last change."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class RunFolder:
    """A folder that one process works on at a time."""

    path: Path
    address: str  # what people know it by
    written: list[tuple[str, str]]  # the kind and key of each job that this process has finished

    def __init__(self, path: str | Path) -> None:
        self.path, self.address, self.written = Path(path), str(path), []
        if self.path.is_file():
            raise RunError(f"The run cannot go to '{path}': that is a file; name a folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        own = {".lock", "log.txt", "run.json", "workers"}  # a run that was killed early has these alone
        known = (self.path / "run.json").exists()
        strangers = [p.name for p in self.path.iterdir() if not known and p.name not in own and p.suffix != SUFFIX]
        if strangers:
            raise RunError(f"The folder '{path}' holds '{strangers[0]}' but no run; name an empty or a new folder.")
        self._lock = FileLock(self.path / ".lock", thread_local=False)  # the system releases it when a process dies
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise RunError(
                f"Another process is working on the run '{path}'; wait for it or name another folder."
            ) from None
        remove_leftovers(self.path)

    @classmethod
    def attach(cls, path: str | Path) -> RunFolder:
        """The folder of a run that another process holds and has sent work from; it is neither locked nor tidied."""
        folder = cls.__new__(cls)
        folder.path, folder.address, folder.written = Path(path), str(path), []
        return folder

    def opener(self, elsewhere: bool = False) -> Callable[[], RunFolder]:  # noqa: ARG002
        """What another process joins the run with; `elsewhere` is on a machine that may not have this folder."""
        return partial(RunFolder.attach, str(self.path.resolve()))

    def close(self) -> None:
        """Let others work on the folder."""
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if error is not None and (full := self.disk_full_error(error)):
            raise full from None

    def disk_full_error(self, error: BaseException) -> RunError | None:
        """What to say where the disk was full."""
        if not _no_space(error):
            return None
        return RunError(
            f"There is no space left for the run '{self.address}'; make room and give the same command again: it goes "
            "on where it was."
        )

    def job(self, kind: str, key: str) -> Path:
        """Where a job's results are, or will be."""
        return self.path / kind / key

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """A folder to write a job's results to; it takes its place when the block ends well."""
        with atomic_folder(self.job(kind, key)) as tmp_path:
            yield tmp_path
        self.written.append((kind, key))

    @contextmanager
    def reading(self, kind: str, key: str) -> Iterator[Path]:
        """A job's results, while the block lasts: a machine that has only a copy of them need not keep it."""
        yield self.job(kind, key)

    def write_json(self, name: str, content: Any) -> None:
        """Write a file of the run's own, whole or not at all."""
        atomic_write_text(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def remove(self, *names: str) -> None:
        """Take away what is no longer true of the run."""
        for name in names:
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def publish_folder(self, source: Path, name: str) -> None:
        """Show a job's folder under a plain name too; its files are linked, not copied, where that works."""
        with atomic_folder(self.path / name) as tmp_path:
            shutil.copytree(source, tmp_path, copy_function=_link, dirs_exist_ok=True)


def _no_space(error: BaseException) -> bool:
    """Whether a disk was full; NumPy and safetensors tell it in words of their own, without the system's number."""
    if getattr(error, "errno", None) == errno.ENOSPC:
        return True
    told_by = isinstance(error, OSError) or type(error).__name__ == "SafetensorError"
    return told_by and any(word in str(error) for word in ("No space left", "StorageFull", "requested and"))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
