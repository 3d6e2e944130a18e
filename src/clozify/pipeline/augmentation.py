"""Augmented text for UDA and MixText: a part of the pile, each row said otherwise once or several times (appendix B).

In: a run's plan. Out: `Augmented`, the rows of the pile that are used, their augmentations, and how they were made,
which every result names. They come from a file of paraphrases, from translation there and back, or from the masked
language model itself. The work is done in parts, each a job of the run's folder, so a killed run goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.readers import open_data
from clozify.data.rows import Rows
from clozify.errors import DataError, quoted
from clozify.methods.backtranslation import Translator, backtranslate
from clozify.methods.rewriting import rewrite
from clozify.models.cloze import ClozeModel, load_model
from clozify.pipeline.run import Run
from clozify.runs.context import RunContext
from clozify.runs.keys import job_key, model_key
from clozify.runs.plan import Plan
from clozify.utils.progress import progress

PART = 1_024  # rows of a job
TIME = "augmentation.json"
ID = "id"  # the paraphrases' id column, where the task names none

Texts = dict[str, list[str]]  # by field
Maker = Callable[[int, Sequence[str], int], list[str]]  # from a version's number, texts and a seed to other texts


@dataclass(frozen=True)
class Augmented:
    """The rows of the pile that are used, and each of them in other words."""

    pile: Rows
    versions: list[Rows]  # in the pile's order
    how: str
    seconds: float = 0.0  # that making them took

    @property
    def key(self) -> dict[str, Any]:
        """What the texts are, for a job's key."""
        return {
            "pile": self.pile.digest,
            "versions": [version.digest for version in self.versions],
        }


def read_paraphrases(source: str | Path | Rows, task: Task, column_mapping: Mapping[str, str] | None = None) -> Rows:
    """The rows of a file of paraphrases: the task's fields, and an id column or the order of the pile's file."""
    if isinstance(source, Rows):
        return source.with_task(task)
    asked = {field: (column_mapping or {}).get(field, field) for field in task.fields}
    dataset = open_data(source, task.columns, [asked[field] for field in task.fields if field not in task.optional])
    own = task if task.id or ID not in dataset.column_names else task.with_changes(id=ID)
    rows = Rows(dataset, own, str(source), {field: column for field, column in asked.items() if field != column})
    rows.warnings = []  # an id column is not needed
    return rows


def augmented(run: Run) -> Augmented:
    """The part of the pile that UDA and MixText use, augmented; what the folder holds already is taken from there."""
    plan, folder = run.plan, run.folder
    assert plan.unlabeled is not None
    if plan.paraphrases is not None:
        return from_file(plan, plan.paraphrases, run.context)
    pile = plan.unlabeled.select(share_of(plan, np.arange(len(plan.unlabeled))))
    how, versions, key, make = maker(plan, run.context.device)
    parts: list[list[Texts]] = []
    seconds = 0.0
    chunks = list(pile.chunks(PART))
    for number, (start, stop) in enumerate(chunks, start=1):
        part = pile.select(np.arange(start, stop))
        texts = part.digest
        place = job_key("augment", texts=texts, fields=plan.task.fields, part=number, seed=plan.recipe.seed, **key)
        name = f"augmentation {number}/{len(chunks)}  rows {start + 1:,} to {stop:,}"
        if (folder.job_path("augmentations", place) / "texts.parquet").exists():
            run.context.log(f"{name}  already there")
        else:
            with folder.writing("augmentations", place) as beside, progress(name, versions * (stop - start)) as advance:
                made, started = [], time.monotonic()
                for version in range(versions):
                    made.append(in_other_words(plan, part, make, version, number))
                    advance(stop - start)
                _save(beside / "texts.parquet", part, made)
                (beside / TIME).write_text(json.dumps({"seconds": time.monotonic() - started}))
            run.context.log(f"{name}  done")
        parts.append(_load(folder.job_path("augmentations", place) / "texts.parquet", plan.task, versions))
        if (known := folder.job_path("augmentations", place) / TIME).exists():
            seconds += json.loads(known.read_text())["seconds"]
    whole = [
        {field: [text for part in parts for text in part[version][field]] for field in plan.task.fields}
        for version in range(versions)
    ]
    return Augmented(pile, [rows_of(texts, plan.task) for texts in whole], how, seconds)


def share_of(plan: Plan, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many of the candidates as the recipe's share of the pile is, drawn by the first seed, in the pile's order."""
    assert plan.unlabeled is not None
    wanted = max(1, round(plan.recipe.augment.share * len(plan.unlabeled)))
    return np.sort(np.random.default_rng(plan.recipe.seed).permutation(candidates)[:wanted])


def rows_of(texts: Texts, task: Task) -> Rows:
    """Texts as rows of the task."""
    from datasets import Dataset

    return Rows(Dataset.from_dict(texts), task.with_changes(id=None) if task.id else task, "the augmented pile")


def maker(plan: Plan, device: str) -> tuple[str, int, dict[str, Any], Maker]:
    """How texts are augmented: its name, how many versions there are, what it depends on, and the work itself."""
    settings = plan.recipe.augment
    if settings.method == "rewriting":
        length = plan.recipe.max_seq_length
        key = {
            "model": model_key(plan.model),
            "mask_share": settings.mask_share,
            "rewritings": settings.rewritings,
        }
        loaded: list[ClozeModel] = []

        def rewritten(_: int, texts: Sequence[str], seed: int) -> list[str]:
            if not loaded:
                loaded.append(load_model(plan.model, device))
            return rewrite(loaded[0], texts, settings, length, seed)

        how = f"rewriting {100 * settings.mask_share:g}% of the tokens by the masked language model '{plan.model}'"
        return how, settings.rewritings, key | {"length": length, "temperature": settings.temperature}, rewritten
    names = settings.backtranslation
    key = {"models": [[model_key(name) for name in two] for two in names], "temperature": settings.temperature}
    two_of: dict[int, tuple[Translator, Translator]] = {}

    def translated(version: int, texts: Sequence[str], seed: int) -> list[str]:
        if version not in two_of:
            there, back = names[version]
            two_of[version] = Translator(there, device), Translator(back, device)
        return backtranslate(*two_of[version], texts, settings.temperature, seed)

    how = "back-translation by " + "; ".join(f"'{there}' and '{back}'" for there, back in names)
    return how, len(names), key, translated


def in_other_words(plan: Plan, part: Rows, make: Maker, version: int, number: int) -> Texts:
    """One version of a part; every field by itself, each with a seed of its own."""
    found = {}
    for place, field in enumerate(plan.task.fields):
        sequence = np.random.SeedSequence([plan.recipe.seed, number, version, place])
        found[field] = make(version, part.texts(field), int(sequence.generate_state(1)[0]))
    return found


def _save(path: Path, part: Rows, made: list[Texts]) -> None:
    """For people too: the row's id, the version's number, and the fields."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [str(row) for row in part.ids()]
    columns: dict[str, Any] = {"row": ids * len(made), "version": np.repeat(np.arange(len(made)), len(ids))}
    columns |= {f"field_{name}": [text for texts in made for text in texts[name]] for name in made[0]}
    pq.write_table(pa.table(columns), path)


def _load(path: Path, task: Task, versions: int) -> list[Texts]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = len(table) // versions
    columns = {field: table.column(f"field_{field}").to_pylist() for field in task.fields}
    return [{field: columns[field][n * rows : (n + 1) * rows] for field in columns} for n in range(versions)]


def from_file(plan: Plan, paraphrases: Rows, context: RunContext) -> Augmented:
    """Paraphrases joined to the pile, by id or by order; a row with fewer than others has them again."""
    assert plan.unlabeled is not None
    places = _by_id(plan.unlabeled, paraphrases) or _by_order(plan.unlabeled, paraphrases)
    have = np.array([bool(found) for found in places])
    if not have.all():
        context.warn(f"{int((~have).sum()):,} rows of the pile have no paraphrase and are left out.")
    chosen = share_of(plan, np.flatnonzero(have))
    versions = max(len(places[row]) for row in chosen)
    texts = {field: paraphrases.texts(field) for field in plan.task.fields}
    empty = [n for row in chosen for n in places[row] if not any(texts[field][n] for field in texts)]
    if empty:
        raise DataError(
            f"The paraphrase in row {empty[0] + 1:,} of '{paraphrases.source}' is empty; write one or leave it out."
        )
    whole = [
        {field: [texts[field][places[row][version % len(places[row])]] for row in chosen] for field in texts}
        for version in range(versions)
    ]
    how = f"paraphrases of the file '{paraphrases.source}'"
    return Augmented(plan.unlabeled.select(chosen), [rows_of(of_one, plan.task) for of_one in whole], how)


def _by_id(pile: Rows, paraphrases: Rows) -> list[list[int]] | None:
    """Where each row's paraphrases are, by the id column; None where the file has none."""
    if not paraphrases.has_ids:
        return None
    found: dict[str, list[int]] = {}
    for place, row in enumerate(paraphrases.ids()):
        found.setdefault(str(row), []).append(place)
    ids = [str(row) for row in pile.ids()]
    if not any(row in found for row in ids):
        raise DataError(
            f"No row of the pile has a paraphrase in '{paraphrases.source}': the ids there are like "
            f"{quoted(list(found)[:1])}, the pile's like {quoted(ids[:1])}."
        )
    return [found.get(row, []) for row in ids]


def _by_order(pile: Rows, paraphrases: Rows) -> list[list[int]]:
    """The same by the order of the pile's file: all first paraphrases, then all second ones, and so on."""
    if len(paraphrases) % pile.source_rows:
        raise DataError(
            f"The file '{paraphrases.source}' has {len(paraphrases):,} paraphrases for {pile.source_rows:,} rows of "
            f"'{pile.source}'; without an id column ('{pile.task.id or ID}') it needs one for every row, in the same "
            "order, or the same again for second ones."
        )
    starts = range(0, len(paraphrases), pile.source_rows)
    return [[start + int(number) for start in starts] for number in pile.row_numbers()]
