"""SmolLM2-135M-Instruct, a real causal model with GGUF weights: zero-shot, fine-tuned whole and by LoRA."""

from pathlib import Path

import numpy as np
import pytest

import clozify
from tests.smollm2 import smollm2_gguf

pytestmark = pytest.mark.slow

TASK = {
    "name": "news",
    "fields": ["text"],
    "label": "label",
    "patterns": ["{text} ( {mask} )", "[ Category: {mask} ] {text}"],
    "labels": {"Sports": "Sports", "Business": "Business"},
}
ROWS = [
    {"text": "The striker scored twice as the home side won the cup final on penalties.", "label": "Sports"},
    {"text": "Shares fell after the bank reported a loss for the third quarter.", "label": "Business"},
    {"text": "The champion won the match in straight sets to reach the semi-finals.", "label": "Sports"},
    {"text": "The retailer will cut 2,000 jobs and close stores as profits shrink.", "label": "Business"},
    {"text": "The coach praised his goalkeeper after the team's victory in the derby.", "label": "Sports"},
    {"text": "The company agreed to buy its rival for four billion dollars in cash.", "label": "Business"},
]


@pytest.fixture(scope="module")
def smollm2(request) -> Path:
    return smollm2_gguf(request.config)


def test_zero_shot_is_right_on_plain_rows(smollm2):
    result = clozify.zero_shot(TASK, ROWS, smollm2, calibrate=False, max_length=64)
    assert result.accuracy.ensemble >= 5 / 6


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_two_steps_of_training_lower_the_loss_on_the_rows(smollm2, adapter, tmp_path):
    run = clozify.train(
        TASK | {"patterns": TASK["patterns"][:1]},
        ROWS,
        tmp_path / "run",
        test=ROWS,
        model=smollm2,
        recipe="quick",
        settings={"finetune_without_lm.max_steps": 2, "adapter.method": adapter, "repetitions": 1},
    )
    (path,) = (tmp_path / "run/members").glob("*/test.npy")
    assert np.isfinite(np.load(path)).all()
    assert run.metrics.ensemble.accuracy >= 5 / 6
