"""clozify: few-shot text classification by Pattern-Exploiting Training (PET).

The names in `__all__` are the public interface. They are loaded when they are first used, so `import clozify` loads no
other library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozify.config.recipe import Recipe as Recipe
    from clozify.config.recipe import load_recipe as load_recipe
    from clozify.config.task import Task as Task
    from clozify.data.few_shot import few_shot as few_shot
    from clozify.data.rows import Rows as Rows
    from clozify.data.rows import read_rows as read_rows
    from clozify.data.task_labels import load_task as load_task
    from clozify.errors import ClozifyError as ClozifyError
    from clozify.errors import DataError as DataError
    from clozify.errors import ExportError as ExportError
    from clozify.errors import ModelError as ModelError
    from clozify.errors import RecipeError as RecipeError
    from clozify.errors import RunError as RunError
    from clozify.errors import ServingError as ServingError
    from clozify.errors import TaskError as TaskError
    from clozify.errors import TrainingError as TrainingError
    from clozify.estimator import PetClassifier as PetClassifier
    from clozify.inference.audit import audit as audit
    from clozify.inference.audit_records import AuditResult as AuditResult
    from clozify.inference.drift import DriftReport as DriftReport
    from clozify.inference.drift import drift as drift
    from clozify.inference.explain import Explanation as Explanation
    from clozify.inference.explain import Explanations as Explanations
    from clozify.inference.explain import explain as explain
    from clozify.inference.export import ExportResult as ExportResult
    from clozify.inference.export import export as export
    from clozify.inference.finished_run import FinishedRun as FinishedRun
    from clozify.inference.finished_run import evaluate as evaluate
    from clozify.inference.finished_run import load_run as load_run
    from clozify.inference.finished_run import predict as predict
    from clozify.inference.init_task import InitResult as InitResult
    from clozify.inference.init_task import init_task as init_task
    from clozify.inference.predictions import EvaluationResult as EvaluationResult
    from clozify.inference.predictions import Predictions as Predictions
    from clozify.inference.suggest import Suggestions as Suggestions
    from clozify.inference.suggest import suggest as suggest
    from clozify.inference.training import TrainResult as TrainResult
    from clozify.inference.training import train as train
    from clozify.inference.zero_shot import ZeroShotResult as ZeroShotResult
    from clozify.inference.zero_shot import zero_shot as zero_shot
    from clozify.models.cloze import ClozeModel as ClozeModel
    from clozify.models.language_model import load_model as load_model
    from clozify.pipeline.find_words import FindWordsReport as FindWordsReport
    from clozify.pipeline.find_words import FindWordsResult as FindWordsResult
    from clozify.pipeline.find_words import find_words as find_words
    from clozify.pipeline.pretrain import PretrainResult as PretrainResult
    from clozify.pipeline.pretrain import pretrain as pretrain
    from clozify.report.compare import Comparison as Comparison
    from clozify.report.write import compare as compare
    from clozify.runs.metrics import Metrics as Metrics
    from clozify.teachers.functions import FunctionTeacher as FunctionTeacher
    from clozify.teachers.functions import rule as rule

__version__ = "0.1.0"

_MODULES = {
    "config.recipe": ["Recipe", "load_recipe"],
    "config.task": ["Task"],
    "data.few_shot": ["few_shot"],
    "data.rows": ["Rows", "read_rows"],
    "data.task_labels": ["load_task"],
    "errors": [
        "ClozifyError",
        "DataError",
        "ExportError",
        "ModelError",
        "RecipeError",
        "RunError",
        "ServingError",
        "TaskError",
        "TrainingError",
    ],
    "estimator": ["PetClassifier"],
    "inference.drift": ["DriftReport", "drift"],
    "inference.explain": ["Explanation", "Explanations", "explain"],
    "inference.audit": ["audit"],
    "inference.audit_records": ["AuditResult"],
    "inference.export": ["ExportResult", "export"],
    "inference.finished_run": ["FinishedRun", "evaluate", "load_run", "predict"],
    "inference.init_task": ["InitResult", "init_task"],
    "inference.predictions": ["EvaluationResult", "Predictions"],
    "inference.suggest": ["Suggestions", "suggest"],
    "inference.training": ["TrainResult", "train"],
    "inference.zero_shot": ["ZeroShotResult", "zero_shot"],
    "models.cloze": ["ClozeModel"],
    "models.language_model": ["load_model"],
    "pipeline.find_words": ["FindWordsReport", "FindWordsResult", "find_words"],
    "pipeline.pretrain": ["PretrainResult", "pretrain"],
    "report.compare": ["Comparison"],
    "report.write": ["compare"],
    "runs.metrics": ["Metrics"],
    "teachers.functions": ["FunctionTeacher", "rule"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'clozify' has no attribute '{name}'")
    from clozify.utils.libraries import gc_paused

    with gc_paused():
        return getattr(import_module(f"clozify.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
