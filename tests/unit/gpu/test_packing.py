"""Packed batches of several members have the same length for each, without long or empty rows of padding."""

import numpy as np
import pytest

from clozify.gpu.packing import LENGTH_MULTIPLE, pack, pack_parts
from clozify.prompts.encode import Batch


def a_batch(lengths, width, seed):
    rng = np.random.default_rng(seed)
    attention = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(attention, rng.integers(10, 99, attention.shape), 1)
    return Batch(np.arange(len(lengths)), ids, attention, attention.copy(), np.zeros(len(lengths), dtype=np.int64))


@pytest.mark.parametrize("lengths", [[[5, 3], [2, 9]], [[256, 256], [1, 1]], [[255] * 8, [1] * 8], [[127], [128]]])
def test_every_part_has_the_same_length_and_its_own_rows(lengths):
    batches = [a_batch(of_batch, max(of_batch), seed) for seed, of_batch in enumerate(lengths)]
    packed = pack_parts(batches, 1, max_length=256)
    ids, bounds = packed.arrays["input_ids"][0], packed.arrays["cu_seqlens"]
    length, rows = len(ids) // len(batches), len(lengths[0])
    assert length % LENGTH_MULTIPLE == 0
    assert bounds[0] == 0
    assert bounds[-1] == len(ids)
    assert set(range(0, len(ids), length)) <= set(bounds.tolist())  # no row belongs to two parts
    assert np.diff(bounds).min() >= 1
    assert np.diff(bounds).max() <= 256
    for part, batch in enumerate(batches):
        for row, count in enumerate(lengths[part]):
            start = packed.start[part * rows + row]
            assert start // length == part
            assert start in bounds
            assert ids[start : start + count].tolist() == batch.input_ids[row, :count].tolist()
            assert packed.arrays["row_positions"][0, start : start + count].tolist() == list(range(count))
            assert packed.arrays["token_type_ids"][0, start : start + count].all()
    assert (ids == 1).sum() == len(ids) - sum(map(sum, lengths))


@pytest.mark.parametrize(("tokens", "length"), [(1, 128), (127, 128), (128, 256), (1023, 1024), (1024, 1280)])
def test_one_batch_is_padded_by_at_least_a_token_to_one_of_few_lengths(tokens, length):
    packed = pack(a_batch([tokens], tokens, 0), 1, pad_length=True)
    assert packed.arrays["cu_seqlens"].tolist() == [0, tokens, length]
    assert packed.arrays["input_ids"].shape == (1, length)
    assert pack(a_batch([tokens], tokens, 0), 1).arrays["cu_seqlens"].tolist() == [0, tokens]
