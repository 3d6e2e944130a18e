"""Keys of jobs: short hashes of everything that a job's results depend on.

A job's results are kept in a folder that is named by its key, so a changed pattern or setting redoes only the jobs that
depend on it.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozify.gpu.options import GpuOptions
from clozify.models.builtin import builtin_folder, is_builtin

if TYPE_CHECKING:
    from clozify.runs.plan import Plan

NUMERICS = 1  # raised with every change of clozify that changes the numbers that a job computes


def hash_key(**inputs: Any) -> str:
    """A short hash of JSON values."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def job_key(step: str, **inputs: Any) -> str:
    """The key of a job: a hash of its step, its inputs and the version of the numerics."""
    return hash_key(step=step, numerics=NUMERICS, **inputs)


def hash_model_folder(path: Path) -> str:
    """A hash of the names and contents of all files of a model folder."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    return hash_key(files={file.name: hash_file(file) for file in files})


def hash_file(file: Path) -> str:
    """A hash of a file's content."""
    return _hash_file(file, file.stat().st_size, file.stat().st_mtime_ns)


@cache
def _hash_file(file: Path, _size: int, _modified: int) -> str:
    """A hash of a file's content, computed once for each size and time of modification."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def model_key(name: str) -> str:
    """What identifies a model: a hash of its folder, or its name on the hub."""
    path = builtin_folder(name) if is_builtin(name) else Path(name)
    return hash_model_folder(path) if path.is_dir() else name


def data_inputs(plan: Plan) -> dict[str, Any]:
    """What identifies the rows of a run: hashes of their texts, and of the labels that models are trained on."""
    data_sets = {"labeled": plan.labeled, "unlabeled": plan.unlabeled, "test": plan.test, "dev": plan.dev}
    key: dict[str, Any] = {
        name: {"rows": len(rows), "texts": rows.digest} for name, rows in data_sets.items() if rows is not None
    }
    key["labeled"]["labels"] = hash_key(labels=plan.labeled.labels.tolist())
    if plan.dev is not None:
        key["dev"]["labels"] = hash_key(labels=plan.dev.labels.tolist())
        key["dev"]["settings"] = plan.recipe.dev.model_dump() | {"metric": plan.task.metric}
    return key


def prompt_inputs(plan: Plan, device: str) -> dict[str, Any]:
    """What every job with the cloze model depends on."""
    return {
        "data": data_inputs(plan),
        "model": model_key(plan.model),
        "max_seq_length": plan.recipe.max_seq_length,
        "wording": plan.recipe.wording.model_dump(),
        "line_breaks": plan.task.line_breaks,
        "labels": plan.key_names,
        **GpuOptions.from_recipe(plan.recipe).numerics(device),
    }
