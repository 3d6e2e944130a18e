"""The attention kernels for short rows compute the formula; Triton's interpreter runs them on a CPU."""

import itertools
import os
import subprocess
import sys

import pytest
import torch

from clozify.gpu import short_attention as module
from clozify.gpu.features import without
from clozify.gpu.fused_linear import concat_columns
from clozify.gpu.short_attention import MAX_LENGTH, dropout_seeds, short_attention, uses_short_attention

LENGTHS = (5, 70, 1, 33)  # one of them has more than a tile
HEADS, SIZE = 3, 16
BITS = 0xFFFFFFFF


@pytest.mark.slow
def test_the_kernels_match_the_formula():
    """In a process of its own, since Triton reads its environment variable when it is imported."""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, __file__], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


def test_long_rows_and_unusual_heads_are_left_to_flash_attention():
    """Decided before a device is asked for."""
    assert not uses_short_attention(torch.zeros(4, 2, 64), MAX_LENGTH + 1, 0.0)
    assert not uses_short_attention(torch.zeros(4, 2, 24), 8, 0.0)
    with without("short_attention"):
        assert not uses_short_attention(torch.zeros(4, 2, 64), 8, 0.0)


def test_seeds_are_drawn_anew_and_depend_on_the_seed_of_pytorch():
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append([int(drawn) for drawn in itertools.islice(dropout_seeds("cpu"), 80)])
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert len(set(draws[0])) == 80


def test_columns_of_one_tensor_are_concatenated_without_a_copy():
    whole = torch.arange(24.0).view(1, 2, 12)
    parts = whole.split([4, 4, 4], dim=-1)
    assert concat_columns(parts).data_ptr() == whole.data_ptr()
    assert torch.equal(concat_columns(parts), whole)
    for other in (parts[::-1], parts[:2], [part.clone() for part in parts]):
        assert torch.equal(concat_columns(other), torch.cat(list(other), dim=-1))


def kept(seed, tokens, heads, keys, dropout):
    """Whether dropout keeps entries, (heads, tokens, keys), by the kernel's hash written out for Python's integers."""

    def one(token, head, key):
        x = ((((token * heads + head) * 1024) & BITS) ^ seed) + key & BITS
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & BITS
        x = ((x ^ (x >> 15)) * 0x846CA68B) & BITS
        return x >= int(dropout * 2**32)

    return torch.tensor([[[one(token, head, key) for key in keys] for token in tokens] for head in range(heads)])


def row_attention(qkv, seed, first, dropout):
    """D(softmax(Q K^T / sqrt(size))) V of one row, whose first token has this index."""
    q, k, v = qkv.permute(1, 2, 0, 3)  # (heads, length, size) each
    p = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    length = len(qkv)
    keep = kept(seed, range(first, first + length), qkv.shape[2], range(length), dropout).to(qkv.device)
    return ((p * keep / (1 - dropout)) @ v).transpose(0, 1)


def compare_with_formula(dropout, close, dtype=torch.float32, device="cpu"):
    """Compare the output and the gradients with the formula in float64, under the same dropout mask."""
    torch.manual_seed(0)
    cu_seqlens = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32, device=device)
    qkv = torch.randn(sum(LENGTHS), 3, HEADS, SIZE).to(device, dtype).requires_grad_()
    gradient = torch.randn(sum(LENGTHS), HEADS, SIZE).to(device, dtype)
    seeds = iter([torch.tensor(7, device=device)])
    actual = short_attention(*qkv.unbind(1), cu_seqlens, max(LENGTHS), dropout, None, seeds)
    exact = qkv.detach().double().requires_grad_()
    starts = cu_seqlens[:-1].tolist()
    rows = [row_attention(row, 7, first, dropout) for row, first in zip(exact.split(LENGTHS), starts, strict=True)]
    expected = torch.cat(rows)
    (actual_gradient,) = torch.autograd.grad(actual, qkv, gradient)
    (expected_gradient,) = torch.autograd.grad(expected, exact, gradient.double())
    for one, other in ((actual, expected), (actual_gradient, expected_gradient)):
        assert one.dtype == dtype
        assert (one - other).abs().max() <= close * other.abs().max()


def test_dropout_is_independent_between_entries_heads_and_seeds():
    """The rate is right, and entries are independent of their neighbours, of other heads and of other seeds."""
    gone = (~torch.stack([kept(seed, range(40), 2, range(64), 0.1) for seed in (7, 8)])).float()
    assert abs(float(gone.mean()) - 0.1) < 0.01
    shifted = [(gone.roll(distance, axis), gone) for axis in (2, 3) for distance in (1, 2, 16)]
    for one, other in [(gone[0], gone[1]), (gone[:, 0], gone[:, 1]), *shifted]:
        assert abs(float((one * other).mean()) - 0.01) < 0.005


def plain_attention(q, k, v, cu_seqlens, *_):
    """Attention within each row, as flash attention computes it on a GPU."""
    lengths = cu_seqlens.diff().tolist()
    rows = zip(*(tensor.transpose(0, 1).split(lengths, dim=1) for tensor in (q, k, v)), strict=True)
    outputs = [torch.nn.functional.scaled_dot_product_attention(*row) for row in rows]
    return torch.cat(outputs, dim=1).transpose(0, 1)


def probe_kernels():
    """The probe passes, and leaves PyTorch's random numbers alone: a first run would differ from a second."""
    module.flash_attention = plain_attention
    state = torch.get_rng_state()
    for has_dropout in (False, True):
        for needs_gradient in (False, True):
            with torch.set_grad_enabled(needs_gradient):
                assert module._probe(torch.zeros(1, 1, SIZE), has_dropout)
    assert torch.equal(torch.get_rng_state(), state)
    module.flash_attention = lambda *arguments: 2 * plain_attention(*arguments)
    with pytest.warns(UserWarning, match="something else"):
        assert not module._probe(torch.zeros(1, 1, SIZE), False)


if __name__ == "__main__":
    compare_with_formula(0.0, 1e-5)
    compare_with_formula(0.2, 1e-5)
    probe_kernels()
