"""Keys of jobs: short hashes of everything that a job's results depend on.

A job's results are kept in a folder that is named by its key, so a changed pattern or setting redoes only the jobs that
depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clozify.gpu.options import GpuOptions
from clozify.models.model_key import hash_model_folder as hash_model_folder
from clozify.models.model_key import model_key as model_key
from clozify.utils.hashing import hash_file as hash_file
from clozify.utils.hashing import hash_key as hash_key

if TYPE_CHECKING:
    from clozify.runs.plan import Plan

NUMERICS = 6  # raised with every change of clozify that changes the numbers that a job computes


def job_key(step: str, **inputs: Any) -> str:
    """The key of a job: a hash of its step, its inputs and the version of the numerics."""
    return hash_key(step=step, numerics=NUMERICS, **inputs)


def data_inputs(plan: Plan) -> dict[str, Any]:
    """What identifies the rows of a run: hashes of their texts, and of the labels that models are trained on."""
    data_sets = {"labeled": plan.labeled, "unlabeled": plan.unlabeled, "test": plan.test, "dev": plan.dev}
    key: dict[str, Any] = {
        name: {"rows": len(rows), "texts": rows.digest} for name, rows in data_sets.items() if rows is not None
    }
    key["labeled"]["labels"] = hash_key(labels=plan.labeled.targets.tolist())
    if plan.dev is not None:
        key["dev"]["labels"] = hash_key(labels=plan.dev.targets.tolist())
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
        **({"generative": plan.recipe.generative.model_dump()} if plan.is_generative else {}),
        **GpuOptions.from_recipe(plan.recipe).numerics(device),
    }
