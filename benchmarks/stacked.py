"""Would training steps be faster if the matrix products of several members were computed together?

Times the products of one training step's encoder layers (forward, gradient of the input, gradient of the weight) for
one member, and as batched products for several members with weights of their own, each as a CUDA graph.

    python benchmarks/stacked.py [--members 1,2,3,4,6] [--tokens 2304,2560]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

WIDTH, LAYERS = 1024, 24  # of RoBERTa-large
SIZES = {"query, key, value": (3, 1), "attention output": (1, 1), "first": (4, 1), "second": (1, 4)}  # (out, in)
REPEATS = 10


def graph_milliseconds(work: Callable[[], Any]) -> float:
    """The time of a function's kernels, replayed as a CUDA graph."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(REPEATS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / REPEATS


def product_milliseconds(members: int, tokens: int) -> float:
    """The time of a step's products for each member."""
    total = 0.0
    for outputs, inputs in SIZES.values():
        shapes = (tokens, inputs * WIDTH), (tokens, outputs * WIDTH), (outputs * WIDTH, inputs * WIDTH)
        x, y, weight = (torch.randn(members, *shape, device="cuda").bfloat16().squeeze(0) for shape in shapes)
        gradient = torch.empty_like(weight)
        for left, right, out in ((x, weight.mT, None), (y, weight, None), (y.mT, x, gradient)):
            total += graph_milliseconds(partial(repeat_product, left, right, out))
    return total / members


def repeat_product(left: Tensor, right: Tensor, out: Tensor | None) -> None:
    """The same product for every layer."""
    for _ in range(LAYERS):
        torch.matmul(left, right, out=out)


def main(
    members: Annotated[str, typer.Option(help="Numbers of members, separated by commas.")] = "1,2,3,4,6",
    tokens: Annotated[str, typer.Option(help="Tokens in a step, separated by commas.")] = "2304,2560",
) -> None:
    """Print the milliseconds for each member, and the rate."""
    if not torch.cuda.is_available():
        sys.exit("This needs a CUDA device.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| tokens | members | products, ms for each member | TFLOP/s |\n|---|---|---|---|")
    for count in map(int, tokens.split(",")):
        arithmetic = sum(6 * count * outputs * inputs * WIDTH**2 * LAYERS for outputs, inputs in SIZES.values())
        for number in map(int, members.split(",")):
            milliseconds = product_milliseconds(number, count)
            print(f"| {count} | {number} | {milliseconds:.2f} | {arithmetic / milliseconds / 1e9:.0f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
