"""Copies of a PyTorch module in which one part is another; all other weights are shared."""

from __future__ import annotations

import copy

from torch import nn


def replace_module(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """A shallow copy of `root` in which the submodule `name` is replaced."""
    clone = copy.copy(root)
    clone._modules = dict(root._modules)
    first, _, rest = name.partition(".")
    child = clone._modules[first]
    assert child is not None
    clone._modules[first] = replace_module(child, rest, module) if rest else module
    return clone
