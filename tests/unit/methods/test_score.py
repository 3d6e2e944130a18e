"""The order in which chunks of rows are launched and collected."""

import numpy as np
import pytest
import torch

from clozify.methods.score import _LaunchedChunk, _one_late


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_chunk_is_collected_after_the_next_one_was_launched(count):
    """While the host prepares a chunk, the GPU computes the one before."""
    events = []

    def launch():
        for index in range(count):
            events.append(f"launch {index}")
            yield _LaunchedChunk(index, (1, 1, 1))

    for chunk in _one_late(launch()):
        assert chunk.scores().shape == (1, 1, 1)
        events.append(f"collect {chunk.start}")
    late = ["launch 0", "launch 1", "collect 0", "launch 2", "collect 1", "collect 2"]
    assert events == {0: [], 1: ["launch 0", "collect 0"], 3: late}[count]


def test_a_chunk_s_scores_are_put_where_their_rows_are():
    chunk = _LaunchedChunk(10, (2, 3, 2))
    chunk.batches.append((1, np.array([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)))
    expected = np.zeros((2, 3, 2), dtype=np.float32)
    expected[1, 2], expected[1, 0] = (1, 2), (3, 4)
    assert (chunk.scores() == expected).all()
