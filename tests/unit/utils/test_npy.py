"""Arrays in files: what is written in parts is what NumPy would have written at once."""

import numpy as np
import pytest

from clozify.utils.checked_files import open_npy
from clozify.utils.npy import cast_scores, create_npy, npy_writer


@pytest.mark.parametrize(("width", "kind"), [(None, np.int32), (3, np.float32), (2, np.float16), (None, np.int64)])
def test_a_file_that_grew_is_the_file_that_numpy_saves(width, kind, tmp_path):
    """A head with the wrong number of rows would make the last ones vanish, or garbage appear."""
    shape = (1000,) if width is None else (1000, width)
    whole = np.random.default_rng(0).normal(size=shape).astype(kind)
    with npy_writer(tmp_path / "parts.npy", kind, width) as append:
        for part in np.split(whole, [1, 2, 500, 500]):
            append(part)
    np.save(tmp_path / "whole.npy", whole)
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert np.array_equal(open_npy(tmp_path / "parts.npy"), whole)


def test_a_file_without_rows_can_be_read(tmp_path):
    with npy_writer(tmp_path / "none.npy", np.int32):
        pass
    assert open_npy(tmp_path / "none.npy").tolist() == []


@pytest.mark.parametrize("rows", [0, 1000])
def test_a_file_of_known_length_is_the_file_that_numpy_saves(rows, tmp_path):
    scores = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float16)
    created = create_npy(tmp_path / "created.npy", "float16", scores.shape)
    created[500:], created[:500] = scores[500:], scores[:500]
    del created
    np.save(tmp_path / "saved.npy", scores)
    assert np.array_equal(open_npy(tmp_path / "created.npy"), scores)
    if rows:
        assert (tmp_path / "created.npy").read_bytes() == (tmp_path / "saved.npy").read_bytes()


def test_rows_that_do_not_lie_in_a_row_in_memory_are_written_as_they_read(tmp_path):
    across = np.arange(12, dtype=np.float32).reshape(3, 4).T
    with npy_writer(tmp_path / "a.npy", np.float32, 3) as append:
        append(across)
    assert np.array_equal(open_npy(tmp_path / "a.npy"), across)


def test_scores_in_half_the_bits_never_become_infinite():
    """Infinity less infinity is no number, and a softmax over it would spoil the soft labels without a word."""
    scores = np.array([[1e6, -1e6, 1.5]], dtype=np.float32)
    half = cast_scores(scores, "float16")
    assert half.dtype == np.float16
    assert np.isfinite(half).all()
    assert half[0, 2] == 1.5
    assert cast_scores(scores, "float32") is scores
