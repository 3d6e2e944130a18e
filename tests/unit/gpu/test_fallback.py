"""Falling back to PyTorch's own implementation is announced."""

from __future__ import annotations

import warnings

import pytest

from clozify.gpu import fallback
from clozify.gpu.fallback import warn_fallback


def test_a_fallback_is_announced_once_with_its_reason(monkeypatch):
    monkeypatch.setattr(fallback, "_warned", set())
    with pytest.warns(UserWarning, match=r"No CUDA graphs here: out of\s+luck\. PyTorch's own"):
        warn_fallback("CUDA graphs", "out of\n luck.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_fallback("CUDA graphs", "another reason")
    with pytest.warns(UserWarning, match="No packing here"):
        warn_fallback("packing", "the reason")
