"""A run in an object store: `s3://bucket/run`, or any other address that fsspec knows.

In: an address. Out: `StoredRun`, a run's folder that is worked on in a temporary folder of this machine. A job's files
are copied to the store when it is whole, and a list of them goes there last, so half a job never counts, whoever dies;
what the store has already is fetched when it is asked for. `lease.py` keeps two processes from one run.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from clozify.errors import RunError
from clozify.runs.folder import RunFolder
from clozify.runs.object_store_lock import LOCK, Lease
from clozify.utils.atomic import atomic_folder

WHOLE = "whole.json"  # the names of a folder's files, written when all of them are there
JOB = re.compile(r"[^/]+/[0-9a-f]{16}/")


def is_remote(place: str | Path) -> bool:
    """Whether a place is an address such as `s3://bucket/run`, rather than a folder of this machine."""
    if re.match(r"\w+:/[^/]", str(place)):  # pathlib makes this of s3://bucket/run
        raise RunError(f"'{place}' is neither a folder nor an address; an address is text: 's3://bucket/run'.")
    return "://" in str(place)


def open_run(output: str | Path) -> RunFolder:
    """A run's folder, here or in a store."""
    return StoredRun(str(output)) if is_remote(output) else RunFolder(output)


class Store:
    """Files under an address; every one is written whole or not at all."""

    def __init__(self, address: str) -> None:
        import fsspec

        self.address = address.rstrip("/")
        local = self.address.startswith(("file://", "local://"))
        try:
            self.fs, self.root = fsspec.core.url_to_fs(
                self.address, use_listings_cache=False, **({"auto_mkdir": True} if local else {})
            )
        except ImportError as error:
            extra = "; install it with: pip install 'clozify[s3]'" if self.address.startswith("s3") else ""
            raise RunError(f"The address '{address}' needs a package that is not here ({error}){extra}") from None
        except ValueError as error:
            raise RunError(f"The address '{address}' cannot be used: {error}") from None

    def names(self) -> list[str]:
        """Of all files; a store that does not answer, or has no such bucket, is told in a sentence."""
        try:
            return sorted(str(path)[len(self.root) + 1 :] for path in self.fs.find(self.root))
        except FileNotFoundError:
            return []
        except Exception as error:
            raise RunError(f"The store '{self.address}' does not answer: {_told(error)}") from None

    def read(self, name: str) -> bytes | None:
        """A file's content, or None where there is no such file."""
        try:
            content: bytes = self.fs.cat_file(f"{self.root}/{name}")
            return content
        except FileNotFoundError:
            return None
        except Exception as error:
            raise RunError(f"The store '{self.address}' does not answer: {_told(error)}") from None

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        try:
            self.fs.pipe_file(f"{self.root}/{name}", content)
        except Exception as error:
            raise RunError(f"The store '{self.address}' cannot be written to: {_told(error)}") from None

    def remove(self, name: str) -> None:
        """Take a file or a folder away, if it is there."""
        with suppress(FileNotFoundError):
            self.fs.rm(f"{self.root}/{name}", recursive=True)

    def put(self, name: str, source: Path) -> None:
        """Copy a file to the store."""
        try:
            self.fs.put_file(str(source), f"{self.root}/{name}")
        except Exception as error:
            raise RunError(f"The store '{self.address}' cannot be written to: {_told(error)}") from None

    def get(self, name: str, target: Path) -> None:
        """Fetch a file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.fs.get_file(f"{self.root}/{name}", str(target))
        except Exception as error:
            raise RunError(f"The store '{self.address}' lacks '{name}': {_told(error)}") from None

    def push(self, name: str, source: Path) -> None:
        """Copy a folder to the store; it counts when its last file is there."""
        self.remove(f"{name}/{WHOLE}")
        files = sorted(file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file())
        for file in files:
            self.put(f"{name}/{file}", source / file)
        self.write(f"{name}/{WHOLE}", json.dumps(files).encode())

    def pull(self, name: str, target: Path, but: str | None = None) -> bool:
        """Fetch a folder, except what begins with `but`; False where it is not there, or not whole."""
        quoted = self.read(f"{name}/{WHOLE}" if name else WHOLE)
        if quoted is None:
            return False
        with atomic_folder(target) as tmp_path:
            for file in json.loads(quoted):
                if but is None or not file.startswith(but):
                    self.get(f"{name}/{file}" if name else file, tmp_path / file)
        return True


class StoredRun(RunFolder):
    """A run in a store, worked on in a temporary folder."""

    def __init__(self, address: str) -> None:
        store = Store(address)
        there = store.names()
        own = {LOCK, "log.txt", "run.json"}
        strangers = [name for name in there if "run.json" not in there and name not in own]
        if strangers:
            raise RunError(f"'{address}' holds '{strangers[0]}' but no run; name an empty or a new address.")
        self._begin(store, None)
        for name in ("run.json", "log.txt"):
            if name in there:
                store.get(name, self.path / name)
        super().__init__(self.path)
        self.address = store.address
        self._lease: Lease | None = Lease(store, self._beat)

    def _begin(self, store: Store, path: str | None) -> None:
        self.store, self.address, self.written = store, store.address, []
        self._scratch = tempfile.TemporaryDirectory(prefix="clozify-", ignore_cleanup_errors=True) if not path else None
        self.path = Path(path or f"{self._scratch.name}/{store.address.rsplit('/', 1)[-1]}")  # type: ignore[union-attr]
        self._lease = None

    @classmethod
    def attach(cls, path: str | Path, address: str = "") -> RunFolder:
        """The run in another process: in the same temporary folder, or (an empty `path`) in one of its own."""
        folder = cls.__new__(cls)
        folder._begin(Store(address), str(path) or None)
        return folder

    def opener(self, elsewhere: bool = False) -> Callable[[], RunFolder]:
        """What another process joins the run with."""
        return partial(StoredRun.attach, "" if elsewhere else str(self.path.resolve()), self.address)

    def job(self, kind: str, key: str) -> Path:
        """Where a job's results are, fetched from the store if they are there; members' weights stay there."""
        place = super().job(kind, key)
        if not place.exists():
            self.store.pull(f"{kind}/{key}", place, but="model/" if kind == "members" else None)
        return place

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """A folder to write a job's results to; when the block ends well they are copied to the store."""
        with super().writing(kind, key) as beside:
            yield beside
            if self._lease is not None:
                self._lease.check()
        self.store.push(f"{kind}/{key}", super().job(kind, key))
        if self._elsewhere and kind not in ("tokens", "soft"):  # nobody reads it here
            shutil.rmtree(super().job(kind, key))

    @property
    def _elsewhere(self) -> bool:
        """Whether the temporary folder is a worker's own."""
        return self._lease is None and self._scratch is not None

    @contextmanager
    def reading(self, kind: str, key: str) -> Iterator[Path]:
        """A job's results, fetched if they are not here; a worker's own copy goes when the block ends."""
        place = self.job(kind, key)
        yield place
        if self._elsewhere:
            shutil.rmtree(place)

    def write_json(self, name: str, content: Any) -> None:
        """Write a file of the run's own; the one that says whose folder it is goes to the store at once."""
        super().write_json(name, content)
        if name == "run.json":
            self.store.put(name, self.path / name)

    def remove(self, *names: str) -> None:
        """Take away what is no longer true of the run."""
        super().remove(*names)
        for name in names:
            self.store.remove(name)

    def _beat(self) -> None:
        """What is done now and then beside the lease: the log is shown to others."""
        if (self.path / "log.txt").exists():
            self.store.put("log.txt", self.path / "log.txt")

    def close(self) -> None:
        """Copy the run's own files to the store, the numbers last, and let others work on it."""
        assert self._lease is not None
        try:
            self._lease.check()
            if (self.path / "classifier").is_dir():
                self.store.push("classifier", self.path / "classifier")
            names = [file.relative_to(self.path).as_posix() for file in self.path.rglob("*") if file.is_file()]
            own = [name for name in names if not (JOB.match(name) or name.startswith((".", "classifier/")))]
            for name in sorted(own, key=lambda name: (name == "metrics.json", name)):
                self.store.put(name, self.path / name)
        finally:
            self._lease.release()
            super().close()
            if self._scratch is not None:
                self._scratch.cleanup()


def local_copy(folder: str | Path) -> Path:
    """A finished run as a folder of this machine: itself, or what predictions need of a run in a store."""
    if not is_remote(folder):
        return Path(folder)
    store = Store(str(folder))
    scratch = tempfile.mkdtemp(prefix="clozify-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    place = Path(scratch) / "run"
    if store.pull("", place):  # a classifier's own folder
        return place
    place.mkdir()
    for name in ("run.json", "ensemble.json"):
        if (content := store.read(name)) is not None:
            (place / name).write_bytes(content)
    if not store.pull("classifier", place / "classifier") and (place / "ensemble.json").exists():
        for member in json.loads((place / "ensemble.json").read_text())["weights"]:
            store.pull(f"members/{member['member']}", place / "members" / member["member"])
    return place


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
