"""A classifier as an ONNX file that needs no PyTorch, behind `clozify export`.

In: a run's folder (or a classifier's) and rows to check on. Out: a folder with the graph, the tokenizer, the labels and
the task, which `clozify predict`, `evaluate` and `serve` take too. Rows are scored by both before anything is written:
an export that answers otherwise is refused.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor, nn

from clozify import __version__
from clozify.config.task import load_task
from clozify.data.in_memory import make_rows
from clozify.data.rows import Rows, read_rows
from clozify.errors import DataError, ExportError, require_package
from clozify.inference.finished_run import FinishedRun
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import TASK_FILE, Classifier, load_classifier
from clozify.models.onnx import EXPORT_FILE, ONNX_FILE, OUTPUT
from clozify.utils.atomic import atomic_folder

ROWS = 512  # so many rows are scored by both
SAME = 1e-3  # the most that a probability may differ
TIE = 1e-4  # labels that lie closer together are taken for equal
LEAST_AGREEMENT = 0.95  # of the rows' labels, for int8


def export(
    folder: str | Path,
    output: str | Path | None = None,
    int8: bool = False,
    data: str | Path | None = None,
    least_agreement: float = LEAST_AGREEMENT,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write a classifier as ONNX to `output` (else `onnx` or `onnx-int8` in the folder); how well it agrees.

    The rows to check on are `data`, or the run's own test rows. With `int8` the weights take a quarter of the space.
    """
    for library in ("onnx", "onnxscript", "onnxruntime"):
        require_package(library, "onnx", "An export to ONNX")
    finished = FinishedRun(folder)
    if finished.classifier is None:
        raise ExportError(
            f"The run '{folder}' is an ensemble without a classifier, and only a classifier can be exported; train "
            "with a pile of unlabelled rows (--unlabeled)."
        )
    if (finished.classifier / ONNX_FILE).is_file():
        raise ExportError(f"The folder '{folder}' is an export already; name the run or the classifier it came from.")
    place = Path(output) if output is not None else Path(folder) / ("onnx-int8" if int8 else "onnx")
    _check_place(place)
    rows = _rows_to_check(finished, data, int8)
    classifier = load_classifier(finished.classifier, "cpu")
    with atomic_folder(place) as tmp_path:
        say("writing the graph")
        _write_folder(classifier, finished.classifier, tmp_path)
        if int8:
            say("rounding the weights to 8 bits")
            _quantize(tmp_path / ONNX_FILE)
        say(f"comparing on {len(rows):,} rows of '{rows.source}'")
        found = compare(classifier, load_classifier(tmp_path, "cpu"), rows)
        _refuse_other_answers(found, int8, least_agreement)
        found |= {"format": "onnx", "int8": int8, "data": rows.source, "output": str(place)}
        found |= {"bytes": sum(file.stat().st_size for file in tmp_path.iterdir()), "clozify": __version__}
        (tmp_path / EXPORT_FILE).write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def compare(first: Classifier, second: Classifier, rows: Rows) -> dict[str, Any]:
    """How far two classifiers' answers lie apart on some rows, and how fast each was."""
    one, rate = _probabilities(first, rows)
    other, other_rate = _probabilities(second, rows)
    best = np.sort(one, axis=1)  # (rows, labels)
    clear = best[:, -1] - best[:, -2] > TIE
    same = one.argmax(axis=1) == other.argmax(axis=1)
    found: dict[str, Any] = {
        "rows": len(rows),
        "largest_difference": float(np.abs(one - other).max()),  # of a probability
        "agreement": float((same | ~clear).mean()),
        "rows_per_second": {"pytorch": round(rate, 2), "onnx": round(other_rate, 2)},
    }
    if rows.has_labels and (known := rows.labels >= 0).any():
        truth = rows.labels[known]
        found["accuracy"] = {
            "pytorch": float((one.argmax(axis=1)[known] == truth).mean()),
            "onnx": float((other.argmax(axis=1)[known] == truth).mean()),
        }
    return found


def _probabilities(classifier: Classifier, rows: Rows) -> tuple[NDArray[np.float64], float]:
    """(rows, labels), and rows a second."""
    few = rows.select(np.arange(min(2, len(rows))))
    list(classifier.score_rows(few, TOKENS_PER_BATCH["cpu"]))  # the first pass is slower
    began = time.perf_counter()
    scores = np.concatenate([part for _, part in classifier.score_rows(rows, TOKENS_PER_BATCH["cpu"])])
    return softmax(scores.astype(np.float64), axis=-1), len(rows) / (time.perf_counter() - began)


def _refuse_other_answers(found: dict[str, Any], int8: bool, least: float) -> None:
    if not int8 and (found["agreement"] < 1 or found["largest_difference"] > SAME):
        raise ExportError(
            f"The ONNX graph does not answer as the model does: {found['agreement']:.1%} of {found['rows']:,} rows get "
            f"the same label, probabilities differ by up to {found['largest_difference']:.1e}; nothing was written."
        )
    if found["agreement"] < least:
        raise ExportError(
            f"In 8 bits only {found['agreement']:.1%} of {found['rows']:,} rows keep their label, and {least:.1%} were "
            "asked for; nothing was written. Export without --int8, or ask for less with --agreement."
        )


def _check_place(place: Path) -> None:
    if place.is_file():
        raise ExportError(f"The export cannot go to '{place}': that is a file; name a folder.")
    if place.is_dir() and any(place.iterdir()) and not (place / EXPORT_FILE).is_file():
        raise ExportError(f"The folder '{place}' holds something else than an export; name an empty or a new folder.")


def _rows_to_check(finished: FinishedRun, data: str | Path | None, int8: bool) -> Rows:
    """The rows asked for, else the run's test rows, else the sample's texts: enough to compare two float graphs."""
    task = finished.task
    if data is not None:
        return _some(read_rows(data, task))
    if (finished.folder / "run.json").is_file():
        known = json.loads((finished.folder / "run.json").read_text())["data"]
        for name in ("test", "labeled", "unlabeled"):
            try:
                if name in known and (name == "test" or not int8):
                    return _some(read_rows(known[name]["source"], task))
            except DataError:  # moved since, or never a file
                continue
    if int8:
        raise ExportError(
            "An export in 8 bits changes answers, and how many must be seen on rows of the task; name some with --data."
        )
    texts = read_rows("builtin:test", load_task("debian")).texts("description")
    return _some(make_rows(dict.fromkeys(task.fields, texts), task, "builtin:test"))


def _some(rows: Rows) -> Rows:
    return rows if len(rows) <= ROWS else rows.select(np.linspace(0, len(rows) - 1, ROWS).astype(np.int64))


class _Scores(nn.Module):
    """The model with plain tensors in and out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(batch, labels)."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        scores: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return scores


def _write_folder(classifier: Classifier, source: Path, folder: Path) -> None:
    classifier.tokenizer.hf_tokenizer.save_pretrained(folder)
    classifier.model.config.save_pretrained(folder)
    shutil.copyfile(source / TASK_FILE, folder / TASK_FILE)
    width = min(16, classifier.max_length)
    ids = torch.full((2, width), classifier.tokenizer.mask_id)
    mask = torch.ones_like(ids)
    mask[1, width // 2 :] = 0
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    inputs = {name: given[name] for name in classifier.input_names}
    with _quiet():
        try:
            program = torch.onnx.export(
                _Scores(classifier.model).eval(),
                (),
                kwargs=inputs,
                input_names=list(inputs),
                output_names=[OUTPUT],
                dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in inputs},
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # whatever the exporter cannot follow
            reason = " ".join(str(error).split())[:300]
            raise ExportError(f"PyTorch cannot write this model as ONNX: {reason}") from error
    assert program is not None
    program.save(str(folder / ONNX_FILE))


def _quantize(path: Path) -> None:
    """Rewrite the graph with 8-bit activations (rounded as they come) and weights of one scale a column.

    Weights take 7 of the 8 bits (-64 to 64). ONNX Runtime multiplies uint8 activations by int8 weights; processors
    without VNNI add two such products in saturating 16 bits, and 2 * 255 * 64 = 32,640 is the most that fits. With all
    8 bits, 2 * 255 * 127 = 64,770 would be cut to 32,767 there, and the same file would give other answers.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes that the exporter noted and that quantization would contradict
    path.unlink()
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # the weights of a large graph
    with _quiet():
        quantize_dynamic(model, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


@contextmanager
def _quiet() -> Iterator[None]:
    """The libraries' notes to their own developers are not for our users."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
