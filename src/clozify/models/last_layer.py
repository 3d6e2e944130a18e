"""An encoder's last layer at one position of each row, where no other state is read.

A row's scores depend on the state at its mask, a classifier's on the first state. The last layer needs keys and values
of all tokens, but queries, and everything after the attention, at that position alone. Used for scores on a CPU; in
trainings with frozen layers everything after the attention's module (`GatherOutput`).

Gain (benchmarks/last_layer.py, clozify-small with 6 layers, two cores): 1.08 to 1.16 times as many rows a second;
`GatherOutput` alone 1.05 to 1.12. An ONNX export gains as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clozify.models.modules import replace_module

Positions = Tensor | int  # (rows,), or the same one in all rows


class GatherOutput(nn.Module):
    """An attention module, whatever its architecture, followed by a selection of one position of each row."""

    def __init__(self, attention: nn.Module, positions: Positions) -> None:
        super().__init__()
        self.attention, self.positions = attention, positions

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The attention's output at the positions: (rows, 1, hidden)."""
        output = self.attention(*args, **kwargs)
        states = output[0] if isinstance(output, tuple) else output
        states = at_positions(states, self.positions)
        return (states, *output[1:]) if isinstance(output, tuple) else states


class _Projections(NamedTuple):
    """The linear layers of an attention module, and its last steps."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    dropout: nn.Module
    layernorm: nn.Module


def _projections(attention: Any) -> tuple[_Projections, int]:
    """The parts of an attention module of BERT's kind or of MPNet, and its number of heads.

    Raises `AttributeError` for other modules.
    """
    if hasattr(attention, "attn"):
        own, last = attention.attn, attention
        parts = _Projections(own.q, own.k, own.v, own.o, last.dropout, last.LayerNorm)
    else:
        own, last = attention.self, attention.output
        parts = _Projections(own.query, own.key, own.value, last.dense, last.dropout, last.LayerNorm)
    return parts, own.num_attention_heads


class GatherQueries(nn.Module):
    """What an attention module of BERT's kind or of MPNet computes, with queries at one position of each row alone.

    Without dropout of attention probabilities, so not for training.
    """

    def __init__(self, attention: nn.Module, positions: Positions) -> None:
        super().__init__()
        self.positions = positions
        self.parts, self.heads = _projections(attention)

    def forward(
        self, states: Tensor, attention_mask: Tensor | None = None, position_bias: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """The attention's output at the positions, (rows, 1, hidden), of the layer's input, (rows, width, hidden)."""
        read = at_positions(states, self.positions)  # (rows, 1, hidden)
        query, key, value = (
            layer(inputs).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (rows, heads, 1 or width, head)
            for layer, inputs in zip(self.parts[:3], (read, states, states), strict=True)
        )
        biases = [self._at_queries(bias) for bias in (attention_mask, position_bias) if bias is not None]
        mask = sum(biases[1:], biases[0]) if biases else None  # (rows, heads or 1, 1, width)
        context = nn.functional.scaled_dot_product_attention(query, key, value, mask)  # (rows, heads, 1, head)
        output = self.parts.output(context.transpose(1, 2).flatten(2))
        return self.parts.layernorm(self.parts.dropout(output) + read), None

    def _at_queries(self, bias: Tensor) -> Tensor:
        """What is added to the attention's logits, (rows, heads or 1, width or 1, width), of the computed queries."""
        return bias if bias.shape[2] == 1 else at_positions(bias.transpose(1, 2), self.positions).transpose(1, 2)


Gather = Callable[[nn.Module, Positions], nn.Module]


def at_positions(states: Tensor, positions: Positions) -> Tensor:
    """(rows, width, ...) -> (rows, 1, ...): one position of each row."""
    if isinstance(positions, int):
        return states[:, positions : positions + 1]
    return states[torch.arange(len(states), device=states.device), positions][:, None]


def layer_list(encoder: Any) -> tuple[str, nn.ModuleList] | None:
    """The name and the list of an encoder's layers; None where it has no such list."""
    if not isinstance(encoder, nn.Module):  # but a graph of ONNX
        return None
    count = getattr(encoder.config, "num_hidden_layers", 0)
    lists = [(name, module) for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)]
    matching = [(name, module) for name, module in lists if len(module) == count]
    return matching[0] if len(matching) == 1 else None


class LastLayer(NamedTuple):
    """How the last layer of an encoder computes one position of each row."""

    attention: str  # the name of its attention module
    gather: Gather

    def reading(self, module: nn.Module, positions: Positions, prefix: str = "") -> nn.Module:
        """A shallow copy of the encoder whose states are those at `positions`: (rows, 1, hidden).

        `module` is the encoder, or a module in which it has the name `prefix`.
        """
        name = prefix + self.attention
        return replace_module(module, name, self.gather(module.get_submodule(name), positions))


def find_last_layer(
    encoder: Any, layers: tuple[str, nn.ModuleList], states: Callable[[nn.Module], Tensor], gathers: tuple[Gather, ...]
) -> LastLayer | None:
    """The first of `gathers` with which an encoder has the same states at one position of each row; None without any.

    `layers` are the encoder's, with their name in it. `states` runs the encoder, or a copy of it, on sample rows:
    (rows, width, hidden).
    """
    name, modules = layers
    if not hasattr(modules[-1], "attention"):
        return None
    with torch.no_grad():
        expected = states(encoder)
        positions = torch.arange(1, len(expected) + 1, device=expected.device)
        expected = at_positions(expected, positions)
        for gather in gathers:
            last = LastLayer(f"{name}.{len(modules) - 1}.attention", gather)
            try:
                read = states(last.reading(encoder, positions))
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                continue
            if read.shape == expected.shape and torch.allclose(read, expected, atol=1e-4, rtol=1e-3):
                return last
    return None
