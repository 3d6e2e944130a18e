"""A run in an object store, worked on in a temporary folder of this machine.

A job's folder is uploaded when the job is finished and its list of files last, so an upload that was cut off never
counts as a finished job. What the store has already is downloaded when it is needed.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from clozify.errors import RunError
from clozify.runs.folder import RunFolder
from clozify.runs.object_store import ObjectStore, is_remote
from clozify.runs.object_store_lock import LOCK_FILE, ObjectStoreLock
from clozify.runs.records import EnsembleRecord
from clozify.runs.reliability import RELIABILITY_FILE
from clozify.runs.results import METHODS_FOLDER, find_results

JOB_FILE = re.compile(r"[^/]+/[0-9a-f]{16}/")
METHOD_FILE = re.compile(rf"{METHODS_FOLDER}/[^/]+/(run|metrics)\.json")
NOT_UPLOADED = re.compile(rf"\.|({METHODS_FOLDER}/[^/]+/)?classifier/")  # hidden, or uploaded as a folder


def open_run(output: str | Path) -> RunFolder:
    """A run's folder on this machine or in an object store."""
    return StoredRunFolder(str(output)) if is_remote(output) else RunFolder(output)


class StoredRunFolder(RunFolder):
    """A run in an object store; `path` is a temporary folder."""

    def __init__(self, address: str) -> None:
        store = ObjectStore(address)
        names = store.names()
        expected = {LOCK_FILE, "log.txt", "run.json"}
        unexpected = [name for name in names if "run.json" not in names and name not in expected]
        if unexpected:
            raise RunError(f"'{address}' holds '{unexpected[0]}' but no run; name an empty or a new address.")
        self._use_store(store, None)
        for name in names:
            if name in ("run.json", "metrics.json", "log.txt") or METHOD_FILE.fullmatch(name):
                store.download(name, self.path / name)
        super().__init__(self.path)
        self.address = store.address
        self._store_lock: ObjectStoreLock | None = ObjectStoreLock(store, self._upload_log)

    def _use_store(self, store: ObjectStore, path: str | None) -> None:
        """Set all attributes; without a path, `path` is in a temporary folder that is removed with this object."""
        self.store, self.address, self.finished_jobs, self._intact = store, store.address, [], set()
        self._scratch = None
        if path is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="clozify-", ignore_cleanup_errors=True)
            path = f"{self._scratch.name}/{store.address.rsplit('/', 1)[-1]}"
        self.path = Path(path)
        self._store_lock = None

    @classmethod
    def attach(cls, path: str | Path, address: str = "") -> RunFolder:
        """The run in a worker process: in the same temporary folder, or (with an empty `path`) in a new one."""
        folder = cls.__new__(cls)
        folder._use_store(ObjectStore(address), str(path) or None)
        return folder

    def opener(self, other_machine: bool = False) -> Callable[[], RunFolder]:
        """A picklable function that attaches another process to the run, on this machine or another."""
        return partial(StoredRunFolder.attach, "" if other_machine else str(self.path.resolve()), self.address)

    def job_path(self, kind: str, key: str) -> Path:
        """The folder of a job's results, downloaded if the store has it, without a member's weights."""
        path = super().job_path(kind, key)
        if not path.exists():
            self.store.download_folder(f"{kind}/{key}", path, skip_prefix=self.skipped_files(kind))
        return path

    def job_keys(self, kind: str, prefix: str) -> list[str]:
        """The keys of jobs of a kind in the store that begin with a prefix, sorted."""
        folders = {name.split("/")[1] for name in self.store.names() if name.startswith(f"{kind}/{prefix}")}
        return sorted(folders)

    def skipped_files(self, kind: str) -> str | None:
        """A member's weights are not downloaded."""
        return "model/" if kind == "members" else None

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """Yield a temporary folder for a job's results; on success it becomes `job_path(kind, key)` and is uploaded."""
        with super().writing(kind, key) as tmp_path:
            yield tmp_path
            if self._store_lock is not None:
                self._store_lock.check()
        self.store.upload_folder(f"{kind}/{key}", super().job_path(kind, key))
        if self._on_other_machine and kind not in ("tokens", "soft"):  # read by other machines only
            shutil.rmtree(super().job_path(kind, key))

    @property
    def _on_other_machine(self) -> bool:
        """Whether this is a worker with a temporary folder that no other process uses."""
        return self._store_lock is None and self._scratch is not None

    @contextmanager
    def reading(self, kind: str, key: str) -> Iterator[Path]:
        """Yield the folder of a job's results; a worker that had to download it removes its copy afterwards."""
        path = self.job_path(kind, key)
        yield path
        if self._on_other_machine:
            shutil.rmtree(path)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file of the run; `run.json`, which marks the address as a run, is uploaded at once."""
        super().write_json(name, content)
        if name.endswith("run.json"):
            self.store.upload(name, self.path / name)

    def remove(self, *names: str) -> None:
        """Remove files or folders of the run, where they exist."""
        super().remove(*names)
        for name in names:
            self.store.remove(name)

    def _upload_log(self) -> None:
        if (self.path / "log.txt").exists():
            self.store.upload("log.txt", self.path / "log.txt")

    def close(self) -> None:
        """Upload the files that belong to no job, `metrics.json` last, and release the lock."""
        assert self._store_lock is not None
        try:
            self._store_lock.check()
            for path in [self.path / "classifier", *self.path.glob(f"{METHODS_FOLDER}/*/classifier")]:
                if path.is_dir():
                    self.store.upload_folder(path.relative_to(self.path).as_posix(), path)
            files = [file.relative_to(self.path).as_posix() for file in self.path.rglob("*") if file.is_file()]
            names = [name for name in files if not (JOB_FILE.match(name) or NOT_UPLOADED.match(name))]
            for name in sorted(names, key=lambda name: (name.endswith("metrics.json"), name)):
                self.store.upload(name, self.path / name)
        finally:
            self._store_lock.release()
            super().close()
            if self._scratch is not None:
                self._scratch.cleanup()


def local_copy(folder: str | Path, method: str | None = None) -> Path:
    """The results of a run's method as a folder of this machine; of a run in a store, what predictions need."""
    if not is_remote(folder):
        return find_results(Path(folder), method)
    store = ObjectStore(str(folder))
    scratch = tempfile.mkdtemp(prefix="clozify-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    path = Path(scratch) / "run"
    if store.download_folder("", path):  # the address of a classifier's folder
        return path
    path.mkdir()
    for name in store.names():
        if name in ("run.json", "metrics.json") or METHOD_FILE.fullmatch(name):
            store.download(name, path / name)
    results = find_results(path, method)
    prefix = results.relative_to(path).as_posix().removeprefix(".")
    prefix += "/" if prefix else ""
    if store.download_folder(f"{prefix}classifier", results / "classifier"):
        return results
    if (content := store.read(f"{prefix}ensemble.json")) is not None:
        (results / "ensemble.json").write_bytes(content)
        if (record := store.read(f"{prefix}{RELIABILITY_FILE}")) is not None:
            (results / RELIABILITY_FILE).write_bytes(record)
        for member in EnsembleRecord.load(results).weights:
            store.download_folder(f"members/{member.member}", path / "members" / member.member)
    return results
