"""What is each GPU optimisation worth? Training and labelling with all of them, and with each one switched off.

Measures fine-tuning steps, distillation steps and labelling as a run does them, in RoBERTa-large's shape, on rows of
Yelp (the file that CLOZIFY_YELP names; else sample text cut to Yelp's lengths). Weights are random, since speed does
not depend on them. Every alternation measures each variant once, between two measurements with everything switched on;
the two are the reference, and their difference is the noise. The same batches are used every time, and blocks of 25
steps are compared pairwise: the slowdown is the median over all pairs, and the range that of the alternations' medians.

    CLOZIFY_YELP=test.csv python benchmarks/pieces.py [--alternations 3] [--steps 125] [--rows 10000] [--minutes 5]

`--scoring fp8` labels in fp8; `--only` names the optimisations to switch off, by default all.

On a CPU, `--shape tiny --steps 75 --rows 64 --alternations 1` tries the script out; nothing is optimised there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
import transformers
import typer
from accelerate import Accelerator
from scoring import SHAPES, sample

from clozify.config.recipe import load_recipe
from clozify.gpu.features import FEATURES, without
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

WARM_UP = 50  # steps: libraries initialise, kernels are compiled, graphs captured
# the features that each kind of stage uses; in fp8 the layer norms are other kernels
LABELLING = {
    "bf16": ["fused_layernorm", "packing", "short_attention"],
    "fp8": ["fp8_scoring", "packing", "short_attention"],
}
TRAINING = sorted(FEATURES - {"fp8_scoring"})
Features = tuple[str, ...]


@dataclass
class Stage:
    """A stage of a run, and its measurements: seconds of each block of work, by what is switched off."""

    name: str
    unit: str
    units_per_block: float
    features: list[str]
    measure: Callable[[Features], list[float]]
    reference: list[list[float]] = field(default_factory=list)  # (alternations, blocks), mean of two measurements
    noise: list[list[float]] = field(default_factory=list)  # (alternations, blocks), ratio of these two
    ratios: dict[Features, list[list[float]]] = field(default_factory=dict)  # (alternations, blocks) each

    def alternate(self, backwards: bool, remove_all: bool) -> None:
        """Measure every variant once, and everything switched on before and after."""
        names = self.features[::-1] if backwards else self.features
        variants: list[Features] = [(name,) for name in names]
        first = np.array(self.measure(()))
        seconds = {variant: np.array(self.measure(variant)) for variant in variants}
        if remove_all:
            seconds[tuple(self.features)] = np.array(self.measure(tuple(self.features)))
        last = np.array(self.measure(()))
        reference = (first + last) / 2
        self.reference.append(reference.tolist())
        self.noise.append((last / first).tolist())
        for variant, measured in seconds.items():
            self.ratios.setdefault(variant, []).append((measured / reference).tolist())

    @property
    def rate(self) -> float:
        """Units per second with everything switched on."""
        return self.units_per_block / float(np.median(self.reference))

    def cell(self, variant: Features) -> str:
        """The rate and the slowdown of a variant, as a table shows them."""
        if variant not in self.ratios:
            return "-"
        return f"{self.rate / float(np.median(self.ratios[variant])):,.2f} {self.unit}, {percent(self.ratios[variant])}"


def percent(ratios: list[list[float]]) -> str:
    """The median of ratios as a change in percent, and the range of the alternations' medians."""
    changes = [100 * (float(np.median(blocks)) - 1) for blocks in ratios]
    return f"{100 * (float(np.median(ratios)) - 1):+.1f}% ({min(changes):+.1f} to {max(changes):+.1f})"


def training_blocks(train: Callable[[int, Monitor], Any], steps: int) -> list[float]:
    """Seconds of each block of 25 steps after the warm-up."""
    times: list[float] = []

    def on_step(step: int, _: float | None) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if step >= WARM_UP:
            times.append(time.perf_counter())

    train(steps, Monitor(on_step=on_step))
    return np.diff(times).tolist()


def make_stages(shape: str, rows: int, steps: int, scoring: Literal["bf16", "fp8"]) -> list[Stage]:
    """Load a model and a classifier with random weights, and the rows that they read."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    accelerator = Accelerator(cpu=not on_gpu, mixed_precision="bf16" if on_gpu else "no")
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    data, recipe = sample(rows, "yelp-full"), load_recipe("paper")
    config = transformers.RobertaConfig(
        max_position_embeddings=514, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id, **SHAPES[shape]
    )
    labels = config.num_labels = len(data.task.labels)
    masked_lm = transformers.RobertaForMaskedLM(config).to(accelerator.device)
    sequence_classifier = transformers.RobertaForSequenceClassification(config).to(accelerator.device)

    def cloze_model() -> ClozeModel:  # made for every measurement: whether it packs is determined once per object
        return ClozeModel(masked_lm, tokenizer, shape, GpuOptions(gpu_scoring=scoring))

    def classifier() -> Classifier:
        return Classifier(sequence_classifier, tokenizer, data.task, 256)

    questions = compile_task(cloze_model(), data.task)
    question = questions.patterns[0]
    tokens = questions.tokenize(cloze_model(), data, 0, len(data))
    encoded = EncodedRows(question.template, tokens, 256)
    class_rows = classifier().encode(data)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, labels, rows).astype(np.int16)
    soft_labels = np.full((rows, labels), 1 / labels, dtype=np.float32)
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{shape}, {device}, torch {torch.__version__}, {rows:,} rows of {encoded.lengths.mean():.0f} tokens")

    def fine_tuning(features: Features) -> list[float]:
        with without(*features):
            model = cloze_model()

            def train(count: int, monitor: Monitor) -> None:
                settings = recipe.with_settings([f"finetune.max_steps={count}"]).finetune
                setup = TrainingSetup(settings, seed_everything(0), accelerator, monitor)
                finetune(model, question.words[0], encoded, truth, encoded, setup)

            return training_blocks(train, steps)

    def distillation(features: Features) -> list[float]:
        with without(*features):
            student = classifier()

            def train(count: int, monitor: Monitor) -> None:
                settings = recipe.with_settings([f"distill.max_steps={count}"]).distill
                setup = TrainingSetup(settings, np.random.default_rng(0), accelerator, monitor)
                distill(student, class_rows, soft_labels, setup)

            return training_blocks(train, steps)

    def labelling(features: Features) -> list[float]:
        with without(*features):
            model = cloze_model()
            assert model.supports_packing != ("packing" in features)  # determined here, outside the measured time
            if on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
            list(score_rows(model, questions, data, tokens=tokens))  # scores are NumPy arrays: the device has finished
            return [time.perf_counter() - began]

    return [
        Stage("fine-tuning", "steps/s", 25, TRAINING, fine_tuning),
        Stage("distillation", "steps/s", 25, TRAINING, distillation),
        Stage("labelling", "rows/s", rows, LABELLING[scoring], labelling),
    ]


def print_table(stages: list[Stage]) -> None:
    """Print every stage's rate and slowdown by what is switched off."""
    print("\n| switched off | " + " | ".join(stage.name for stage in stages) + " |")
    print("|---" * (1 + len(stages)) + "|")
    print("| nothing | " + " | ".join(f"{stage.rate:,.2f} {stage.unit}" for stage in stages) + " |")
    print("| nothing, again (noise) | " + " | ".join(percent(stage.noise) for stage in stages) + " |")
    for name in sorted(FEATURES):
        print(f"| {name} | " + " | ".join(stage.cell((name,)) for stage in stages) + " |")
    if any(tuple(stage.features) in stage.ratios for stage in stages):
        print("| all of them | " + " | ".join(stage.cell(tuple(stage.features)) for stage in stages) + " |")
    print("More seconds per step or row, in percent; in brackets the range over alternations.", flush=True)


def main(
    alternations: Annotated[int, typer.Option(help="How often every variant is measured.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps per measurement, the first 50 uncounted.")] = 125,
    rows: Annotated[int, typer.Option(help="Rows to label.")] = 10_000,
    shape: Annotated[str, typer.Option(help="roberta-large, roberta-base or tiny.")] = "roberta-large",
    minutes: Annotated[float, typer.Option(help="No alternation starts that would end later.")] = 5.0,
    scoring: Annotated[str, typer.Option(help="What rows are labelled in: bf16 or fp8.")] = "bf16",
    only: Annotated[str, typer.Option(help="The features to switch off, separated by commas; default: all.")] = "",
    remove_all: Annotated[bool, typer.Option("--remove-all", help="Also measure with all of them off, once.")] = False,
) -> None:
    """Print a table of speeds with all optimisations and with each one switched off."""
    began = time.monotonic()
    stages = make_stages(shape, rows, steps, "fp8" if scoring == "fp8" else "bf16")
    for stage in stages:
        stage.features = [name for name in stage.features if not only or name in only.split(",")]
        stage.measure(())  # not counted: kernels are compiled, and the GPU's clock goes up
    duration = 0.0
    for index in range(alternations):
        if (time.monotonic() - began + duration) / 60 > minutes and index:
            print(f"Stopped after {index} alternations: another one would end after {minutes:g} minutes.")
            break
        alternation_began = time.monotonic()
        for stage in stages:
            stage.alternate(backwards=index % 2 == 1, remove_all=remove_all and index == 0)
        duration = time.monotonic() - alternation_began
        print(f"\nAlternation {index + 1} took {duration:.0f} s.")
        print_table(stages)


if __name__ == "__main__":
    typer.run(main)
