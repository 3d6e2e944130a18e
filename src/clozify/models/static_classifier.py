"""A classifier of word and word-pair vectors that are summed up: NumPy and SciPy alone, no PyTorch.

With F(x) the features of a row, repeated ones included (`hashed_words.py`), a vector v_f with a number for each label
and a weight w_f,

    s(x) = sum_{f in F(x)} v_f / sqrt(sum_{f in F(x)} w_f^2) + b.

`methods/static_student.py` has the training; w_f is the inverse document frequency, which v_f includes. A feature that
the training has not kept counts nothing. Its folder holds `config.json`, `model.safetensors` and the task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import ModelError
from clozify.models.classifier_folder import TASK_FILE, check_labels, load_classifier_task
from clozify.models.hashed_words import BATCH_ROWS, hash_texts
from clozify.utils.atomic import atomic_write
from clozify.utils.checked_files import read_json

MODEL_TYPE, MODEL_FILE = "clozify-static", "model.safetensors"
SLOT_BITS = 20  # a key's first bits are its slot in a table; no two features share one
SHIFT = np.uint64(64 - SLOT_BITS)
NO_FEATURES = 1e-12  # the norm of a row without a known feature


@dataclass(frozen=True)
class StaticWeights:
    """What the training of a static classifier returns, and its file holds."""

    keys: NDArray[np.uint64]  # (features,)
    vectors: NDArray[np.float32]  # v, (features, labels)
    weights: NDArray[np.float32]  # w, (features,)
    bias: NDArray[np.float32]  # b, (labels,)

    def divided_by(self, temperature: float) -> StaticWeights:
        """The weights of the same classifier with its scores divided by a temperature."""
        return StaticWeights(self.keys, self.vectors / temperature, self.weights, self.bias / temperature)


class FeatureTable:
    """Finds the index of features by their keys; two keys must not have the same slot."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._unknown = len(keys)
        self._keys = np.append(keys, np.uint64(0))
        self._slots = np.full(1 << SLOT_BITS, self._unknown, dtype=np.int32)
        self._slots[keys >> SHIFT] = np.arange(len(keys), dtype=np.int32)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The index of each key, or the number of features for an unknown one."""
        indices: NDArray[np.int32] = self._slots[keys >> SHIFT]
        indices[self._keys[indices] != keys] = self._unknown
        return indices

    def count(self, texts: Sequence[str]) -> Iterator[csr_array]:
        """Yield how often batches of texts have each feature, (texts, features + 1); the last column is the others."""
        for features in hash_texts(texts):
            indices = self.find(features.keys)
            ones = np.ones(len(indices), dtype=np.float32)
            yield csr_array((ones, indices, features.offsets), shape=(len(features.offsets) - 1, self._unknown + 1))


class StaticClassifier:
    """A static classifier for one task; its interface is that of `Classifier` where rows are scored."""

    precision: Literal["float32"] = "float32"

    def __init__(self, weights: StaticWeights, task: Task) -> None:
        self.weights, self.task = weights, task

    @cached_property
    def _table(self) -> FeatureTable:
        return FeatureTable(self.weights.keys)

    @cached_property
    def _columns(self) -> NDArray[np.float32]:
        """v and w^2 of each feature, zeros for unknown ones: (features + 1, labels + 1)."""
        columns = np.zeros((len(self.weights.keys) + 1, len(self.weights.bias) + 1), dtype=np.float32)
        columns[:-1, :-1] = self.weights.vectors
        columns[:-1, -1] = self.weights.weights**2
        return columns

    def score_texts(self, texts: Mapping[str, Sequence[str]]) -> NDArray[np.float32]:
        """Raw scores of texts by field, (rows, labels)."""
        sums = np.add.reduce([self._sum(texts[field]) for field in self.task.fields])
        norms = np.sqrt(np.maximum(sums[:, -1:], NO_FEATURES))
        return np.asarray(sums[:, :-1] / norms + self.weights.bias, dtype=np.float32)

    def _sum(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The sum of the columns of each text's features: (texts, labels + 1)."""
        sums = np.empty((len(texts), self._columns.shape[1]), dtype=np.float32)
        for index, counts in enumerate(self._table.count(texts)):
            sums[index * BATCH_ROWS :][: counts.shape[0]] = counts @ self._columns
        return sums

    def score_rows(
        self,
        rows: Rows,
        token_budget: int = 0,  # noqa: ARG002  (of classifiers that compute in batches of tokens)
        advance: Callable[[int], None] = lambda count: None,
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield `(start, scores)` of consecutive chunks of rows; scores are (rows, labels)."""
        for start, stop in rows.chunks():
            yield start, self.score_texts({field: rows.texts(field, start, stop) for field in self.task.fields})
            advance(stop - start)

    def save(self, folder: Path) -> None:
        """Write the folder, with the task file; vectors and weights in float16."""
        folder.mkdir(parents=True, exist_ok=True)
        labels = dict(enumerate(self.task.labels))
        config = {
            "model_type": MODEL_TYPE,
            "id2label": {str(index): label for index, label in labels.items()},
            "label2id": {label: index for index, label in labels.items()},
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        save_weights(folder, self.weights)
        self.task.save(folder / TASK_FILE)


def save_weights(folder: Path, weights: StaticWeights) -> None:
    """Write a static classifier's safetensors file; it is replaced, since others may link to it."""
    from safetensors.numpy import save_file

    arrays = {
        "keys": weights.keys,
        "vectors": weights.vectors.astype(np.float16),
        "weights": weights.weights.astype(np.float16),
        "bias": weights.bias.astype(np.float32),
    }
    with atomic_write(folder / MODEL_FILE) as tmp_path:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tmp_path)


def is_static(folder: Path) -> bool:
    """Whether a classifier's folder holds a static one."""
    path = folder / "config.json"
    return path.is_file() and read_json(path).get("model_type") == MODEL_TYPE


def load_static_classifier(folder: Path) -> StaticClassifier:
    """The static classifier that `save` wrote; raises an error that names a faulty file."""
    task, config = load_classifier_task(folder), read_json(folder / "config.json")
    names = config.get("id2label")
    check_labels(folder, list(names.values()) if isinstance(names, dict) else [], task)
    return StaticClassifier(_load_weights(folder / MODEL_FILE, len(task.labels)), task)


def _load_weights(path: Path, labels: int) -> StaticWeights:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
        keys, vectors, weights, bias = (arrays[name] for name in ("keys", "vectors", "weights", "bias"))
        shapes = [array.shape for array in (keys, vectors, weights, bias)]
        if shapes != [(len(keys),), (len(keys), labels), (len(keys),), (labels,)] or keys.dtype != np.uint64:
            raise ValueError("its arrays do not fit together")
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"The file '{path}' is damaged ({reason}); copy the folder again, or train again.") from None
    return StaticWeights(keys, vectors.astype(np.float32), weights.astype(np.float32), bias.astype(np.float32))
