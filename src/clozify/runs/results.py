"""Where a run's folder keeps the results of each method.

The method that the run was first trained by has its results (`run.json`, `metrics.json`, `ensemble.json`,
`labels.parquet`, `classifier/`, `report.html`) in the run's folder, every other method in `methods/METHOD/`. All share
the jobs' folders, so iPET finds PET's members.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clozify.errors import RunError, quoted
from clozify.runs.keys import hash_file, hash_key
from clozify.runs.label_changes import LabelChanges
from clozify.utils.checked_files import read_json

ANSWERS = "answers"  # the folder of answers that were paid for, in the run's folder
METHODS_FOLDER = "methods"
METHOD_NAMES = {
    "pet": "PET",
    "ipet": "iPET",
    "frozen": "PET with a frozen encoder",
    "supervised": "supervised training",
    "uda": "UDA",
    "mixtext": "MixText",
}
ENSEMBLE_METHODS = ("pet", "ipet", "frozen")  # their result is an ensemble, or a classifier distilled from one
EXPORT_FOLDERS = ("onnx", "onnx-int8")
NOT_COMPARED = ("clozify", "torch", "model", "student", "key_labels")  # versions; names, where hashes are compared


def first_method(folder: Path) -> str | None:
    """The method that a run's folder was first trained by; None where there is none, or the files do not tell."""
    for name in ("run.json", "metrics.json"):
        if (method := _read_or_empty(folder / name).get("method")) in METHOD_NAMES:
            return str(method)
    return None


def results_prefix(folder: Path, method: str) -> str:
    """Where a method's results are in a run's folder: "" or `methods/METHOD/`."""
    return "" if first_method(folder) in (None, method) else f"{METHODS_FOLDER}/{method}/"


def jobs_folder(results: Path) -> Path:
    """The run's folder, with the jobs, for the folder of a method's results."""
    run = results.resolve().parent.parent
    return run if results.resolve().parent.name == METHODS_FOLDER and (run / "run.json").is_file() else results


def trained_methods(folder: Path) -> list[str]:
    """The methods whose results are in a run's folder, the first one first."""
    first = first_method(folder)
    names = [first] if first and (folder / "metrics.json").is_file() else []
    others = sorted((folder / METHODS_FOLDER).glob("*/metrics.json"))
    return names + [path.parent.name for path in others if path.parent.name in METHOD_NAMES]


def find_results(folder: Path, method: str | None) -> Path:
    """The folder with the results of a method, by default of the one that the run was first trained by."""
    if method is None or method == first_method(folder):
        return folder
    results = folder / METHODS_FOLDER / str(method)
    if method not in METHOD_NAMES or not (results / "run.json").is_file():
        available = trained_methods(folder)
        raise RunError(
            f"The run '{folder}' was not trained by the method '{method}'; its methods are {quoted(available)}."
        )
    return results


def check_replaceable(results: Path, address: str, inputs: dict[str, Any]) -> None:
    """Raise an error where a folder holds a method's finished results for other inputs."""
    if not (results / "metrics.json").is_file():
        return  # nothing finished
    previous, metrics = _read_or_empty(results / "run.json"), _read_or_empty(results / "metrics.json")
    if not previous and metrics.get("run") != hash_key(**inputs):
        raise RunError(
            f"The file '{results / 'run.json'}' is damaged, so that it cannot be told whether the finished results "
            "next to it are of the same inputs; name another folder with --output, or add --replace."
        )
    if not previous or (metrics and metrics.get("run") != hash_key(**previous)):
        return  # the same inputs, or results of earlier ones that --replace has given up
    if (labels := LabelChanges.between(previous, inputs)) is not None:
        raise RunError(
            f"The run '{address}' holds finished results of {METHOD_NAMES[inputs['method']]} for other labels "
            f"({labels}); name another folder with --output, or add --replace: {labels.consequence(inputs['method'])}."
        )
    if changes := changed_inputs(previous, inputs):
        raise RunError(
            f"The run '{address}' holds finished results of {METHOD_NAMES[inputs['method']]} for other inputs "
            f"({quoted(changes, 4)} differ); name another folder with --output, or add --replace: models that fit the "
            "new inputs are reused."
        )


def label_changes(results: Path, inputs: dict[str, Any]) -> LabelChanges | None:
    """What became of the labels since a method's results were computed; None where they are the same."""
    return LabelChanges.between(_read_or_empty(results / "run.json"), inputs)


def key_labels(results: Path, inputs: dict[str, Any]) -> list[str] | None:
    """The names that the labels have in the keys of a folder's jobs, where only names have changed since."""
    previous, changes = _read_or_empty(results / "run.json"), label_changes(results, inputs)
    if "task" not in previous or (changes is not None and not changes.renamed):
        return None
    before, now = (list(run["task"]["verbalizers"][0]["words"]) for run in (previous, inputs))
    if changes is not None:
        return list(previous.get("key_labels") or before)
    return previous.get("key_labels") if before == now else None


def changed_inputs(previous: dict[str, Any], inputs: dict[str, Any]) -> list[str]:
    """The names of what differs between two `run.json`, without versions and the files' names."""

    before, now = _flatten(previous), _flatten(json.loads(json.dumps(inputs)))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [name for name in names if name not in NOT_COMPARED and not name.endswith((".source", ".columns"))]


def check_finished(results: Path) -> None:
    """Raise an error where a method's results are missing, or older than the inputs it was last started with."""
    if not (results / "metrics.json").is_file():
        raise RunError(f"The run in '{results}' has not finished; give its command again to resume it.")
    if read_json(results / "metrics.json").get("run") != hash_key(**read_json(results / "run.json")):
        raise RunError(
            f"The run in '{results}' was started again with other settings and has not finished; give its command "
            "again to resume it."
        )


def weights_hash(classifier: Path) -> str:
    """A hash of a classifier's weights."""
    return hash_key(files={file.name: hash_file(file) for file in sorted(classifier.glob("*.safetensors"))})


def is_stale(export: Path, classifier: Path) -> bool:
    """Whether an export was made from other weights than the classifier's."""
    return _read_or_empty(export / "export.json").get("weights") != weights_hash(classifier)


def stale_exports(results: Path) -> list[str]:
    """The names of the exports in a method's folder that are not of its classifier."""
    exports = [name for name in EXPORT_FOLDERS if (results / name / "export.json").is_file()]
    return [name for name in exports if is_stale(results / name, results / "classifier")]


def _flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under names such as `recipe.distill.max_steps`."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _read_or_empty(path: Path) -> dict[str, Any]:
    """A JSON object; empty where the file is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, RunError):
        return {}
