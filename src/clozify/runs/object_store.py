"""Files and folders in an object store: `s3://bucket/run`, or any other address that fsspec knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clozify.errors import RunError
from clozify.utils.atomic import atomic_folder

FILE_LIST = "whole.json"  # the names of a folder's files; uploaded last, so a folder without it is incomplete


def is_remote(path: str | Path) -> bool:
    """Whether a path is an address such as `s3://bucket/run`, rather than a folder of this machine."""
    if not isinstance(path, (str, Path)) or not str(path).strip():
        raise RunError(f"A run is a folder's name or an address, not {path!r}; write one, as in 'runs/first'.")
    if re.match(r"\w+:/[^/]", str(path)):  # pathlib turns s3://bucket/run into this
        raise RunError(f"'{path}' is neither a folder nor an address; give an address as text: 's3://bucket/run'.")
    return "://" in str(path)


class ObjectStore:
    """Files under an address; a file is uploaded as a whole or not at all."""

    def __init__(self, address: str) -> None:
        import fsspec

        self.address = address.rstrip("/")
        is_local = self.address.startswith(("file://", "local://"))
        try:
            self.fs, self.root = fsspec.core.url_to_fs(
                self.address, use_listings_cache=False, **({"auto_mkdir": True} if is_local else {})
            )
        except ImportError as error:
            extra = "; install it with: pip install 'clozify[s3]'" if self.address.startswith("s3") else ""
            raise RunError(f"The address '{address}' needs a package that is not installed ({error}){extra}") from None
        except ValueError as error:
            raise RunError(f"The address '{address}' cannot be used: {error}") from None

    @contextmanager
    def _named_failure(self, failure: str) -> Iterator[None]:
        """Raise whatever fails in the block as a RunError that names the store."""
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise RunError(f"The store '{self.address}' {failure}: {reason}") from None

    def names(self) -> list[str]:
        """The names of all files, sorted."""
        with self._named_failure("does not answer"):
            try:
                return sorted(str(path)[len(self.root) + 1 :] for path in self.fs.find(self.root))
            except FileNotFoundError:
                return []

    def read(self, name: str) -> bytes | None:
        """A file's content; None where there is no such file."""
        with self._named_failure("does not answer"):
            try:
                content: bytes = self.fs.cat_file(f"{self.root}/{name}")
            except FileNotFoundError:
                return None
            return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self._named_failure("cannot be written to"):
            self.fs.pipe_file(f"{self.root}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove a file or a folder, where it exists."""
        with suppress(FileNotFoundError):
            self.fs.rm(f"{self.root}/{name}", recursive=True)

    def upload(self, name: str, source: Path) -> None:
        """Upload a file."""
        with self._named_failure("cannot be written to"):
            self.fs.put_file(str(source), f"{self.root}/{name}")

    def download(self, name: str, target: Path) -> None:
        """Download a file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._named_failure(f"lacks '{name}'"):
            self.fs.get_file(f"{self.root}/{name}", str(target))

    def upload_folder(self, name: str, source: Path) -> None:
        """Upload a folder; it is complete once the list of its files is uploaded."""
        self.remove(f"{name}/{FILE_LIST}")
        files = sorted(file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file())
        for file in files:
            self.upload(f"{name}/{file}", source / file)
        self.write(f"{name}/{FILE_LIST}", json.dumps(files).encode())

    def download_folder(self, name: str, target: Path, skip_prefix: str | None = None) -> bool:
        """Download a folder, except files whose names begin with `skip_prefix`; False where it is not complete."""
        prefix = f"{name}/" if name else ""
        file_list = self.read(f"{prefix}{FILE_LIST}")
        if file_list is None:
            return False
        with atomic_folder(target) as tmp_path:
            for file in json.loads(file_list):
                if skip_prefix is None or not file.startswith(skip_prefix):
                    self.download(f"{prefix}{file}", tmp_path / file)
        return True
