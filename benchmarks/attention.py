"""Attention for packed batches of short rows: clozify's kernels against PyTorch's flash attention on one GPU.

Microseconds for one layer of RoBERTa-large's shape (16 heads of 64), replayed as a CUDA graph: forward for a batch of
labelling, forward and backward with dropout for a training step of 16 rows. Rows have Yelp's lengths: CLOZIFY_YELP
names a file of them; else sample text is cut to them. `--tiles` also tries other tiles.

    CLOZIFY_YELP=test.csv python benchmarks/attention.py [--tiles]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
import torch
import transformers
import typer
from scoring import sample
from torch import Tensor

from clozify.gpu.kernels import attention
from clozify.gpu.packing import padded_length
from clozify.gpu.short_attention import flash_attention
from clozify.models.builtin import builtin_folder

HEADS, SIZE, MAX_LENGTH = 16, 64, 256
LABELLING_TOKENS, TRAINING_ROWS = 65_536, 16
DROPOUT, SCALE = 0.1, SIZE**-0.5
REPLAYS, CALLS = 20, 20
Options = dict[str, int]


def microseconds(work: Callable[[], object]) -> float:
    """The median time of a call, in a CUDA graph of several."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / CALLS)
    return float(np.median(times))


class Batch:
    """Random queries, keys and values of rows with these lengths, as one product computes them."""

    def __init__(self, lengths: list[int]) -> None:
        tokens = sum(lengths)
        self.cu_seqlens = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device="cuda")
        self.qkv = torch.randn(tokens, 3, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
        self.gradient = torch.randn(tokens, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
        self.seed = torch.tensor(7, device="cuda")

    def forward(self, options: Options, dropout: float = 0.0, needs_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """clozify's forward pass."""
        arguments = self.cu_seqlens, MAX_LENGTH, self.seed, dropout, SCALE, needs_gradient
        q, k, v = self.qkv.unbind(1)
        return attention.forward(q, k, v, *arguments, options)

    def backward(self, o: Tensor, logsumexp: Tensor, options: Options) -> Tensor:
        """clozify's backward pass."""
        q, k, v = self.qkv.unbind(1)
        arguments = o, logsumexp, self.cu_seqlens, MAX_LENGTH, self.seed, DROPOUT, SCALE
        return attention.backward(self.gradient, q, k, v, *arguments, options)

    def flash(self, dropout: float = 0.0) -> Tensor:
        """PyTorch's forward pass."""
        q, k, v = self.qkv.unbind(1)
        return flash_attention(q, k, v, self.cu_seqlens, MAX_LENGTH, dropout, SCALE)


def row_lengths() -> list[int]:
    """Tokens of Yelp's rows."""
    rows = sample(2500, "yelp-full")
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    ids = tokenizer(list(rows.texts("text")), truncation=True, max_length=MAX_LENGTH)["input_ids"]
    return [len(row) for row in ids]


def tiles() -> Iterator[Options]:
    """Tiles to try."""
    for block_n, stages in itertools.product((32, 64, 128), (1, 2, 3)):
        yield {"block_m": 64, "block_n": block_n, "num_warps": 4, "num_stages": stages}
    for warps, stages in itertools.product((4, 8), (2, 3)):
        yield {"block_m": 128, "block_n": 64, "num_warps": warps, "num_stages": stages}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to the expected."""
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def compare(name: str, ours: Callable[[Options], object], options: Options, others: bool) -> None:
    """Print the time of clozify's kernel, with other tiles where asked for."""
    print(f"| {name}, clozify | {microseconds(lambda: ours(options)):.1f} |", flush=True)
    times = {}
    for other in tiles() if others else ():
        try:
            times[tuple(other.values())] = microseconds(lambda other=other: ours(other))  # type: ignore[misc]
        except Exception as error:  # a tile that the GPU has no room for
            print(f"  {other}: {type(error).__name__}", file=sys.stderr)
    for tile, time in sorted(times.items(), key=lambda item: item[1])[:12]:
        print(f"|   queries, keys, warps, stages: {tile} | {time:.1f} |", flush=True)


def main(others: Annotated[bool, typer.Option("--tiles", help="Try other tiles, too.")] = False) -> None:
    """Print the times."""
    if not torch.cuda.is_available():
        sys.exit("This needs a CUDA device.")
    lengths, rng = row_lengths(), np.random.default_rng(0)
    ends = np.cumsum(rng.choice(lengths, 2000))
    count = int(np.searchsorted(ends, LABELLING_TOKENS))
    labelling = Batch(np.diff([0, *ends[:count]]).tolist())
    rows = rng.choice(lengths, TRAINING_ROWS).tolist()
    training = Batch([*rows, padded_length(sum(rows) + 1) - sum(rows)])
    error = relative_error(labelling.forward(attention.FORWARD)[0], labelling.flash())
    print(f"{torch.cuda.get_device_name()}, rows of {np.mean(lengths):.0f} tokens; error relative to flash {error:.4f}")
    print(f"| microseconds for {len(labelling.qkv):,} and {len(training.qkv):,} tokens | |\n|---|---|")
    print(f"| labelling, flash attention | {microseconds(labelling.flash):.1f} |")
    compare("labelling", labelling.forward, attention.FORWARD, others)
    print(f"| training, forward, flash attention | {microseconds(lambda: training.flash(DROPOUT)):.1f} |")
    compare("training, forward", lambda options: training.forward(options, DROPOUT, True), attention.FORWARD, others)
    qkv = training.qkv.requires_grad_()
    both = lambda: torch.autograd.grad(training.flash(DROPOUT), qkv, training.gradient)  # noqa: E731
    print(f"| training, forward, backward and concatenated gradients, flash attention | {microseconds(both):.1f} |")
    with torch.no_grad():
        saved = training.forward(attention.FORWARD, DROPOUT, True)
        compare("training, backward", lambda options: training.backward(*saved, options), attention.BACKWARD, others)


if __name__ == "__main__":
    typer.run(main)
