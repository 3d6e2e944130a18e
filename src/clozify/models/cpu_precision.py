"""Chooses the precision of scores on a CPU: bf16 if the processor runs it, faster than float32 and close enough.

A processor may announce an instruction and still refuse it, which kills the process. So bf16 is tried in a child
process first, with the model itself, and timed against float32.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from clozify.config.recipe import Recipe
from clozify.errors import RecipeError
from clozify.gpu.options import GpuOptions, Precision
from clozify.models.builtin import is_builtin
from clozify.models.cloze import load_model
from clozify.models.int8_linear import suits_processor

CHILD = (sys.executable, "-m", "clozify.models.cpu_precision")
TIMEOUT = 120.0  # seconds
ROWS, WIDTH, REPEATS = 8, 64, 3  # a pass's rows and tokens, and the timed passes in each precision
MIN_GAIN = 1.1  # float32's seconds / bf16's seconds, at least
MAX_DIFFERENCE = 0.05  # |bf16 - float32| / |float32| of the encoder's states


@dataclass(frozen=True)
class Trial:
    """The outcome of a trial of bf16."""

    problem: str = ""  # why bf16 does not run; empty if it does
    gain: float = 0.0  # seconds of float32 / seconds of bf16
    difference: float = 0.0  # |bf16 - float32| / |float32| of the encoder's states

    @property
    def pays(self) -> bool:
        """Whether bf16 is fast and close enough."""
        return not self.problem and self.gain >= MIN_GAIN and self.difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        return f"{self.gain:.2f} times as fast as float32, states {100 * self.difference:.1f}% off"


@cache
def try_bf16(model: str, threads: int) -> Trial:
    """Try a model in bf16 in a child process; the outcome is cached."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [*CHILD, model, str(threads)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    except subprocess.TimeoutExpired:
        return Trial(f"no answer within {TIMEOUT:g} s")
    if child.returncode < 0:
        return Trial(f"refused by the processor ({signal.Signals(-child.returncode).name})")
    if child.returncode:
        return Trial(f"failed: {(child.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return Trial(**json.loads(child.stdout))


def choose_precision(recipe: Recipe, model: str | Path, device: str, notes: list[str]) -> Recipe:
    """The recipe with `scoring` set to "float32" or "bf16"; the outcome of a trial is added to `notes`.

    A recipe's `precision`, unless "auto", decides instead of its `scoring`.
    """
    requested = recipe.scoring if recipe.precision == "auto" else recipe.precision
    if device != "cpu" or requested == "float32":
        return recipe
    if requested == "int8":
        if not suits_processor():
            notes.append("8-bit products are slow or inexact on this processor: rows are scored in float32.")
            return recipe.model_copy(update={"scoring": "float32"})
        return recipe
    path = Path(model).resolve() if not is_builtin(model) and Path(model).is_dir() else model
    trial = try_bf16(str(path), torch.get_num_threads())
    if requested == "bf16" and trial.problem:
        setting = "scoring" if recipe.precision == "auto" else "precision"
        raise RecipeError(f"bf16 does not run here: {trial.problem}; set {setting} to 'auto' or 'float32'.")
    chosen = "bf16" if requested == "bf16" or trial.pays else "float32"
    notes.append(f"bf16 on this CPU: {trial}; rows are scored in {chosen}.")
    return recipe.model_copy(update={"scoring": chosen})


@torch.inference_mode()
def compare(model: str, threads: int) -> dict[str, float]:
    """Run both precisions in turns: the gain of bf16, and its difference from float32."""
    torch.set_num_threads(threads)
    cloze = load_model(model, "cpu")
    rng = torch.Generator().manual_seed(0)
    width = min(WIDTH, cloze.max_length)
    ids = torch.randint(len(cloze.tokenizer.is_special), (ROWS, width), generator=rng)
    ids[ids == cloze.tokenizer.pad_id] = cloze.tokenizer.mask_id
    seconds: dict[Precision, list[float]] = {"float32": [], "bf16": []}
    states = {}
    for _ in range(REPEATS + 1):
        for precision, durations in seconds.items():
            cloze.options = GpuOptions(precision=precision)
            with cloze.scoring():
                started = time.perf_counter()
                states[precision] = cloze.encoder(input_ids=ids, attention_mask=torch.ones_like(ids))[0].float()
                durations.append(time.perf_counter() - started)
    gain = statistics.median(seconds["float32"][1:]) / statistics.median(seconds["bf16"][1:])  # the first is a warm-up
    difference = (states["bf16"] - states["float32"]).norm() / states["float32"].norm()
    return {"gain": gain, "difference": float(difference)}


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], int(sys.argv[2]))))
