"""bf16 on a CPU, where it runs at all, labels rows as float32 does."""

import numpy as np
import pytest

from clozify.gpu.options import GpuOptions
from clozify.methods.score import score_rows
from clozify.models import cpu_precision as precision
from clozify.models.cpu_precision import try_bf16
from clozify.models.task_prompts import compile_task


@pytest.mark.slow
def test_where_bf16_runs_its_scores_agree_with_float32(tiny_folder, tiny, rows):
    """Scores that are far off would label the unlabelled data otherwise, at a gain in speed."""
    trial = try_bf16(str(tiny_folder("bert")), 1)
    if trial.problem:
        pytest.skip(f"bf16 on this CPU: {trial}")
    assert trial.gain > 0
    assert 0 < trial.difference < precision.MAX_DIFFERENCE
    model = tiny("bert")
    questions = compile_task(model, rows.task)

    def scores():
        return np.concatenate([part for _, part in score_rows(model, questions, rows, 40)], axis=1)

    expected = scores()
    model.options = GpuOptions(precision="bf16")
    try:
        result = scores()
    finally:
        model.options = GpuOptions(precision="float32")
    assert np.abs(result - expected).max() < 0.1 * np.abs(expected).max()
    assert not np.array_equal(result, expected)
    assert np.array_equal(scores(), expected)
