"""Where the time of training steps and labelling goes on a GPU: milliseconds and number of kernels by kind.

Profiles steps 51 to 100 of fine-tuning and distillation, as a run takes them, with PyTorch's profiler, on rows of Yelp
(the file that CLOZIFY_YELP names; else sample text cut to Yelp's lengths). Weights are random, since speed does not
depend on them. The wall-clock time without the profiler is printed with the sum over kernels.

    CLOZIFY_YELP=test.csv python benchmarks/kernels.py [--shape roberta-large] [--names 3]
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from accelerate import Accelerator
from scoring import SHAPES, sample
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from clozify.config.recipe import load_recipe
from clozify.gpu.options import GpuOptions
from clozify.methods.distill import distill
from clozify.methods.finetune import finetune
from clozify.methods.score import score_rows
from clozify.models.builtin import builtin_folder
from clozify.models.classifier import Classifier
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.training.loop import Monitor, TrainingSetup, seed_everything

GROUPS = {  # the first that a kernel's name fits
    "matrix products": r"gemm|nvjet|cutlass_80|xmma|splitk|cublas|gemv",
    "attention": r"flash|^attention_",
    "the optimizer": r"adam|Adam",
    "gradient norm, clipping, copies between float32 and bf16": r"multi_tensor|lpnorm|LpNorm|NormTwoOps",
    "fused bias, dropout, residual sum, layer norm": r"^(forward|backward|sum)_kernel|^layernorm_kernel",
    "rounding to fp8": r"^quantize_kernel",
    "layer norms": r"layer_norm|LayerNorm|GammaBeta",
    "dropout": r"dropout|masked_scale",
    "GELU": r"[gG]elu",
    "sums: gradients of biases and others": r"reduce_kernel",
    "embeddings, gathering and scattering": r"embedding|index|gather|scatter|sort|radix|unique",
    "copies and fills": r"Memcpy|Memset|copy|fill|FillFunctor|CatArray",
    "softmax and losses": r"[sS]oft[mM]ax|nll",
    "other elementwise": r"elementwise",
}
FIRST, LAST = 50, 100


def group_of(kernel: str) -> str:
    """The group of a kernel, by its name."""
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, kernel)), "other")


def profile_steps(title: str, work: Callable[[int, Monitor], Any], names: int) -> None:
    """Time steps without the profiler, then profile some, and print both."""
    clock: dict[int, float] = {}

    def record_time(step: int, _: float | None) -> None:
        torch.cuda.synchronize()
        clock[step] = time.perf_counter()

    work(300, Monitor(on_step=record_time))
    by_clock = 1000 * (clock[300] - clock[100]) / 200
    profiler = profile(activities=[ProfilerActivity.CUDA])

    def switch_profiler(step: int, _: float | None) -> None:
        torch.cuda.synchronize()
        if step == FIRST:
            profiler.start()
        elif step == LAST:
            profiler.stop()

    work(LAST, Monitor(on_step=switch_profiler))
    print_kernels(title, profiler, LAST - FIRST, by_clock, names)


def print_kernels(title: str, profiler: profile, times: float, by_clock: float, names: int) -> None:
    """Print the kernels' milliseconds by group, and the slowest kernels of every group."""
    kernels = [event for event in profiler.key_averages() if event.device_type == DeviceType.CUDA]
    milliseconds, count = Counter[str](), Counter[str]()
    for event in kernels:
        milliseconds[group_of(event.key)] += event.self_device_time_total / 1000 / times
        count[group_of(event.key)] += event.count / times
    print(f"\n{title}: {by_clock:.2f} ms, of them {milliseconds.total():.2f} in {count.total():.0f} kernels\n")
    print("| kernels | ms | number |\n|---|---|---|")
    for group, spent in milliseconds.most_common():
        print(f"| {group} | {spent:.2f} | {count[group]:.0f} |")
    for group in milliseconds:
        inside = sorted((e for e in kernels if group_of(e.key) == group), key=lambda e: -e.self_device_time_total)
        for event in inside[:names]:
            spent = event.self_device_time_total / 1000 / times
            print(f"  {group}: {spent:.3f} ms, {event.count / times:.0f}x {event.key[:150]}", file=sys.stderr)


def main(
    shape: Annotated[str, typer.Option(help="The model's shape.")] = "roberta-large",
    rows: Annotated[int, typer.Option(help="Unlabelled rows.")] = 2500,
    names: Annotated[int, typer.Option(help="Kernels to name of every group, on standard error.")] = 0,
) -> None:
    """Print the kernels of a fine-tuning step, of labelling 1,000 rows, and of a distillation step."""
    if not torch.cuda.is_available():
        sys.exit("This needs a CUDA device.")
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    data, accelerator, base = sample(rows, "yelp-full"), Accelerator(mixed_precision="bf16"), load_recipe("paper")
    config = transformers.RobertaConfig(
        max_position_embeddings=514, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id, **SHAPES[shape]
    )
    labels = config.num_labels = len(data.task.labels)
    options = GpuOptions.from_recipe(base)
    model = ClozeModel(transformers.RobertaForMaskedLM(config).to(accelerator.device), tokenizer, shape, options)
    questions = compile_task(model, data.task)
    question = questions.patterns[0]
    encoded = EncodedRows(question.template, questions.tokenize(model, data, 0, rows), 256)
    truth = np.random.default_rng(0).integers(0, labels, rows).astype(np.int16)
    print(
        f"{shape}, {torch.cuda.get_device_name()}, torch {torch.__version__}, {encoded.lengths.mean():.0f} tokens a row"
    )

    def fine_tune(steps: int, monitor: Monitor) -> None:
        settings = base.with_settings([f"finetune.max_steps={steps}"]).finetune
        setup = TrainingSetup(settings, seed_everything(0), accelerator, monitor)
        finetune(model, question.words[0], encoded, truth, encoded, setup)

    profile_steps("a fine-tuning step", fine_tune, names)

    tokens = questions.tokenize(model, data, 0, len(data))  # a run tokenises its rows once for all members
    list(score_rows(model, questions, data, tokens=tokens))
    torch.cuda.synchronize()
    began = time.perf_counter()
    list(score_rows(model, questions, data, tokens=tokens))
    by_clock = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        list(score_rows(model, questions, data, tokens=tokens))
    print_kernels("labelling 1,000 rows", profiler, rows / 1000, 1e6 * by_clock / rows, names)

    classifier = Classifier(
        transformers.RobertaForSequenceClassification(config).to(accelerator.device), tokenizer, data.task, 256
    )
    unlabeled, soft = classifier.encode(data), np.full((rows, labels), 1 / labels, dtype=np.float32)

    def distilled(steps: int, monitor: Monitor) -> None:
        settings = base.with_settings([f"distill.max_steps={steps}"]).distill
        distill(classifier, unlabeled, soft, TrainingSetup(settings, np.random.default_rng(0), accelerator, monitor))

    profile_steps("a distillation step", distilled, names)


if __name__ == "__main__":
    typer.run(main)
