"""Augmented text for UDA and MixText: other wordings of a fraction of the unlabelled rows (appendix B).

The texts come from a file of paraphrases, from back-translation, or from the masked language model, which replaces some
tokens (rewriting). They are made in chunks of rows, each a job in the run's folder, so that a killed run resumes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.readers import open_data
from clozify.data.rows import Rows
from clozify.errors import DataError, quoted
from clozify.gpu.options import GpuOptions
from clozify.methods.backtranslation import Sampling, Translator, backtranslate
from clozify.methods.rewriting import rewrite
from clozify.models.cloze import ClozeModel, load_model
from clozify.pipeline.run import Run
from clozify.runs.context import RunContext
from clozify.runs.keys import job_key, model_key
from clozify.runs.plan import Plan
from clozify.utils.checked_files import read_json
from clozify.utils.progress import progress

CHUNK_SIZE = 1_024  # rows in a job
TIME_FILE = "augmentation.json"
ID = "id"  # the id column of paraphrases where the task names none

Texts = dict[str, list[str]]  # by field
AugmentTexts = Callable[[int, Sequence[str], int, Callable[[int], None]], list[str]]  # version, texts, seed, advance


@dataclass(frozen=True)
class Augmented:
    """The unlabelled rows that are used, and one or several other wordings of each."""

    unlabeled: Rows
    versions: list[Rows]  # each in the order of `unlabeled`
    description: str  # of the source of the texts, for reports
    seconds: float = 0.0  # that making them took

    @property
    def key(self) -> dict[str, Any]:
        """What identifies the texts, for a job's key."""
        return {
            "pile": self.unlabeled.digest,
            "versions": [version.digest for version in self.versions],
        }


@dataclass(frozen=True)
class Augmenter:
    """A way to make other wordings of texts."""

    description: str
    versions: int  # of every row
    key: dict[str, Any]  # what the result depends on, for a job's key
    augment: AugmentTexts
    unit: str = "texts"  # what `augment` counts for the progress bar
    units_per_text: int = 1

    def augment_rows(
        self, plan: Plan, rows: Rows, version: int, chunk: int, advance: Callable[[int], None] = lambda count: None
    ) -> Texts:
        """One version of a chunk of rows; every field is augmented by itself, with its own seed."""
        texts = {}
        for index, field in enumerate(plan.task.fields):
            seed = np.random.SeedSequence([plan.recipe.seed, chunk, version, index]).generate_state(1)[0]
            texts[field] = self.augment(version, rows.texts(field), int(seed), advance)
        return texts


def read_paraphrases(source: RowSource, task: Task, column_mapping: Mapping[str, str] | None = None) -> Rows:
    """The rows of a file of paraphrases, with an id column or in the order of the file of unlabelled rows."""
    if not isinstance(source, (str, Path)):
        return load_rows(source, task, column_mapping, name="augmented")
    columns = {field: (column_mapping or {}).get(field, field) for field in task.fields}
    dataset = open_data(source, task.columns, [columns[field] for field in task.fields if field not in task.optional])
    id_task = task if task.id or ID not in dataset.column_names else task.with_changes(id=ID)
    rows = Rows(dataset, id_task, str(source), {field: column for field, column in columns.items() if field != column})
    rows.warnings = []  # an id column is not needed
    return rows


def augment(run: Run) -> Augmented:
    """The unlabelled rows that UDA and MixText use, augmented; finished chunks are read from the run's folder."""
    plan = run.plan
    assert plan.unlabeled is not None
    if plan.paraphrases is not None:
        return join_paraphrases(plan, plan.paraphrases, run.context)
    unlabeled = plan.unlabeled.select(select_fraction(plan, np.arange(len(plan.unlabeled))))
    augmenter = make_augmenter(plan, run.context.device)
    versions = range(augmenter.versions)
    chunk_texts: list[list[Texts]] = []  # [chunk][version]
    seconds = 0.0
    chunks = list(unlabeled.chunks(CHUNK_SIZE))
    for number, (start, stop) in enumerate(chunks, start=1):
        rows = unlabeled.select(np.arange(start, stop))
        path = _augment_chunk(run, augmenter, rows, number, f"{number}/{len(chunks)}  rows {start + 1:,} to {stop:,}")
        chunk_texts.append(_load(path / "texts.parquet", plan.task, augmenter.versions))
        if (time_file := path / TIME_FILE).exists():
            seconds += read_json(time_file)["seconds"]
    version_texts = [
        {field: [text for texts in chunk_texts for text in texts[version][field]] for field in plan.task.fields}
        for version in versions
    ]
    return Augmented(unlabeled, [_to_rows(texts, plan.task) for texts in version_texts], augmenter.description, seconds)


def _augment_chunk(run: Run, augmenter: Augmenter, rows: Rows, number: int, label: str) -> Path:
    """The folder of a chunk's augmented texts, which are made unless they exist."""
    plan, folder, name = run.plan, run.folder, f"augmentation {label}"
    key = job_key(
        "augment", texts=rows.digest, fields=plan.task.fields, part=number, seed=plan.recipe.seed, **augmenter.key
    )
    path = folder.job_path("augmentations", key)
    if folder.has_job("augmentations", key, run.context.log):
        run.context.log(f"{name}  already done")
        return path
    total = augmenter.versions * len(rows) * len(plan.task.fields) * augmenter.units_per_text
    with folder.writing("augmentations", key) as tmp_path, progress(name, total, augmenter.unit) as advance:
        started = time.monotonic()
        versions = [augmenter.augment_rows(plan, rows, v, number, advance) for v in range(augmenter.versions)]
        _save(tmp_path / "texts.parquet", rows, versions)
        (tmp_path / TIME_FILE).write_text(json.dumps({"seconds": time.monotonic() - started}), encoding="utf-8")
    run.context.log(f"{name}  done")
    return path


def select_fraction(plan: Plan, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """Random candidates, sorted: `augment.share` of the number of unlabelled rows, drawn by the first seed."""
    assert plan.unlabeled is not None
    count = max(1, round(plan.recipe.augment.share * len(plan.unlabeled)))
    return np.sort(np.random.default_rng(plan.recipe.seed).permutation(candidates)[:count])


def _to_rows(texts: Texts, task: Task) -> Rows:
    from datasets import Dataset

    return Rows(Dataset.from_dict(texts), task.with_changes(id=None) if task.id else task, "the augmented rows")


def make_augmenter(plan: Plan, device: str) -> Augmenter:
    """The recipe's way to augment texts; models are loaded when they are first used."""
    settings = plan.recipe.augment
    if settings.method == "rewriting":
        return _rewriting(plan, device)
    models, sampling = settings.backtranslation, Sampling(settings.temperature, settings.samples)
    in_bf16 = GpuOptions.from_recipe(plan.recipe).scores_in_bf16(device)
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    loaded: list[tuple[Translator, Translator]] = []

    def augment(version: int, texts: Sequence[str], seed: int, advance: Callable[[int], None]) -> list[str]:
        if not loaded:  # all of them, so that one that cannot be loaded is known before the first translation
            loaded.extend(
                [(Translator(forward, device, dtype), Translator(back, device, dtype)) for forward, back in models]
            )
        return backtranslate(*loaded[version], texts, sampling, seed, advance)

    return Augmenter(
        "back-translation by " + "; ".join(f"'{forward}' and '{back}'" for forward, back in models),
        len(models),
        {
            "models": [[model_key(name) for name in pair] for pair in models],
            "temperature": settings.temperature,
            "samples": settings.samples,
            **({"precision": "bf16"} if in_bf16 else {}),
        },
        augment,
        "translations",
        2,  # there and back
    )


def _rewriting(plan: Plan, device: str) -> Augmenter:
    settings, length = plan.recipe.augment, plan.recipe.max_seq_length
    loaded: list[ClozeModel] = []

    def augment(_: int, texts: Sequence[str], seed: int, advance: Callable[[int], None]) -> list[str]:
        if not loaded:
            loaded.append(load_model(plan.model, device))
        rewritten = rewrite(loaded[0], texts, settings, length, seed)
        advance(len(texts))
        return rewritten

    return Augmenter(
        f"rewriting {100 * settings.mask_share:g}% of the tokens by the masked language model '{plan.model}'",
        settings.rewritings,
        {
            "model": model_key(plan.model),
            "mask_share": settings.mask_share,
            "rewritings": settings.rewritings,
            "length": length,
            "temperature": settings.temperature,
        },
        augment,
    )


def _save(path: Path, rows: Rows, versions: list[Texts]) -> None:
    """Write each row's id, the index of the version, and the fields' texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [str(row_id) for row_id in rows.ids()]
    columns: dict[str, Any] = {"row": ids * len(versions), "version": np.repeat(np.arange(len(versions)), len(ids))}
    columns |= {f"field_{name}": [text for texts in versions for text in texts[name]] for name in versions[0]}
    pq.write_table(pa.table(columns), path)


def _load(path: Path, task: Task, versions: int) -> list[Texts]:
    """The texts of each version, as `_save` wrote them."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = len(table) // versions
    columns = {field: table.column(f"field_{field}").to_pylist() for field in task.fields}
    return [{field: columns[field][i * rows : (i + 1) * rows] for field in columns} for i in range(versions)]


def join_paraphrases(plan: Plan, paraphrases: Rows, context: RunContext) -> Augmented:
    """Unlabelled rows with their paraphrases, matched by id or by order.

    There are as many versions as the row with the most paraphrases has; a row with fewer repeats them.
    """
    unlabeled = plan.unlabeled
    assert unlabeled is not None
    matches = _match_by_id(unlabeled, paraphrases) or _match_by_order(unlabeled, paraphrases)
    has_match = np.array([bool(indices) for indices in matches])
    if not has_match.all():
        context.warn(f"{int((~has_match).sum()):,} unlabelled rows have no paraphrase and are left out.")
    selected = select_fraction(plan, np.flatnonzero(has_match))
    texts = {field: paraphrases.texts(field) for field in plan.task.fields}
    empty = [i for row in selected for i in matches[row] if not any(texts[field][i] for field in texts)]
    if empty:
        raise DataError(
            f"The paraphrase in row {empty[0] + 1:,} of '{paraphrases.source}' is empty; write one or leave it out."
        )
    versions = [
        {field: [texts[field][matches[row][version % len(matches[row])]] for row in selected] for field in texts}
        for version in range(max(len(matches[row]) for row in selected))
    ]
    description = f"paraphrases of the file '{paraphrases.source}'"
    return Augmented(unlabeled.select(selected), [_to_rows(version, plan.task) for version in versions], description)


def _match_by_id(unlabeled: Rows, paraphrases: Rows) -> list[list[int]] | None:
    """For each unlabelled row the indices of its paraphrases, by the id column; None where the file has none."""
    if not paraphrases.has_ids:
        return None
    indices_by_id: dict[str, list[int]] = {}
    for index, row_id in enumerate(paraphrases.ids()):
        indices_by_id.setdefault(str(row_id), []).append(index)
    ids = [str(row_id) for row_id in unlabeled.ids()]
    if not any(row_id in indices_by_id for row_id in ids):
        raise DataError(
            f"No unlabelled row has a paraphrase in '{paraphrases.source}', whose ids are like "
            f"{quoted(list(indices_by_id)[:1])}, while those of the unlabelled rows are like {quoted(ids[:1])}; use "
            "the same ids in both files."
        )
    return [indices_by_id.get(row_id, []) for row_id in ids]


def _match_by_order(unlabeled: Rows, paraphrases: Rows) -> list[list[int]]:
    """The same by order: the first paraphrase of every row of the file, then the second of every row, and so on."""
    count = unlabeled.source_rows
    if len(paraphrases) % count:
        raise DataError(
            f"The file '{paraphrases.source}' has {len(paraphrases):,} paraphrases for {count:,} rows of "
            f"'{unlabeled.source}'; without an id column ('{unlabeled.task.id or ID}') it needs one for every row, in "
            "the same order, or the same again for second ones."
        )
    return [[start + int(row) for start in range(0, len(paraphrases), count)] for row in unlabeled.row_numbers()]
