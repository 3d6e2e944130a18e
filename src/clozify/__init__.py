"""clozify: few-shot text classification by Pattern-Exploiting Training (PET).

Importing the package is cheap: heavy libraries load where they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozify.config.recipe import Recipe as Recipe
    from clozify.config.recipe import load_recipe as load_recipe
    from clozify.config.task import Task as Task
    from clozify.config.task import load_task as load_task
    from clozify.data.rows import few_shot as few_shot
    from clozify.data.rows import read_rows as read_rows
    from clozify.errors import ClozifyError as ClozifyError
    from clozify.estimator import PetClassifier as PetClassifier
    from clozify.inference.zero_shot import zero_shot as zero_shot
    from clozify.models.cloze import ClozeModel as ClozeModel
    from clozify.models.cloze import load_model as load_model
    from clozify.pipeline.train import train as train

__version__ = "0.1.0"

_HOME = {
    "ClozeModel": "models.cloze",
    "ClozifyError": "errors",
    "PetClassifier": "estimator",
    "Recipe": "config.recipe",
    "Task": "config.task",
    "few_shot": "data.rows",
    "load_model": "models.cloze",
    "load_recipe": "config.recipe",
    "load_task": "config.task",
    "read_rows": "data.rows",
    "train": "pipeline.train",
    "zero_shot": "inference.zero_shot",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clozify' has no attribute '{name}'")
    return getattr(import_module(f"clozify.{_HOME[name]}"), name)
