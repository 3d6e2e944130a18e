"""clozify: few-shot text classification by Pattern-Exploiting Training (PET).

Importing the package is cheap: heavy libraries load where they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozify.cloze import ClozeModel as ClozeModel
    from clozify.cloze import load_model as load_model
    from clozify.data import few_shot as few_shot
    from clozify.data import read as read
    from clozify.errors import ClozifyError as ClozifyError
    from clozify.estimator import PetClassifier as PetClassifier
    from clozify.pet import train as train
    from clozify.recipe import Recipe as Recipe
    from clozify.recipe import load_recipe as load_recipe
    from clozify.task import Task as Task
    from clozify.task import load_task as load_task
    from clozify.zeroshot import zero_shot as zero_shot

__version__ = "0.1.0"

_HOME = {
    "ClozeModel": "cloze",
    "ClozifyError": "errors",
    "PetClassifier": "estimator",
    "Recipe": "recipe",
    "Task": "task",
    "few_shot": "data",
    "load_model": "cloze",
    "load_recipe": "recipe",
    "load_task": "task",
    "read": "data",
    "train": "pet",
    "zero_shot": "zeroshot",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'clozify' has no attribute '{name}'")
    return getattr(import_module(f"clozify.{_HOME[name]}"), name)
