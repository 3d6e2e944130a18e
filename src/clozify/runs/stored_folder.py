"""A run in an object store, worked on in a temporary folder of this machine.

A job's folder is uploaded when the job is finished and its list of files last, so an upload that was cut off never
counts as a finished job. What the store has already is downloaded when it is needed.
"""

from __future__ import annotations

import atexit
import json
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

JOB_FILE = re.compile(r"[^/]+/[0-9a-f]{16}/")


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
        for name in ("run.json", "log.txt"):
            if name in names:
                store.download(name, self.path / name)
        super().__init__(self.path)
        self.address = store.address
        self._store_lock: ObjectStoreLock | None = ObjectStoreLock(store, self._upload_log)

    def _use_store(self, store: ObjectStore, path: str | None) -> None:
        """Set all attributes; without a path, `path` is in a temporary folder that is removed with this object."""
        self.store, self.address, self.finished_jobs = store, store.address, []
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
            self.store.download_folder(f"{kind}/{key}", path, skip_prefix="model/" if kind == "members" else None)
        return path

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
        if name == "run.json":
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
            if (self.path / "classifier").is_dir():
                self.store.upload_folder("classifier", self.path / "classifier")
            files = [file.relative_to(self.path).as_posix() for file in self.path.rglob("*") if file.is_file()]
            names = [name for name in files if not (JOB_FILE.match(name) or name.startswith((".", "classifier/")))]
            for name in sorted(names, key=lambda name: (name == "metrics.json", name)):
                self.store.upload(name, self.path / name)
        finally:
            self._store_lock.release()
            super().close()
            if self._scratch is not None:
                self._scratch.cleanup()


def local_copy(folder: str | Path) -> Path:
    """A finished run as a folder of this machine: the folder itself, or a download of what predictions need."""
    if not is_remote(folder):
        return Path(folder)
    store = ObjectStore(str(folder))
    scratch = tempfile.mkdtemp(prefix="clozify-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    path = Path(scratch) / "run"
    if store.download_folder("", path):  # the address of a classifier's folder
        return path
    path.mkdir()
    for name in ("run.json", "ensemble.json"):
        if (content := store.read(name)) is not None:
            (path / name).write_bytes(content)
    if not store.download_folder("classifier", path / "classifier") and (path / "ensemble.json").exists():
        for member in json.loads((path / "ensemble.json").read_text())["weights"]:
            store.download_folder(f"members/{member['member']}", path / "members" / member["member"])
    return path
