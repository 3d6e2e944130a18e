"""The recipe auto follows the device, the size of the model, and the numbers of labels and rows."""

import pytest

from clozify.config.auto import Conditions, explain, fit_recipe
from clozify.config.recipe import load_recipe
from clozify.pipeline.prepare import TrainInputs, prepare

AUTO = load_recipe("auto")
TASK = {"fields": ["text"], "labels": {"a": "bad", "b": "good"}, "patterns": ["It was {mask}. {text}"]}


def conditions(**changes):
    values = {"device": "cpu", "encoder_parameters": 42_000_000, "labels": 4, "labeled": 50, "unlabeled": 5000}
    return Conditions(**(values | {"method": "pet"} | changes))


def test_steps_follow_the_labelled_rows():
    """77 intents with 8 rows each need more than half a pass."""
    steps = [fit_recipe(AUTO, conditions(labeled=n)).finetune_without_lm.max_steps for n in (10, 50, 200, 616)]
    assert steps[0] == steps[1] < steps[2] < steps[3]
    assert steps[3] * AUTO.finetune_without_lm.rows_per_step >= 6 * 616


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_smaller_models_take_higher_learning_rates(device):
    rates = [
        fit_recipe(AUTO, conditions(device=device, encoder_parameters=n)).finetune_without_lm.learning_rate
        for n in (10_000_000, 42_000_000, 85_000_000, 300_000_000)
    ]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4


def test_a_cpu_gets_less_work_than_a_gpu():
    cpu, gpu = fit_recipe(AUTO, conditions()), fit_recipe(AUTO, conditions(device="cuda"))
    assert cpu.max_pairs is not None
    assert gpu.max_pairs is None
    assert cpu.unlabeled_rows < gpu.unlabeled_rows
    assert cpu.distill.max_steps < gpu.distill.max_steps
    assert cpu.max_seq_length < gpu.max_seq_length


def test_adapt_to_chooses_for_another_device():
    quick = AUTO.with_settings(["adapt_to=cpu"])
    on_gpu = conditions(device="cuda")
    assert fit_recipe(quick, on_gpu) == fit_recipe(quick, conditions())
    assert fit_recipe(AUTO.with_settings(["adapt_to=gpu"]), conditions()).max_pairs is None
    assert "a CPU" in explain(fit_recipe(quick, on_gpu), on_gpu, 6)


def test_many_labels_are_distilled_longer_and_few_rows_not_at_all():
    assert fit_recipe(AUTO, conditions(labels=77)).distill.max_steps > fit_recipe(AUTO, conditions()).distill.max_steps
    assert not fit_recipe(AUTO, conditions(unlabeled=7)).distillation


def test_many_labelled_rows_are_distilled_longer():
    """With 64 rows a label the classifier was less accurate than the ensemble after as many steps as with 8."""
    steps = [fit_recipe(AUTO, conditions(labeled=n)).distill.max_steps for n in (10, 140, 200, 384, 10_000)]
    assert steps[0] == steps[1] < steps[2] < steps[3] <= steps[4]
    assert steps[3] * AUTO.distill.rows_per_step >= 10 * 384
    assert (
        fit_recipe(AUTO, conditions(labeled=384, multilabel=True)).distill
        == fit_recipe(AUTO, conditions(labeled=50, multilabel=True)).distill
    )


def test_many_labels_get_larger_steps_in_pairs_of_rows_and_learn_offsets():
    few, many = (fit_recipe(AUTO, conditions(labels=n, labeled=750)).finetune_without_lm for n in (19, 20))
    assert few.label_learning_rate is None
    assert many.label_learning_rate is not None
    assert (few.rows_per_label, many.rows_per_label) == (1, 2)
    assert many.rows_per_step * many.max_steps >= 15 * 750
    masks = AUTO.with_settings(["wording.several_tokens=masks"])
    assert fit_recipe(masks, conditions(labels=20)).finetune_without_lm.label_learning_rate is None


def test_a_run_fits_the_recipe_and_the_user_s_settings_come_last():
    labeled = [("one", "a"), ("two", "b")]
    settings = {"finetune_without_lm.max_steps": 7}
    plan = prepare(
        TrainInputs(TASK, labeled, [f"text {n}" for n in range(500)], model="builtin:mini", settings=settings), "cpu"
    )
    assert plan.recipe.finetune_without_lm.max_steps == 7
    assert plan.recipe.finetune_without_lm.frozen_layers > 0
    assert len(plan.unlabeled) == plan.recipe.unlabeled_rows < 500
    assert plan.choice.startswith(
        "recipe auto (a CPU, 11 M encoder parameters, 2 labels, 2 labelled rows): 1 member, 7 steps"
    )
    assert prepare(TrainInputs(TASK, labeled, recipe="paper"), "cpu").choice == ""


def test_the_choice_is_one_line():
    for method in ("pet", "ipet", "supervised"):
        of = conditions(method=method)
        assert "\n" not in explain(fit_recipe(AUTO, of), of, 6)


def test_several_labels_a_row_take_batches_as_they_are_and_a_longer_distillation():
    """Chosen on rows of NLU++ that are not reported."""
    one, several = (
        fit_recipe(load_recipe("auto"), Conditions("cpu", 42_000_000, 40, 50, 500, "pet", multilabel))
        for multilabel in (False, True)
    )
    assert one.finetune_without_lm.balanced_batches
    assert not several.finetune_without_lm.balanced_batches
    assert several.finetune_without_lm.max_steps == 50
    assert (several.distill.max_steps, several.distill.temperature) == (400, 1.0)
