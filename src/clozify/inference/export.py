"""Implements `clozify export`: a classifier as an ONNX graph, which runs without PyTorch.

The export and the original score the same rows before anything is kept; an export that answers otherwise is refused.
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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify import __version__, metrics
from clozify.config.task import load_task
from clozify.data.decision import Decision
from clozify.data.in_memory import make_rows
from clozify.data.rows import Rows, read_rows
from clozify.errors import DataError, ExportError, require_package
from clozify.inference.finished_run import FinishedRun
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import Classifier, load_classifier
from clozify.models.classifier_folder import EXPORT_FILE, ONNX_FILE, TASK_FILE, load_decision
from clozify.models.onnx import OUTPUT
from clozify.report.run import RunInputs
from clozify.runs.metrics import Record
from clozify.runs.reliability import RELIABILITY_FILE
from clozify.runs.results import weights_hash
from clozify.utils.atomic import atomic_folder
from clozify.utils.checked_files import read_record

MAX_ROWS = 512  # rows that both score
MAX_DIFFERENCE = 1e-3  # of a probability, in 32 bits
TIE = 1e-4  # two labels whose probabilities differ by less count as equal
MIN_AGREEMENT = 0.95  # share of rows that keep their label, in 8 bits


class BothRuntimes(Record):
    """A measurement of the original and of the export."""

    pytorch: float
    onnx: float


class Comparison(Record):
    """The export's answers against the original's, on the same rows."""

    rows: int
    largest_difference: float  # of a probability
    agreement: float  # share of rows with the same label
    rows_per_second: BothRuntimes
    accuracy: BothRuntimes | None = None  # None without labels


class ExportResult(Comparison):
    """What was written, and how it compares with the original; the content of `export.json`."""

    format: str
    int8: bool
    data: str  # the rows that both scored
    output: str
    bytes: int
    weights: str  # hash of the classifier's weights
    clozify: str  # version


def export(
    run: str | Path,
    output: str | Path | None = None,
    int8: bool = False,
    data: str | Path | None = None,
    min_agreement: float = MIN_AGREEMENT,
    log: Callable[[str], None] = lambda line: None,
    method: str | None = None,
) -> ExportResult:
    """Write a run's classifier as an ONNX graph, with its tokenizer, labels and task.

    - `run`: a finished run's folder, or a classifier's.
    - `output`: a new folder; by default `onnx` or `onnx-int8` in the run's.
    - `int8`: round weights and activations to 8 bits: a quarter of the size, faster, nearly equal answers.
    - `data`: rows to compare both on; by default the run's test rows.
    - `method`: whose classifier it is, where the run was trained by several; by default the first.
    - `min_agreement`: the least share of rows that must keep their label in 8 bits.
    - `log`: receives progress lines.

    Raises `ExportError`, and writes nothing, where the export does not answer as the original does.
    """
    for library in ("onnx", "onnxscript", "onnxruntime"):
        require_package(library, "onnx", "An export to ONNX")
    finished = FinishedRun(run, method)
    if finished.classifier is None:
        raise ExportError(
            f"The run '{run}' is an ensemble without a classifier, and only a classifier can be exported; train with "
            "unlabelled rows (--unlabeled)."
        )
    if (finished.classifier / ONNX_FILE).is_file():
        raise ExportError(f"The folder '{run}' is an export already; name the run or the classifier it came from.")
    if finished.is_static:
        raise ExportError(
            f"The classifier of '{run}' is static: it runs without PyTorch as it is, and there is no ONNX graph of it; "
            f"copy its folder '{finished.classifier}' instead."
        )
    path = Path(output) if output is not None else finished.folder / ("onnx-int8" if int8 else "onnx")
    _check_output(path)
    rows = _load_comparison_rows(finished, data, int8)
    classifier = load_classifier(finished.classifier, "cpu")
    with atomic_folder(path) as tmp_path:
        log("writing the graph")
        _write_folder(classifier, finished.classifier, tmp_path)
        if int8:
            log("rounding the weights to 8 bits")
            _quantize(tmp_path / ONNX_FILE)
        log(f"comparing on {len(rows):,} rows of '{rows.source}'")
        comparison = compare(classifier, load_classifier(tmp_path, "cpu"), rows, load_decision(tmp_path))
        _check_agreement(comparison, int8, min_agreement)
        result = ExportResult(
            **comparison.model_dump(),
            format="onnx",
            int8=int8,
            data=rows.source,
            output=str(path),
            weights=weights_hash(finished.classifier),
            bytes=sum(file.stat().st_size for file in tmp_path.iterdir()),
            clozify=__version__,
        )
        content = json.dumps(result.to_json(), indent=2, ensure_ascii=False) + "\n"
        (tmp_path / EXPORT_FILE).write_text(content, encoding="utf-8")
    return result


def compare(original: Classifier, exported: Classifier, rows: Rows, decision: Decision | None = None) -> Comparison:
    """Score rows with both classifiers: how far probabilities differ, how many labels agree, and the speed of each."""
    decision = decision or Decision(rows.task.labels)
    expected, pytorch_rate = _score(original, rows, decision)  # (rows, labels)
    actual, onnx_rate = _score(exported, rows, decision)
    one, other = decision.predict(expected), decision.predict(actual)
    if decision.multilabel:
        is_tie = np.abs(expected - np.asarray(decision.thresholds)) <= TIE
        same = ((one == other) | is_tie).all(axis=1)
    else:
        ordered = np.sort(expected, axis=1)
        same = (one == other) | (ordered[:, -1] - ordered[:, -2] <= TIE)
    accuracy = None
    if rows.has_labels and (labeled := rows.is_labeled).any():
        truth = rows.targets[labeled]
        accuracy = BothRuntimes(
            pytorch=metrics.accuracy(truth, one[labeled]), onnx=metrics.accuracy(truth, other[labeled])
        )
    return Comparison(
        rows=len(rows),
        largest_difference=float(np.abs(expected - actual).max()),
        agreement=float(same.mean()),
        rows_per_second=BothRuntimes(pytorch=round(pytorch_rate, 2), onnx=round(onnx_rate, 2)),
        accuracy=accuracy,
    )


def _score(classifier: Classifier, rows: Rows, decision: Decision) -> tuple[NDArray[np.float64], float]:
    """Probabilities, (rows, labels), and rows per second."""
    warm_up = rows.select(np.arange(min(2, len(rows))))
    list(classifier.score_rows(warm_up, TOKENS_PER_BATCH["cpu"]))
    start_time = time.perf_counter()
    scores = np.concatenate([chunk for _, chunk in classifier.score_rows(rows, TOKENS_PER_BATCH["cpu"])])
    rate = len(rows) / (time.perf_counter() - start_time)
    return decision.probabilities(scores), rate


def _check_agreement(comparison: Comparison, int8: bool, min_agreement: float) -> None:
    agreement, rows = comparison.agreement, comparison.rows
    if not int8 and (agreement < 1 or comparison.largest_difference > MAX_DIFFERENCE):
        raise ExportError(
            f"The ONNX graph does not answer as the model does: {agreement:.1%} of {rows:,} rows get the same label, "
            f"probabilities differ by up to {comparison.largest_difference:.1e}; nothing was written."
        )
    if agreement < min_agreement:
        raise ExportError(
            f"In 8 bits only {agreement:.1%} of {rows:,} rows keep their label, not {min_agreement:.1%} as required; "
            "nothing was written. Export without --int8, or ask for less with --agreement."
        )


def _check_output(path: Path) -> None:
    if path.is_file():
        raise ExportError(f"The export cannot go to '{path}': that is a file; name a folder.")
    if path.is_dir() and any(path.iterdir()) and not (path / EXPORT_FILE).is_file():
        raise ExportError(f"The folder '{path}' holds something else than an export; name an empty or a new folder.")


def _load_comparison_rows(finished: FinishedRun, data: str | Path | None, int8: bool) -> Rows:
    """At most `MAX_ROWS` rows of `data`, else of the run's test rows, else (in 32 bits) of any texts."""
    task = finished.task
    if data is not None:
        return _sample(read_rows(data, task))
    if (finished.folder / "run.json").is_file():
        sources = read_record(finished.folder / "run.json", RunInputs).data
        for name in ("test", "labeled", "unlabeled"):
            try:
                if name in sources and (name == "test" or not int8):
                    return _sample(read_rows(sources[name].source, task))
            except DataError:  # moved since, or never a file
                continue
    if int8:
        raise ExportError(
            "An export in 8 bits changes some answers, and how many is measured on rows of the task; name some with "
            "--data."
        )
    texts = read_rows("builtin:test", load_task("debian")).texts("description")
    return _sample(make_rows(dict.fromkeys(task.fields, texts), task, "builtin:test"))


def _sample(rows: Rows) -> Rows:
    """At most `MAX_ROWS` rows, evenly from all."""
    return rows if len(rows) <= MAX_ROWS else rows.select(np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64))


class _LogitsModule(nn.Module):
    """The model with tensors in and the logits out, as the exporter needs it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Logits, (batch, labels)."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return logits


def _write_folder(classifier: Classifier, source: Path, folder: Path) -> None:
    """Write the graph in 32 bits, with the tokenizer, the configuration and the task of the classifier in `source`."""
    classifier.tokenizer.hf_tokenizer.save_pretrained(folder)
    classifier.model.config.save_pretrained(folder)
    for name in (TASK_FILE, RELIABILITY_FILE):
        if name == TASK_FILE or (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    width = min(16, classifier.max_length)
    ids = torch.full((2, width), classifier.tokenizer.mask_id)
    mask = torch.ones_like(ids)
    mask[1, width // 2 :] = 0
    examples = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    inputs = {name: examples[name] for name in classifier.input_names}
    with _silence_libraries():
        try:
            program = torch.onnx.export(
                _LogitsModule(classifier.scoring_model).eval(),
                (),
                kwargs=inputs,
                input_names=list(inputs),
                output_names=[OUTPUT],
                dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in inputs},
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # the exporter raises many types
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
    with _silence_libraries():
        quantize_dynamic(model, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """Hide the warnings that the exporter and the quantizer address to developers."""
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
