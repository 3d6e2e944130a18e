"""The folder of a run.

It holds a folder for each job, `KIND/KEY`, where the key hashes everything the job depends on: after a changed pattern
only the jobs that depend on it run again. A job's folder is written atomically, so a killed run resumes and never
counts half a job. Arrays are `.npy`, weights safetensors, the rest JSON; nothing is pickled.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clozify.errors import RunError
from clozify.runs.checksums import CHECKSUMS, find_damage, write_checksums
from clozify.utils.atomic import SUFFIX, atomic_folder, atomic_write_text, remove_leftovers

CACHE_KINDS = ("tokens", "soft", "weights", "trained", "shards")  # not needed once a run is finished


class RunFolder:
    """A run's folder, locked: one process at a time writes to it, with the workers that it has started."""

    path: Path
    address: str  # shown to users
    finished_jobs: list[tuple[str, str]]  # (kind, key) of every job that this process has written
    _intact: set[tuple[str, str]]  # (kind, key) of jobs whose files were checked

    def __init__(self, path: str | Path) -> None:
        self.path, self.address, self.finished_jobs = Path(path), str(path), []
        self._intact = set[tuple[str, str]]()
        if self.path.is_file():
            raise RunError(f"The run cannot be written to '{path}': that is a file; name a folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        expected = {".lock", "log.txt", "run.json", "workers"}  # a run that was killed early has no others
        is_run = (self.path / "run.json").exists()
        unexpected = [
            file.name
            for file in self.path.iterdir()
            if not is_run and file.name not in expected and file.suffix != SUFFIX
        ]
        if unexpected:
            raise RunError(f"The folder '{path}' holds '{unexpected[0]}' but no run; name an empty or a new folder.")
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
        """The run folder in a worker process; the process that started the worker holds the lock."""
        folder = cls.__new__(cls)
        folder.path, folder.address, folder.finished_jobs = Path(path), str(path), []
        folder._intact = set()
        return folder

    def opener(self, other_machine: bool = False) -> Callable[[], RunFolder]:  # noqa: ARG002
        """A picklable function that attaches another process to the run, on this machine or another."""
        return partial(RunFolder.attach, str(self.path.resolve()))

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close()
        if error is not None and (disk_full := self.disk_full_error(error)):
            raise disk_full from None

    def disk_full_error(self, error: BaseException) -> RunError | None:
        """What to raise instead of an error whose cause is a full disk; None for other errors."""
        if not _is_disk_full(error):
            return None
        return RunError(
            f"There is no space left on the disk for the run '{self.address}'; free some space and give the same "
            "command again: the run resumes."
        )

    def job_path(self, kind: str, key: str) -> Path:
        """The folder of a job's results, which exists once the job is finished."""
        return self.path / kind / key

    def job_keys(self, kind: str, prefix: str) -> list[str]:
        """The keys of jobs of a kind that begin with a prefix, sorted."""
        return sorted(path.name for path in (self.path / kind).glob(f"{prefix}*"))

    def has_job(self, kind: str, key: str, log: Callable[[str], None] = lambda message: None) -> bool:
        """Whether a job is finished and its files are as they were written; damaged ones are removed, and logged."""
        path = self.job_path(kind, key)
        if (kind, key) in self._intact or not path.exists():
            return path.exists()
        damaged = find_damage(path, self.skipped_files(kind))
        if damaged is not None:
            log(f"{kind}/{key}/{damaged} is damaged; the job runs again")
            self.remove(f"{kind}/{key}")
            return False
        self._intact.add((kind, key))
        return True

    def skipped_files(self, kind: str) -> str | None:  # noqa: ARG002
        """How the names of a job's files begin that are not in `job_path`; None where all are."""
        return None

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """Yield a temporary folder for a job's results; it becomes `job_path(kind, key)` on success."""
        with atomic_folder(self.job_path(kind, key)) as tmp_path:
            yield tmp_path
            write_checksums(tmp_path)
        self.finished_jobs.append((kind, key))
        self._intact.add((kind, key))

    @contextmanager
    def reading(self, kind: str, key: str) -> Iterator[Path]:
        """Yield the folder of a job's results; a worker that had to download it removes its copy afterwards."""
        yield self.job_path(kind, key)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file of the run atomically."""
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def remove(self, *names: str) -> None:
        """Remove files or folders of the run, where they exist."""
        for name in names:
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def publish_folder(self, source: Path, name: str) -> None:
        """Show a job's folder under a plain name too, such as `classifier`; files are hard links where possible."""
        with atomic_folder(self.path / name) as tmp_path:
            ignored = shutil.ignore_patterns(CHECKSUMS)
            shutil.copytree(source, tmp_path, copy_function=_link_or_copy, dirs_exist_ok=True, ignore=ignored)


def _is_disk_full(error: BaseException) -> bool:
    """Whether a disk was full; NumPy and safetensors raise errors of their own, without the system's number."""
    if getattr(error, "errno", None) == errno.ENOSPC:
        return True
    may_be = isinstance(error, OSError) or type(error).__name__ == "SafetensorError"
    return may_be and any(words in str(error) for words in ("No space left", "StorageFull", "requested and"))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
