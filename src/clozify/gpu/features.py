"""The names of the GPU optimisations, and a way to switch single ones off for benchmarks and tests.

The recipe's `kernels = "auto"` enables all of them, `kernels = "torch"` none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

FEATURES = frozenset(
    {
        "cuda_graphs",
        "packing",
        "master_weights",
        "flat_adamw",
        "fused_linear",
        "direct_gradients",
        "fused_layernorm",
        "fp8_scoring",
        "short_attention",
    }
)
_disabled: ContextVar[frozenset[str]] = ContextVar("disabled_gpu_features", default=frozenset())


def is_enabled(feature: str) -> bool:
    """Whether a feature may be used; False inside `without(feature)`."""
    if feature not in FEATURES:
        raise ValueError(f"There is no GPU feature '{feature}'; there are {', '.join(sorted(FEATURES))}.")
    return feature not in _disabled.get()


@contextmanager
def without(*features: str) -> Iterator[None]:
    """Switch features off for models that are loaded, trained and used inside; for benchmarks and tests only.

    Whether a model supports packing is determined once, when it is first used. `fused_linear` and `fused_layernorm`
    need bf16 weights when a model is trained, so `without("master_weights")` switches them off there, too, and
    `direct_gradients` with them.
    """
    if unknown := set(features) - FEATURES:
        raise ValueError(f"There is no GPU feature {sorted(unknown)}; there are {', '.join(sorted(FEATURES))}.")
    token = _disabled.set(_disabled.get() | set(features))
    try:
        yield
    finally:
        _disabled.reset(token)
