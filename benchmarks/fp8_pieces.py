"""How fast are candidates for GPU kernels, one by one? Needs PyTorch and Triton only; about a minute on an H200.

Labelling: fp8 products against bf16, kernels that quantise as they compute a GELU or a layer norm, attention over short
rows. Training: the products of a layer, alone, stacked for several members, with the weights' gradients on a second
stream; AdamW beside a forward pass; gradient norms. Shapes are RoBERTa-large's, batches as in `benchmarks/gpu.py`.

    python benchmarks/fp8_pieces.py [--only products,attention]
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

TOKENS, STEP_TOKENS = 65_536, 2_560  # of a batch that is labelled, of a training step
WIDTH, INNER, HEADS, HEAD = 1024, 4096, 16, 64
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
SHAPES = {"qkv": (1024, 3072), "out": (1024, 1024), "up": (1024, 4096), "down": (4096, 1024)}
TABLE: list[str] = []
BEGAN = time.perf_counter()


def say(name: str, milliseconds: float, note: str = "") -> None:
    line = f"{name:46s} {1000 * milliseconds:9.1f} us  {note}"
    TABLE.append(line)
    print(f"[{time.perf_counter() - BEGAN:5.1f}] {line}", flush=True)


def timed(work: Callable[[], object], repeats: int = 10) -> float:
    """Median milliseconds by events."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def timed_graph(work: Callable[[], object], repeats: int = 10) -> float:
    """Median milliseconds of a CUDA graph of the work: no gaps between launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    result = timed(graph.replay, repeats)
    del graph
    return result


def rate(milliseconds: float, flop: float) -> str:
    return f"{flop / milliseconds / 1e9:6.0f} TFLOP/s"


def error(x: Tensor, reference: Tensor) -> str:
    difference = (x.double() - reference.double()).norm() / reference.double().norm()
    return f"error {float(difference):.1e}"


# --- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def quantize_row(y, out, scales, row, size, mask, block: tl.constexpr):
    columns = tl.arange(0, block)
    scale = tl.maximum(tl.max(tl.abs(y), axis=0), 1e-12) / 448.0
    tl.store(out + row.to(tl.int64) * size + columns, (y / scale).to(out.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)


@triton.jit
def quantize_kernel(x, out, scales, size, block: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, block)
    mask = columns < size
    y = tl.load(x + row.to(tl.int64) * size + columns, mask=mask, other=0.0).to(tl.float32)
    quantize_row(y, out, scales, row, size, mask, block)


@triton.jit
def gelu_kernel(x, bias, out, scales, size, block: tl.constexpr, fp8: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, block)
    mask = columns < size
    y = tl.load(x + row.to(tl.int64) * size + columns, mask=mask, other=0.0).to(tl.float32)
    y = y + tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    y = 0.5 * y * (1 + tl.erf(y * 0.7071067811865476))
    if fp8:
        quantize_row(y, out, scales, row, size, mask, block)
    else:
        tl.store(out + row.to(tl.int64) * size + columns, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def layernorm_kernel(
    x, linear_bias, residual, weight, bias, y, out, scales, size, epsilon, block: tl.constexpr, fp8: tl.constexpr
):
    row = tl.program_id(0)
    columns = tl.arange(0, block)
    mask = columns < size
    offsets = row.to(tl.int64) * size + columns
    z = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    z = z + tl.load(linear_bias + columns, mask=mask, other=0.0).to(tl.float32)
    z = z + tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    m = tl.sum(z, axis=0) / size
    centered = tl.where(mask, z - m, 0.0)
    r = 1 / tl.sqrt(tl.sum(centered * centered, axis=0) / size + epsilon)
    w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    z = centered * r * w + tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + offsets, z.to(y.dtype.element_ty), mask=mask)
    if fp8:
        quantize_row(z, out, scales, row, size, mask, block)


@triton.jit
def product_kernel(
    a, b, out, scale_a, scale_b, bias, out_scale, m, n, k,
    bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr, group: tl.constexpr, gelu: tl.constexpr,
    integer: tl.constexpr,
):  # fmt: skip
    """out = scale_a a b^T scale_b + bias [then GELU, times out_scale], with tensor descriptors."""
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, bm), tl.cdiv(n, bn)
    first = (pid // (group * tiles_n)) * group
    rows = tl.minimum(tiles_m - first, group)
    row = (first + (pid % (group * tiles_n)) % rows) * bm
    column = ((pid % (group * tiles_n)) // rows) * bn
    acc = tl.zeros((bm, bn), dtype=tl.int32 if integer else tl.float32)
    for start in range(0, k, bk):
        x = a.load([row, start])
        w = b.load([column, start])
        if integer:
            acc = tl.dot(x, w.T, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(x, w.T, acc)
    row_index, column_index = row + tl.arange(0, bm), column + tl.arange(0, bn)
    y = acc.to(tl.float32) * tl.load(scale_a + row_index)[:, None] * tl.load(scale_b + column_index)[None, :]
    y = y + tl.load(bias + column_index).to(tl.float32)[None, :]
    if gelu:
        y = 0.5 * y * (1 + tl.erf(y * 0.7071067811865476)) * out_scale
        y = tl.minimum(y, 448.0)
    out.store([row, column], y.to(out.dtype))


@triton.jit
def attention_kernel(
    q, k, v, out, cu_seqlens, scale, stride, out_stride, bq: tl.constexpr, bk: tl.constexpr, head: tl.constexpr
):
    """Attention within each row; a program computes bq queries of one head and row."""
    row, h = tl.program_id(2), tl.program_id(1)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    first = tl.program_id(0) * bq
    if first < length:
        dims = h * head + tl.arange(0, head)
        queries = first + tl.arange(0, bq)
        offsets = (start + queries).to(tl.int64)
        x = tl.load(q + offsets[:, None] * stride + dims[None, :], mask=queries[:, None] < length, other=0.0)
        highest = tl.full((bq,), -1e30, dtype=tl.float32)
        total = tl.zeros((bq,), dtype=tl.float32)
        acc = tl.zeros((bq, head), dtype=tl.float32)
        for begin in range(0, length, bk):
            keys = begin + tl.arange(0, bk)
            inside = keys < length
            at = (start + keys).to(tl.int64)[:, None] * stride + dims[None, :]
            y = tl.load(k + at, mask=inside[:, None], other=0.0)
            scores = tl.where(inside[None, :], tl.dot(x, y.T) * scale, -1e30)
            new = tl.maximum(highest, tl.max(scores, axis=1))
            p = tl.exp2(scores - new[:, None])
            factor = tl.exp2(highest - new)
            total = total * factor + tl.sum(p, axis=1)
            z = tl.load(v + at, mask=inside[:, None], other=0.0)
            acc = tl.dot(p.to(z.dtype), z, acc * factor[:, None])
            highest = new
        y = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + offsets[:, None] * out_stride + dims[None, :], y, mask=queries[:, None] < length)


@triton.jit
def adamw_kernel(w_, c_, g_, m_, v_, scale, length, block: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = offsets < length
    g = tl.load(g_ + offsets, mask=mask).to(tl.float32) * tl.load(scale)
    w = tl.load(w_ + offsets, mask=mask)
    m = tl.load(m_ + offsets, mask=mask)
    v = tl.load(v_ + offsets, mask=mask)
    w = w - 1e-5 * 0.01 * w
    m = m + 0.1 * (g - m)
    v = 0.999 * v + 0.001 * g * g
    w = w - 1e-5 * m / (tl.sqrt(v) + 1e-8)
    tl.store(w_ + offsets, w, mask=mask)
    tl.store(m_ + offsets, m, mask=mask)
    tl.store(v_ + offsets, v, mask=mask)
    tl.store(c_ + offsets, w.to(c_.dtype.element_ty), mask=mask)


@triton.jit
def norm_kernel(g_, out, length, block: tl.constexpr):
    total = tl.zeros((block,), dtype=tl.float32)
    start = tl.program_id(0) * block
    while start < length:
        offsets = start + tl.arange(0, block)
        g = tl.load(g_ + offsets, mask=offsets < length, other=0.0).to(tl.float32)
        total += g * g
        start += tl.num_programs(0) * block
    tl.store(out + tl.program_id(0), tl.sum(total, axis=0))


# --- labelling -------------------------------------------------------------------------------------------------------


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as e4m3 and their scales, (rows, 1), in plain PyTorch."""
    scale = x.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 448
    return (x.float() / scale).to(FP8), scale


def products() -> None:
    """bf16 and fp8 products of a labelled batch."""
    for name, (k, n) in SHAPES.items():
        x, w = torch.randn(TOKENS, k, device="cuda", dtype=BF16), torch.randn(n, k, device="cuda", dtype=BF16) * 0.03
        bias, flop = torch.randn(n, device="cuda", dtype=BF16), 2 * TOKENS * k * n
        reference = x[:256].double() @ w.double().T + bias.double()
        ms = timed(lambda: functional.linear(x, w, bias))
        say(f"{name}: bf16", ms, f"{rate(ms, flop)} {error(functional.linear(x, w, bias)[:256], reference)}")
        (xq, xs), (wq, ws) = quantize(x), quantize(w)
        one = torch.ones((), device="cuda")
        variants = {
            "fp8 rowwise fast": (xs, ws.T, True, bias),
            "fp8 rowwise fast, no bias": (xs, ws.T, True, None),
            "fp8 rowwise exact": (xs, ws.T, False, bias),
            "fp8 one scale fast": (one, one, True, bias),
        }
        for title, (sa, sb, fast, b) in variants.items():
            try:

                def work() -> Tensor:
                    return torch._scaled_mm(xq, wq.T, sa, sb, b, out_dtype=BF16, use_fast_accum=fast)

                wrong = error(work()[:256], reference) if "rowwise" in title and b is not None else ""
                ms = timed(work)
                say(f"{name}: {title}", ms, f"{rate(ms, flop)} {wrong}")
            except Exception as problem:
                say(f"{name}: {title}", 0, f"FAILED {str(problem)[:150]}")


def triton_products() -> None:
    """Triton's fp8 and int8 products, with the GELU and the next product's quantisation in the epilogue."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    for name in ("up", "down", "out"):
        k, n = SHAPES[name]
        x, w = torch.randn(TOKENS, k, device="cuda", dtype=BF16), torch.randn(n, k, device="cuda", dtype=BF16) * 0.03
        bias, flop = torch.randn(n, device="cuda", dtype=BF16), 2 * TOKENS * k * n
        (xq, xs), (wq, ws) = quantize(x), quantize(w)
        xi_s, wi_s = xs * 448 / 127, ws * 448 / 127
        xi, wi = (x.float() / xi_s).round().to(torch.int8), (w.float() / wi_s).round().to(torch.int8)
        reference = x[:256].double() @ w.double().T + bias.double()
        for bm, bn, bk, warps, stages in ((128, 256, 128, 8, 3), (128, 128, 128, 8, 4), (128, 128, 128, 4, 3)):
            for mode in ("fp8", "fp8 gelu fp8", "int8"):
                if mode == "fp8 gelu fp8" and name != "up" or mode == "int8" and name == "out":
                    continue
                try:
                    a, b, sa, sb = (xi, wi, xi_s, wi_s) if mode == "int8" else (xq, wq, xs, ws)
                    out = torch.empty(TOKENS, n, device="cuda", dtype=FP8 if "gelu" in mode else BF16)
                    descriptors = (
                        TensorDescriptor.from_tensor(a, [bm, bk]),
                        TensorDescriptor.from_tensor(b, [bn, bk]),
                        TensorDescriptor.from_tensor(out, [bm, bn]),
                    )
                    grid = (triton.cdiv(TOKENS, bm) * triton.cdiv(n, bn),)

                    def work() -> None:
                        product_kernel[grid](
                            *descriptors, sa, sb, bias, 8.0, TOKENS, n, k, bm, bn, bk, 8, "gelu" in mode,
                            mode == "int8", num_warps=warps, num_stages=stages,
                        )  # fmt: skip

                    work()
                    wanted = functional.gelu(reference) if "gelu" in mode else reference
                    wrong = error(out[:256].float() / (8.0 if "gelu" in mode else 1.0), wanted)
                    ms = timed(work)
                    say(f"{name}: Triton {mode} {bm}x{bn}x{bk} w{warps} s{stages}", ms, f"{rate(ms, flop)} {wrong}")
                except Exception as problem:
                    say(f"{name}: Triton {mode} {bm}x{bn}x{bk} w{warps}", 0, f"FAILED {str(problem)[:150]}")


def elementwise() -> None:
    """GELU, layer norm and quantisation of a labelled batch."""
    x = torch.randn(TOKENS, INNER, device="cuda", dtype=BF16)
    bias = torch.randn(INNER, device="cuda", dtype=BF16)
    say("GELU of PyTorch, 4096", timed(lambda: functional.gelu(x)))
    out, scales = torch.empty_like(x, dtype=FP8), torch.empty(TOKENS, device="cuda")
    wanted = functional.gelu(x[:512].double() + bias.double())
    for warps in (4, 8, 16):
        ms = timed(lambda: gelu_kernel[(TOKENS,)](x, bias, out, scales, INNER, INNER, True, num_warps=warps))
        say(f"bias, GELU, fp8, 4096, warps {warps}", ms, error(out[:512].float() * scales[:512, None], wanted))
    plain = torch.empty_like(x)
    ms = timed(lambda: gelu_kernel[(TOKENS,)](x, bias, plain, scales, INNER, INNER, False, num_warps=8))
    say("bias, GELU, bf16, 4096, warps 8", ms, error(plain[:512], wanted))
    del plain
    x, residual = (torch.randn(TOKENS, WIDTH, device="cuda", dtype=BF16) for _ in range(2))
    w, b, bias = (torch.randn(WIDTH, device="cuda", dtype=BF16) for _ in range(3))
    y, out = torch.empty_like(x), torch.empty_like(x, dtype=FP8)
    wanted = functional.layer_norm(
        x[:512].double() + bias.double() + residual[:512].double(), (WIDTH,), w.double(), b.double()
    )
    for fp8 in (False, True):
        arguments = x, bias, residual, w, b, y, out, scales, WIDTH, 1e-5, WIDTH, fp8
        ms = timed(lambda: layernorm_kernel[(TOKENS,)](*arguments, num_warps=4))
        say(
            f"layer norm{' and fp8' if fp8 else ''}",
            ms,
            error(out[:512].float() * scales[:512, None] if fp8 else y[:512], wanted),
        )
    for warps in (2, 4):
        ms = timed(lambda: quantize_kernel[(TOKENS,)](x, out, scales, WIDTH, WIDTH, num_warps=warps))
        say(f"quantise 1024, warps {warps}", ms, error(out[:512].float() * scales[:512, None], x[:512]))
    up = torch.randn(INNER, WIDTH, device="cuda", dtype=BF16) * 0.03
    bias = torch.randn(INNER, device="cuda", dtype=BF16)
    ms = timed(lambda: torch._addmm_activation(bias, x, up.T, use_gelu=True))
    result = torch._addmm_activation(bias, x, up.T, use_gelu=True)[:512]
    z = x[:512].double() @ up.double().T + bias.double()
    erf, tanh = error(result, functional.gelu(z)), error(result, functional.gelu(z, approximate="tanh"))
    say("bf16 up product with GELU epilogue", ms, f"erf {erf}, tanh {tanh}")
    say("bf16 up product, then GELU", timed(lambda: functional.gelu(functional.linear(x, up, bias))))
    z = z.float()
    difference = (functional.gelu(z) - functional.gelu(z, approximate="tanh")).abs().max()
    print("largest |erf GELU - tanh GELU|:", float(difference))


def attention() -> None:
    """Attention of a labelled batch of equally long rows: PyTorch's flash attention and short-row kernels."""
    for length in (80, 148, 250):
        rows = TOKENS // length
        qkv = torch.randn(rows * length, 3 * WIDTH, device="cuda", dtype=BF16)
        q, k, v = qkv.split(WIDTH, dim=1)
        cu = torch.arange(0, rows + 1, device="cuda", dtype=torch.int32) * length
        heads = [t.view(-1, HEADS, HEAD) for t in (q, k, v)]
        flop = 4 * rows * length * length * WIDTH

        def flash() -> Tensor:
            return torch.ops.aten._flash_attention_forward(
                *heads, cu, cu, length, length, 0.0, False, False, scale=0.125
            )[0]

        ms = timed(flash)
        few = [t[: 4 * length].view(4, length, HEADS, HEAD).transpose(1, 2).double() for t in heads]
        wanted = functional.scaled_dot_product_attention(*few, scale=0.125).transpose(1, 2).reshape(-1, WIDTH)
        say(f"attention {length}: PyTorch", ms, f"{rate(ms, flop)} {error(flash()[: 4 * length].flatten(1), wanted)}")
        padded = -(-length // 256) * 256  # what max_length the model passes today
        out = torch.empty(rows * length, WIDTH, device="cuda", dtype=BF16)
        for bq, bk, warps, stages in (
            (64, 64, 4, 2),
            (64, 64, 4, 3),
            (128, 64, 4, 2),
            (128, 64, 8, 2),
            (64, 128, 4, 2),
        ):
            try:
                grid = (triton.cdiv(length, bq), HEADS, rows)
                numbers = 0.125 * 1.4426950408889634, 3 * WIDTH, WIDTH

                def work() -> None:
                    attention_kernel[grid](q, k, v, out, cu, *numbers, bq, bk, HEAD, num_warps=warps, num_stages=stages)

                out.fill_(float("nan"))
                ms = timed(work)
                say(
                    f"attention {length}: Triton {bq}x{bk} w{warps} s{stages}",
                    ms,
                    f"{rate(ms, flop)} {error(out[: 4 * length], wanted)}",
                )
            except Exception as problem:
                say(f"attention {length}: Triton {bq}x{bk} w{warps}", 0, f"FAILED {str(problem)[:150]}")
        if length == 148:
            wide = torch.ops.aten._flash_attention_forward
            ms = timed(lambda: wide(*heads, cu, cu, padded, padded, 0.0, False, False, scale=0.125))
            say(f"attention {length}: PyTorch, max_length {padded}", ms)


# --- training --------------------------------------------------------------------------------------------------------


def step_products() -> None:
    """All products of 24 layers, forward and backward, in one CUDA graph; per member."""
    layers = 24
    flop = layers * 6 * STEP_TOKENS * sum(k * n for k, n in SHAPES.values())
    for members in (1, 2, 3):
        weights = [
            {s: torch.randn(members, n, k, device="cuda", dtype=BF16) * 0.03 for s, (k, n) in SHAPES.items()}
            for _ in range(layers)
        ]
        gradients = [{s: torch.empty_like(w) for s, w in layer.items()} for layer in weights]
        inputs = {s: torch.randn(members, STEP_TOKENS, k, device="cuda", dtype=BF16) for s, (k, n) in SHAPES.items()}
        grads = {s: torch.randn(members, STEP_TOKENS, n, device="cuda", dtype=BF16) for s, (k, n) in SHAPES.items()}
        outputs = {s: torch.empty_like(g) for s, g in grads.items()}
        grad_inputs = {s: torch.empty_like(x) for s, x in inputs.items()}
        side = torch.cuda.Stream()

        def product(a: Tensor, b: Tensor, out: Tensor) -> None:
            if members == 1:
                torch.mm(a[0], b[0], out=out[0])
            else:
                torch.bmm(a, b, out=out)

        def forward() -> None:
            for layer in weights:
                for s, w in layer.items():
                    product(inputs[s], w.mT, outputs[s])

        def backward(second_stream: bool) -> None:
            main = torch.cuda.current_stream()
            for layer, gradient in zip(weights, gradients):
                for s, w in layer.items():
                    if second_stream:
                        side.wait_stream(main)
                        with torch.cuda.stream(side):
                            product(grads[s].mT, inputs[s], gradient[s])
                    else:
                        product(grads[s].mT, inputs[s], gradient[s])
                    product(grads[s], w, grad_inputs[s])
            if second_stream:
                main.wait_stream(side)

        name = f"24 layers' products, {members} stacked" if members > 1 else "24 layers' products, one member"
        ms = timed_graph(forward) / members
        say(f"{name}: forward", ms, rate(ms, flop / 3))
        ms = timed_graph(lambda: backward(False)) / members
        say(f"{name}: backward", ms, rate(ms, flop * 2 / 3))
        ms = timed_graph(lambda: backward(True)) / members
        say(f"{name}: backward, 2 streams", ms, rate(ms, flop * 2 / 3))
        if members == 1:
            single_products(weights, inputs, grads, outputs, grad_inputs, gradients)
            overlap(forward)
        del weights, gradients


def single_products(weights, inputs, grads, outputs, grad_inputs, gradients) -> None:
    """Each kind of product over 24 layers."""
    for s, (k, n) in SHAPES.items():
        flop = 24 * 2 * STEP_TOKENS * k * n
        kinds = {
            "forward": lambda: [torch.mm(inputs[s][0], w[s][0].T, out=outputs[s][0]) for w in weights],
            "gradient of input": lambda: [torch.mm(grads[s][0], w[s][0], out=grad_inputs[s][0]) for w in weights],
            "gradient of weight": lambda: [torch.mm(grads[s][0].T, inputs[s][0], out=g[s][0]) for g in gradients],
        }
        for kind, work in kinds.items():
            ms = timed_graph(work)
            say(f"  24 x {s}, {kind}", ms, rate(ms, flop))


def overlap(forward: Callable[[], None]) -> None:
    """AdamW after, and beside, the products of a forward pass; norm and copies of gradients."""
    length = 355_000_000
    w, m, v = torch.randn(3, length, device="cuda").abs().unbind()
    c, g = torch.randn(2, length, device="cuda", dtype=BF16).unbind()
    scale, side = torch.ones((), device="cuda"), torch.cuda.Stream()

    def adamw(chunks: int = 1, block: int = 2048, warps: int = 4) -> None:
        for t in zip(*(x.tensor_split(chunks) for x in (w, c, g, m, v))):
            adamw_kernel[(triton.cdiv(len(t[0]), block),)](*t, scale, len(t[0]), block, num_warps=warps)

    def beside() -> None:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            adamw(25)
        forward()
        main.wait_stream(side)

    for block, warps in ((2048, 4), (1024, 4), (4096, 8), (1024, 8)):
        ms = timed_graph(lambda: adamw(1, block, warps))
        say(f"AdamW, 355 M, block {block}, warps {warps}", ms, f"{28 * length / ms / 1e9:.2f} TB/s")
    ms = timed_graph(lambda: (adamw(25), forward()))
    say("AdamW, then a forward pass's products", ms)
    say("AdamW beside a forward pass's products", timed_graph(beside))
    partial = torch.empty(132 * 8, device="cuda")
    say("norm of PyTorch, 355 M bf16", timed_graph(lambda: torch.linalg.vector_norm(g, dtype=torch.float32)))
    for block, warps in ((2048, 4), (4096, 8), (8192, 8)):
        ms = timed_graph(lambda: norm_kernel[(len(partial),)](g, partial, length, block, num_warps=warps))
        wrong = error(partial.sum().sqrt(), torch.linalg.vector_norm(g, dtype=torch.float32))
        say(f"norm by Triton, block {block}, warps {warps}", ms, wrong)
    pieces = list(g.split(length // 390))
    sources = [p.clone() for p in pieces]
    say("copies of 390 gradients", timed_graph(lambda: torch._foreach_copy_(pieces, sources)))


def lengths() -> None:
    """The products of a step at other numbers of tokens: what does padding to a multiple of 256 cost?"""
    weights = [
        {s: torch.randn(n, k, device="cuda", dtype=BF16) * 0.03 for s, (k, n) in SHAPES.items()} for _ in range(24)
    ]
    for tokens in (2048, 2112, 2176, 2304, 2368, 2432, 2560, 2816, 3072):
        inputs = {s: torch.randn(tokens, k, device="cuda", dtype=BF16) for s, (k, n) in SHAPES.items()}
        grads = {s: torch.randn(tokens, n, device="cuda", dtype=BF16) for s, (k, n) in SHAPES.items()}

        def work() -> None:
            for layer in weights:
                for s, w in layer.items():
                    torch.mm(inputs[s], w.T)
                    torch.mm(grads[s].T, inputs[s])
                    torch.mm(grads[s], w)

        ms = timed_graph(work, 5)
        say(f"24 layers' products, {tokens} tokens", ms, f"{1e6 * ms / tokens:.0f} ns a token")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    only = parser.parse_args().only.split(",")
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__, torch.version.cuda, flush=True)
    for experiment in (products, elementwise, attention, triton_products, step_products, lengths):
        if only != [""] and experiment.__name__ not in only:
            continue
        try:
            experiment()
        except Exception:
            traceback.print_exc()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    print("\n".join(["", *TABLE, f"{time.perf_counter() - BEGAN:.0f} s"]))


if __name__ == "__main__":
    main()
