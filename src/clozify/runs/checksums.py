"""Checksums of a job's files, so that a damaged result is recognised and computed again."""

from __future__ import annotations

import json
from pathlib import Path

import xxhash

CHECKSUMS = "checksums.json"
BLOCK = 1 << 22  # bytes that are read at a time


def write_checksums(folder: Path) -> None:
    """Write the sizes and hashes of all files of a finished job."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != CHECKSUMS)
    content = {file.relative_to(folder).as_posix(): [file.stat().st_size, _hash_file(file)] for file in files}
    (folder / CHECKSUMS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def find_damage(folder: Path, skip_prefix: str | None = None) -> str | None:
    """The first file of a job that is missing or not as it was written, or None; `skip_prefix` excludes files."""
    try:
        content = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        if not content:
            return CHECKSUMS
        for name, (size, checksum) in content.items():
            if skip_prefix is not None and name.startswith(skip_prefix):
                continue
            file = folder / name
            if not file.is_file() or file.stat().st_size != size or _hash_file(file) != checksum:
                return str(name)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # missing, cut off, or other JSON
        return CHECKSUMS
    return None


def _hash_file(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
