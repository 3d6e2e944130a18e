"""What a CPU scores rows in: float32, or bf16 where the processor truly runs it, and gains by it.

In: a recipe's `scoring` and a model. Out: the recipe with `scoring` settled. A processor may announce an instruction
and still refuse it, which kills the process: bf16 is tried in a child process first, on the model itself, against
float32 and a clock.
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
from clozify.models.cloze import load_model

CHILD = (sys.executable, "-m", "clozify.models.cpu_precision")
PATIENCE = 120.0  # seconds
ROWS, WIDTH, TIMES = 8, 64, 3  # tokens of a pass, and how often each way takes it
GAIN = 1.1  # so much faster it has to be
CLOSE = 0.05  # |bf16 - float32| / |float32| of the encoder's states, at most


@dataclass(frozen=True)
class Trial:
    """What came of trying bf16."""

    problem: str = ""  # why it does not run here; empty where it does
    gain: float = 0.0  # seconds of float32 / seconds of bf16
    difference: float = 0.0  # |bf16 - float32| / |float32| of the encoder's states

    @property
    def pays(self) -> bool:
        """Whether to take it."""
        return not self.problem and self.gain >= GAIN and self.difference <= CLOSE

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        return f"{self.gain:.2f} times as fast as float32, states {100 * self.difference:.1f}% off"


@cache
def try_bf16(model: str, threads: int) -> Trial:
    """Try a model in bf16 in a child process; once a process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
    command = [*CHILD, model, str(threads)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    except subprocess.TimeoutExpired:
        return Trial(f"no answer within {PATIENCE:g} s")
    if child.returncode < 0:
        return Trial(f"refused by the processor ({signal.Signals(-child.returncode).name})")
    if child.returncode:
        return Trial(f"failed: {(child.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return Trial(**json.loads(child.stdout))


def choose_precision(recipe: Recipe, model: str | Path, device: str, notes: list[str]) -> Recipe:
    """The recipe with `scoring` settled; what a trial found is noted."""
    if device != "cpu" or recipe.scoring == "float32":
        return recipe
    place = Path(model).resolve() if str(model) != "builtin" and Path(model).is_dir() else model
    trial = try_bf16(str(place), torch.get_num_threads())
    if recipe.scoring == "bf16" and trial.problem:
        raise RecipeError(f"bf16 does not run here: {trial.problem}; set scoring to 'auto' or 'float32'.")
    chosen = "bf16" if recipe.scoring == "bf16" or trial.pays else "float32"
    notes.append(f"bf16 on this CPU: {trial}; rows are scored in {chosen}.")
    return recipe.model_copy(update={"scoring": chosen})


@torch.inference_mode()
def compare(model: str, threads: int) -> dict[str, float]:
    """Both ways in turns: how much faster bf16 is, and how far off."""
    torch.set_num_threads(threads)
    cloze = load_model(model, "cpu")
    rng = torch.Generator().manual_seed(0)
    width = min(WIDTH, cloze.max_length)
    ids = torch.randint(len(cloze.tokenizer.is_special), (ROWS, width), generator=rng)
    ids[ids == cloze.tokenizer.pad_id] = cloze.tokenizer.mask_id
    seconds: dict[Precision, list[float]] = {"float32": [], "bf16": []}
    states = {}
    for _ in range(TIMES + 1):
        for way, taken in seconds.items():
            cloze.options = GpuOptions(precision=way)
            with cloze.scoring():
                began = time.perf_counter()
                states[way] = cloze.encoder(input_ids=ids, attention_mask=torch.ones_like(ids))[0].float()
                taken.append(time.perf_counter() - began)
    gain = statistics.median(seconds["float32"][1:]) / statistics.median(seconds["bf16"][1:])  # the first is a warm-up
    difference = (states["bf16"] - states["float32"]).norm() / states["float32"].norm()
    return {"gain": gain, "difference": float(difference)}


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], int(sys.argv[2]))))
