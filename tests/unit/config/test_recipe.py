import tomllib

import pytest

from clozify.config.recipe import Finetune, Recipe, Training, load_recipe, shipped_recipes
from clozify.errors import RecipeError


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_printed_recipe_reads_back_as_the_same_recipe(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert Recipe.model_validate(tomllib.loads(recipe.to_toml())) == recipe


def test_the_paper_s_recipe_is_appendix_b():
    """A number that differs from the table would change every result under the paper's name."""
    paper = load_recipe("paper")
    table = {
        "finetune_without_lm": (1e-8, 4, 1e-5, 1.0, 250, 4, 0.01),
        "finetune": (1e-8, 4, 1e-5, 1.0, 1000, 1, 0.01),
        "distill": (1e-8, 4, 1e-5, 1.0, 5000, 4, 0.01),
        "supervised": (1e-8, 4, 1e-5, 1.0, 250, 4, 0.01),
    }
    names = "adam_epsilon gradient_accumulation_steps learning_rate max_grad_norm max_steps per_gpu_train_batch_size"
    for section, values in table.items():
        result = getattr(paper, section)
        assert tuple(getattr(result, name) for name in [*names.split(), "weight_decay"]) == values
    assert (paper.finetune.alpha, paper.finetune.mlm_probability) == (1e-4, 0.15)
    assert (paper.finetune.per_gpu_helper_batch_size, paper.distill.temperature) == (3, 2.0)
    assert (paper.max_seq_length, paper.repetitions, paper.weighting) == (256, 3, "weighted")


def test_uda_and_mixtext_have_the_numbers_of_appendix_b():
    paper = load_recipe("paper")
    uda, mixtext, augment = paper.uda, paper.mixtext, paper.augment
    for section in (uda, mixtext):
        assert (section.rows_per_step, section.unlabeled_rows_per_step, section.steps_to_try) == (4, 8, ())
    assert (uda.learning_rate, uda.tsa, uda.uda_softmax_temp, uda.uda_confidence_thresh) == (
        2e-5,
        "exponential",
        0.85,
        0.45,
    )
    assert (mixtext.learning_rate, mixtext.head_learning_rate) == (5e-6, 5e-4)
    assert (mixtext.mix_layers, mixtext.temperature, mixtext.alpha) == ((7, 9, 12), 5.0, 16.0)
    assert (augment.method, augment.share, len(augment.backtranslation)) == ("backtranslation", 0.5, 2)
    tried = load_recipe("paper", ["uda.steps_to_try=[500, 1000]", 'augment.backtranslation=[["a", "b"]]'])
    assert (tried.uda.steps_to_try, tried.augment.backtranslation) == ((500, 1000), (("a", "b"),))


def test_single_settings_change_and_nothing_else_does():
    changed = load_recipe("paper", ["distill.max_steps=500", "weighting=uniform"])
    assert (changed.distill.max_steps, changed.weighting) == (500, "uniform")
    assert changed.finetune == load_recipe("paper").finetune


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("distil.max_steps=5", "did you mean 'distill.max_steps'?"),
        ("distill.max_steps", "NAME=VALUE"),
        ("distill.max_steps=-1", "'distill.max_steps' is -1"),
        ("weighting=best", "'weighting' is 'best'"),
    ],
)
def test_a_wrong_setting_is_one_sentence(setting, part):
    with pytest.raises(RecipeError) as error:
        load_recipe("paper", [setting])
    (problem,) = error.value.problems
    assert part in problem


def test_an_unknown_recipe_is_named_with_the_known_ones():
    with pytest.raises(RecipeError, match="'paper' and 'quick'"):
        load_recipe("fast")


@pytest.mark.parametrize(
    ("settings", "rows", "steps"),
    [
        (Training(exact_steps=False), 10, 188),  # 251 passes of 3 micro-batches, 4 a step
        (Training(exact_steps=False), 1000, 251),
        (Finetune(exact_steps=False), 10, 1001),
        (Training(), 10, 250),
        (Training(exact_steps=False, num_train_epochs=3), 160, 30),
    ],
)
def test_the_authors_code_takes_one_step_more_or_fewer_on_few_rows(settings, rows, steps):
    assert settings.steps(rows) == steps
    assert settings.decay_steps(rows) == (30 if settings.num_train_epochs else settings.max_steps)


def test_the_authors_recipe_sets_every_difference_by_name():
    """A difference that is left out would be blamed on the data."""
    theirs, paper = load_recipe("original-code"), load_recipe("paper")
    other = {name for name in type(paper).model_fields if getattr(theirs, name) != getattr(paper, name)}
    assert other == {
        "name", "seeding", "selection", "overlap", "backslashes_to_spaces", "wording", "finetune",
        "finetune_without_lm", "distill", "supervised", "uda", "mixtext",
    }  # fmt: skip
    assert theirs.distill.student_temperature == theirs.distill.temperature == 2
    assert theirs.finetune.lm_targets == "all"
