"""The pile's soft labels (section 3.3, step 2), for people and for distillation.

In: members that have scored the pile, and their weights. Out: `labels.parquet`, every unlabelled row's id, label and
probabilities; and the same numbers as an array that distillation maps. Both are written a stretch at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.ensemble import Ensemble, soft_labels
from clozify.pipeline.run import Run
from clozify.runs.folder import RunFolder
from clozify.runs.keys import job_key
from clozify.utils.atomic import atomic_write
from clozify.utils.npy import npy_writer, open_npy

ROW_GROUP = 131_072  # rows of a part of labels.parquet


@dataclass(frozen=True)
class SoftLabels:
    """Where soft labels are in a run's folder, and a hash of them."""

    key: str
    digest: str

    def load(self, folder: RunFolder) -> NDArray[np.float32]:
        """The numbers, (rows, labels), on the disk."""
        return open_npy(folder.job_path("soft", self.key) / "soft.npy")


def write_soft_labels(run: Run, members: Sequence[dict[str, Any]], weights: Sequence[float]) -> SoftLabels:
    """Combine the members' scores of the pile; every row's soft label is joined to its id."""
    import pyarrow.parquet as pq

    plan, folder = run.plan, run.folder
    assert plan.unlabeled is not None
    temperature = plan.recipe.distill.temperature
    names = [member["folder"].name for member in members]
    key = job_key("soft labels", members=names, weights=list(weights), temperature=temperature)
    scores = Ensemble([open_npy(member["folder"] / "pile.npy") for member in members], weights)
    digest, labels = hashlib.sha256(), plan.task.labels
    writer = None
    with (
        atomic_write(folder.path / "labels.parquet") as tmp_table,
        folder.writing("soft", key) as tmp_folder,
        npy_writer(tmp_folder / "soft.npy", np.float32, len(labels)) as append,
    ):
        for start, part in scores.chunks(ROW_GROUP):
            soft = soft_labels(part, temperature)
            append(soft)
            digest.update(soft.tobytes())
            table = _table(plan.unlabeled, start, soft)
            writer = writer or pq.ParquetWriter(tmp_table, table.schema)
            writer.write_table(table)
        assert writer is not None  # there are unlabelled rows
        writer.close()
    return SoftLabels(key, digest.hexdigest())


def _table(rows: Rows, start: int, soft: NDArray[np.float32]) -> Any:
    import pyarrow as pa

    labels = rows.task.labels
    columns: dict[str, Any] = {"id": rows.id_column(start, start + len(soft))}
    columns["label"] = pa.array(labels).take(pa.array(soft.argmax(axis=-1)))
    columns |= {f"probability_{label}": pa.array(soft[:, n]) for n, label in enumerate(labels)}
    return pa.table(columns)
