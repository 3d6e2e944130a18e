"""The soft labels of the unlabelled rows, from the ensemble's scores (section 3.3, step 2).

They are written chunk by chunk: to `labels.parquet`, with every row's id, label and probabilities, and as an array that
distillation reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.distill import soft_labels
from clozify.methods.ensemble import Ensemble
from clozify.pipeline.run import Run
from clozify.runs.folder import RunFolder
from clozify.runs.keys import job_key
from clozify.runs.records import Member
from clozify.utils.atomic import atomic_write
from clozify.utils.checked_files import open_npy
from clozify.utils.npy import create_npy

ROW_GROUP = 131_072  # rows of a row group of labels.parquet; fewer with very many labels


@dataclass(frozen=True)
class SoftLabels:
    """Soft labels in a run's folder, and a hash of them."""

    key: str
    digest: str

    def load(self, folder: RunFolder) -> NDArray[np.float32]:
        """The probabilities, (rows, labels), mapped from the disk."""
        return open_npy(folder.job_path("soft", self.key) / "soft.npy")


def write_soft_labels(
    run: Run, members: Sequence[Member], weights: Sequence[float], decision: Decision, temperature: float | None = None
) -> SoftLabels:
    """Combine the members' scores of the unlabelled rows into soft labels; `weights` has one for each member.

    Without a `temperature` it is the recipe's.
    """
    import pyarrow.parquet as pq

    plan, folder = run.plan, run.folder
    assert plan.unlabeled is not None
    temperature = plan.recipe.distill.temperature if temperature is None else temperature
    key = job_key(
        "soft labels", members=[member.key for member in members], weights=list(weights), temperature=temperature
    )
    ensemble = Ensemble([member.unlabeled_scores() for member in members], weights)
    digest, writer = hashlib.sha256(), None
    with (
        atomic_write(run.results / "labels.parquet") as tmp_table,
        folder.writing("soft", key) as tmp_folder,
    ):
        stored = create_npy(tmp_folder / "soft.npy", np.float32, (len(plan.unlabeled), len(plan.task.labels)))
        for start, scores in ensemble.chunks(chunk_rows(len(plan.task.labels), ROW_GROUP)):
            soft = soft_labels(scores, temperature, decision.multilabel)  # (rows, labels)
            stored[start : start + len(soft)] = soft
            digest.update(soft.tobytes())
            table = _label_table(plan.unlabeled, start, soft, decision.at_temperature(temperature))
            writer = writer or pq.ParquetWriter(tmp_table, table.schema)
            writer.write_table(table)
        assert writer is not None  # there are unlabelled rows
        writer.close()
        del stored  # closes the file before it is moved
    return SoftLabels(key, digest.hexdigest())


def _label_table(rows: Rows, start: int, soft: NDArray[np.float32], decision: Decision) -> Any:
    """Ids, labels and probabilities of consecutive rows as an Arrow table."""
    import pyarrow as pa

    labels = rows.task.labels
    columns: dict[str, Any] = {"id": rows.id_column(start, start + len(soft))}
    columns["label"] = pa.array(decision.names(decision.predict(soft)), pa.string())
    columns |= {f"probability_{label}": pa.array(soft[:, index]) for index, label in enumerate(labels)}
    return pa.table(columns)
