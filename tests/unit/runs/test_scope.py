"""The file with the reference rows of the out-of-scope score."""

import numpy as np
import pytest

from clozify.errors import RunError
from clozify.methods.scope import Scope
from clozify.runs.scope import MAX_ROWS, SCOPE_FILE, load_scope, max_reference_rows, save_scope


@pytest.mark.parametrize("hidden", [64, 384, 768, 1024, 4096])
def test_the_file_stays_small(hidden, tmp_path):
    rows = max_reference_rows(hidden)
    assert 100 < rows <= MAX_ROWS
    states = np.random.default_rng(0).normal(size=(rows, hidden))
    save_scope(tmp_path, Scope.fit(states, np.zeros(rows, dtype=bool)))
    assert (tmp_path / SCOPE_FILE).stat().st_size < 2_000_000


def test_what_is_written_is_read_again(tmp_path):
    assert load_scope(tmp_path) is None
    states = np.random.default_rng(0).normal(size=(20, 8))
    scope = Scope.fit(states, np.arange(20) < 5)
    save_scope(tmp_path, scope)
    loaded = load_scope(tmp_path)
    assert loaded is not None
    assert loaded.scores(states).tolist() == scope.scores(states).tolist()
    assert loaded.threshold(0.2) == scope.threshold(0.2)


@pytest.mark.parametrize("damage", ["cut off", "other arrays", "other shapes"])
def test_a_damaged_file_is_named(damage, tmp_path):
    from safetensors.numpy import save_file

    save_scope(tmp_path, Scope.fit(np.eye(6), np.zeros(6, dtype=bool)))
    path = tmp_path / SCOPE_FILE
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:40])
    else:
        name = "mean" if damage == "other shapes" else "something"
        arrays = {
            "mean": np.zeros(6, np.float32),
            "vectors": np.eye(6, dtype=np.int8),
            name: np.zeros(3, np.float32),
        }
        save_file(arrays | ({"in_scope": np.zeros(3, np.float32)} if name == "mean" else {}), path)
    with pytest.raises(RunError, match=r"scope\.safetensors' is damaged"):
        load_scope(tmp_path)
