"""Warns when a GPU feature cannot be used and PyTorch's own implementation computes instead."""

from __future__ import annotations

import warnings

_warned: set[str] = set()  # features that this process has warned about


def warn_fallback(feature: str, reason: str) -> None:
    """Warn that `feature` is unavailable because of `reason`; once per feature and process."""
    if feature in _warned:
        return
    _warned.add(feature)
    reason = " ".join(reason.split())[:200].rstrip(". ")
    warnings.warn(
        f"No {feature} here: {reason}. PyTorch's own implementation computes the same instead, more slowly.",
        stacklevel=3,
    )
