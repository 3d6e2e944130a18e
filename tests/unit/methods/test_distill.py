"""Distillation on hand-made soft labels."""

import numpy as np
import pytest
from accelerate import Accelerator
from datasets import Dataset

from clozify.config.recipe import load_recipe
from clozify.config.task import parse_task
from clozify.data.rows import Rows
from clozify.methods.distill import confident_rows, distill
from clozify.models.classifier import new_classifier
from clozify.training.loop import TrainingSetup, seed_everything

TASK = parse_task('name = "n"\nfields = ["text"]\npatterns = ["{text} {mask}"]\n[labels]\n1 = "bad"\n2 = "great"\n')


@pytest.mark.parametrize("first_label", [0, 1])
def test_a_student_follows_its_teacher_whatever_it_says(tiny_folder, first_label):
    """The words mean nothing: only the teacher decides which of them stands for which label."""
    rng = np.random.default_rng(0)
    has_word = np.arange(80) % 2
    rows = Rows(Dataset.from_dict({"text": [f"{('game', 'data')[w]} {rng.integers(100)}" for w in has_word]}), TASK)
    teacher = np.where((has_word == first_label)[:, None], [0.1, 0.9], [0.8, 0.2]).astype(np.float32)  # (rows, labels)
    settings = ["distill.max_steps=100", "distill.learning_rate=2e-3", "max_seq_length=16"]
    recipe = load_recipe("paper", settings)
    rng = seed_everything(0)
    classifier = new_classifier(str(tiny_folder("bert")), TASK, recipe, "cpu")
    losses = distill(
        classifier, classifier.encode(rows), teacher, TrainingSetup(recipe.distill, rng, Accelerator(cpu=True))
    )
    scores = np.concatenate([chunk for _, chunk in classifier.score_rows(rows, 2_048)])
    assert np.array_equal(scores.argmax(axis=1), teacher.argmax(axis=1))
    assert losses[-1] < losses[0]


def test_confident_rows_are_the_surest_of_each_label():
    """Labels that the teachers are less sure of in all rows keep their share."""
    sure, unsure = [[0.99, 0.01], [0.9, 0.1], [0.95, 0.05], [0.8, 0.2]], [[0.4, 0.6], [0.45, 0.55]]
    targets = np.array([*unsure, *sure])
    assert confident_rows(targets, 0.5).tolist() == [0, 2, 4]
    assert confident_rows(targets, 1.0).tolist() == list(range(6))
    assert confident_rows(targets, 0.01).tolist() == [0, 2]  # no label is lost


def test_a_student_sees_no_other_rows_than_those_it_is_given(tiny_folder):
    """The soft labels of the rows that are left out are wrong, and do not matter."""
    rows = Rows(Dataset.from_dict({"text": [f"game {number}" for number in range(8)]}), TASK)
    recipe = load_recipe("paper", ["distill.max_steps=4", "max_seq_length=16"])
    encoder, chosen, trained = str(tiny_folder("bert")), np.array([1, 2, 5]), []
    for wrong in (0.1, 0.9):
        targets = np.full((8, 2), wrong, dtype=np.float32)
        targets[chosen] = [0.2, 0.8]
        rng = seed_everything(0)
        classifier = new_classifier(encoder, TASK, recipe, "cpu")
        setup = TrainingSetup(recipe.distill, rng, Accelerator(cpu=True))
        trained.append(distill(classifier, classifier.encode(rows), targets, setup, chosen))
    assert trained[0] == trained[1]
