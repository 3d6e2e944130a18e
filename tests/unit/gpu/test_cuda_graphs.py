"""Shapes of captured steps; the graphs themselves are tested on a GPU, in tests/integration/test_gpu.py."""

from __future__ import annotations

import numpy as np
import pytest

from clozify.gpu.cuda_graphs import pad_last_axis, padded_count, padded_width
from clozify.gpu.features import FEATURES, is_enabled, without


@pytest.mark.parametrize(("width", "longest", "expected"), [(1, 512, 32), (32, 512, 32), (33, 512, 64), (60, 62, 62)])
def test_widths_are_few_and_never_above_the_limit(width, longest, expected):
    assert padded_width(width, longest) == expected


def test_a_step_without_masked_tokens_has_a_shape_too():
    """Short rows and 15% masking: now and then nothing is masked, also in the very first step of a width."""
    capacities: dict[int, int] = {}
    assert padded_count(0, capacities, 32) == 64
    assert padded_count(100, capacities, 32) == 128
    assert padded_count(0, capacities, 32) == 128
    assert padded_count(1, capacities, 64) == 64


def test_the_last_axis_is_padded():
    assert pad_last_axis(np.array([[1, 2], [3, 4]]), 3, 9).tolist() == [[1, 2, 9], [3, 4, 9]]


def test_features_are_switched_off_inside_a_block_only():
    with without("packing"), without("flat_adamw", "fused_linear"):
        assert {feature for feature in FEATURES if not is_enabled(feature)} == {"packing", "flat_adamw", "fused_linear"}
    assert all(map(is_enabled, FEATURES))
    with pytest.raises(ValueError, match="no GPU feature"), without("pakcing"):
        pass
    with pytest.raises(ValueError, match="no GPU feature"):
        is_enabled("pakcing")
