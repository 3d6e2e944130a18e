"""The recipe `auto`: settings that suit the device, the size of the model, and the numbers of labels and rows.

The rules were chosen on rows kept out of the training sets of AG's News, Yelp, Yahoo, MNLI, Emotion, HWU64 and the
sample data with clozify-small (benchmarks/RESULTS.md); none looks at test rows or at a clock, so the same inputs give
the same recipe on every machine of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from clozify.config.recipe import Recipe, load_recipe

# encoder parameters below which a learning rate holds for the training of a whole encoder
LEARNING_RATES = ((20e6, 1e-4), (60e6, 3e-5), (150e6, 2e-5), (float("inf"), 1e-5))
FROZEN_ON_CPU = 0.5  # of the layers: their states are computed once
HEAD_LEARNING_RATE = 1e-3
PASSES = 7  # over the labelled rows
MANY_ROWS = 150  # labelled rows from which upper layers take a higher learning rate, and the classifier more steps
MANY_LABELS = 20  # from here on labels' vectors learn offsets, and the labels need more passes and unlabelled rows
MANY_LABELS_PASSES = 15
MANY_LABELS_ROWS_PER_STEP = 32
LABEL_LEARNING_RATE = 1e-3
DISTILL_PASSES = 16  # over many labelled rows, which are among the classifier's
UNLABELED_PER_LABEL = 40
IPET_ROWS_PER_LABEL = 20
ESTIMATE_FOLDS = 5  # where training is cheap; auto.toml has the number for a CPU
FEWEST_TO_DISTILL = 2  # unlabelled rows a label: a label that no row shows is not learned


@dataclass(frozen=True)
class Conditions:
    """What the recipe is chosen by."""

    device: str  # "cpu" or "cuda"
    encoder_parameters: int  # without embeddings
    labels: int
    labeled: int  # rows
    unlabeled: int  # rows
    method: str
    multilabel: bool = False

    @property
    def learning_rate(self) -> float:
        """The peak learning rate of a whole encoder."""
        return next(rate for limit, rate in LEARNING_RATES if self.encoder_parameters < limit)

    @property
    def many_labels(self) -> bool:
        """Whether there are so many labels that a step holds few rows of each."""
        return self.labels >= MANY_LABELS and not self.multilabel

    def steps(self, fewest: int, most: int, rows_per_step: int) -> int:
        """Steps for some passes over the labelled rows, within limits; twice as many for several labels a row."""
        factor = 2 if self.multilabel else 1
        passes = MANY_LABELS_PASSES if self.many_labels else factor * PASSES
        return min(most, max(factor * fewest, ceil(passes * self.labeled / rows_per_step)))


def fit_recipe(recipe: Recipe, conditions: Conditions) -> Recipe:
    """The recipe with the settings that depend on the conditions; what differs from the shipped recipe stays."""
    conditions = replace(conditions, device=_device(recipe, conditions))
    changed = _changes(load_recipe("auto").model_dump(), recipe.model_dump())
    return Recipe.model_validate(_merge(_fit(recipe, conditions).model_dump(), changed))


def _device(recipe: Recipe, conditions: Conditions) -> str:
    """The device that settings are chosen for."""
    return {"device": conditions.device, "cpu": "cpu", "gpu": "cuda"}[recipe.adapt_to]


def _changes(shipped: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The entries of `own` that differ from the shipped recipe's, section by section."""
    changed = {}
    for name, value in own.items():
        if isinstance(value, dict):
            changed[name] = _changes(shipped[name], value)
        elif value != shipped[name]:
            changed[name] = value
    return changed


def _merge(content: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    return content | {
        name: _merge(content[name], value) if isinstance(value, dict) else value for name, value in changed.items()
    }


def _fit(recipe: Recipe, conditions: Conditions) -> Recipe:
    """The recipe with all settings that depend on the conditions."""
    if conditions.many_labels:
        recipe = _fit_many_labels(recipe, conditions.labels)
    fitted = _fit_cpu(recipe, conditions) if conditions.device == "cpu" else _fit_gpu(recipe, conditions)
    if conditions.multilabel:
        fitted = _fit_multilabel(fitted)
    if conditions.method == "frozen":
        estimate = fitted.estimate.model_copy(update={"folds": ESTIMATE_FOLDS})
        fitted = fitted.model_copy(update={"estimate": estimate})
    if conditions.labeled == 0:
        fitted = fitted.model_copy(update={"ipet": fitted.ipet.model_copy(update={"generations": 3})})
    return fitted.model_copy(update={"distillation": conditions.unlabeled >= FEWEST_TO_DISTILL * conditions.labels})


def _fit_multilabel(recipe: Recipe) -> Recipe:
    """For several labels a row: batches with labels as frequent as in T, and soft labels at temperature 1."""
    member = recipe.finetune_without_lm.model_copy(update={"balanced_batches": False, "contrastive": 0.0})
    steps = min(1000, 2 * recipe.distill.max_steps)
    changes = {"temperature": 1.0, "head_learning_rate": 3e-3, "max_steps": steps, "warmup_steps": steps // 10}
    distill = recipe.distill.model_copy(update=changes)
    return recipe.model_copy(update={"finetune_without_lm": member, "distill": distill})


def _fit_many_labels(recipe: Recipe, labels: int) -> Recipe:
    """For many labels: larger steps, in pairs of rows with the same label, and offsets to the labels' vectors."""
    micro_batches = recipe.distill.gradient_accumulation_steps
    larger: dict[str, float] = {"per_gpu_train_batch_size": MANY_LABELS_ROWS_PER_STEP // micro_batches}
    member = larger | {"rows_per_label": 2}
    if recipe.wording.several_tokens == "mean":
        member["label_learning_rate"] = LABEL_LEARNING_RATE
    ipet: dict[str, float] = {"enough": IPET_ROWS_PER_LABEL * labels}
    sections = {"finetune_without_lm": member, "distill": larger, "supervised": larger, "ipet": ipet}
    return recipe.model_copy(
        update={name: getattr(recipe, name).model_copy(update=changes) for name, changes in sections.items()}
    )


def _fit_cpu(recipe: Recipe, conditions: Conditions) -> Recipe:
    """Minutes on a CPU: few members, the upper half of the layers, and no more unlabelled rows than are read."""
    rate, frozen = conditions.learning_rate, FROZEN_ON_CPU
    if recipe.adapter.method != "none":
        frozen = 0.0  # adapters are small already
    steps = conditions.steps(25, 400, recipe.finetune_without_lm.rows_per_step)
    distill_steps = _distill_steps_on_cpu(recipe, conditions)
    member = {
        "max_steps": steps,
        "warmup_steps": steps // 10,
        "learning_rate": rate * (3 if conditions.labeled < MANY_ROWS else 3.5),
        "frozen_layers": frozen,
    }
    student = {"learning_rate": 3 * rate, "head_learning_rate": HEAD_LEARNING_RATE, "frozen_layers": FROZEN_ON_CPU}
    supervised_steps = max(100, steps)
    return recipe.model_copy(
        update={
            "max_pairs": 3,
            "estimate": recipe.estimate.model_copy(update={"pairs": 2}),
            "unlabeled_rows": _unlabeled_rows(conditions, distill_steps),
            "finetune_without_lm": recipe.finetune_without_lm.model_copy(update=member),
            "distill": recipe.distill.model_copy(
                update={
                    **student,
                    "learning_rate": 6 * rate,
                    "max_steps": distill_steps,
                    "warmup_steps": distill_steps // 10,
                }
            ),
            "supervised": recipe.supervised.model_copy(
                update={**student, "max_steps": supervised_steps, "warmup_steps": supervised_steps // 10}
            ),
        }
    )


def _distill_steps_on_cpu(recipe: Recipe, conditions: Conditions) -> int:
    """Steps of the classifier: more for many labels, and for many labelled rows."""
    fewest, most = (200, 800) if conditions.many_labels else (40, 400)
    steps = max(80, fewest + 4 * conditions.labels)
    if conditions.labeled >= MANY_ROWS and not conditions.multilabel:
        steps = max(steps, ceil(DISTILL_PASSES * conditions.labeled / recipe.distill.rows_per_step))
    return min(most, steps)


def _unlabeled_rows(conditions: Conditions, distill_steps: int) -> int:
    """How many unlabelled rows to label on a CPU."""
    if conditions.many_labels:
        return UNLABELED_PER_LABEL * conditions.labels
    return max(300, 2 * distill_steps) * (2 if conditions.method == "ipet" else 1)


def _fit_gpu(recipe: Recipe, conditions: Conditions) -> Recipe:
    """On a GPU, where the paper's members and longer rows are affordable: whole encoders, more steps."""
    rate = conditions.learning_rate * (2 if conditions.many_labels else 1)
    steps = conditions.steps(100, 1000, recipe.finetune_without_lm.rows_per_step)
    supervised_steps = conditions.steps(200, 1000, recipe.supervised.rows_per_step)
    student = {"learning_rate": rate, "head_learning_rate": HEAD_LEARNING_RATE}
    return recipe.model_copy(
        update={
            "repetitions": 3,
            "max_seq_length": 256,
            "unlabeled_rows": 20_000,
            "finetune_without_lm": recipe.finetune_without_lm.model_copy(
                update={"max_steps": steps, "warmup_steps": steps // 10, "learning_rate": rate}
            ),
            "distill": recipe.distill.model_copy(update={**student, "max_steps": 1000, "warmup_steps": 100}),
            "supervised": recipe.supervised.model_copy(
                update={**student, "max_steps": supervised_steps, "warmup_steps": supervised_steps // 10}
            ),
            "ipet": recipe.ipet.model_copy(update={"enough": max(1000, recipe.ipet.enough)}),
            "estimate": recipe.estimate.model_copy(update={"folds": ESTIMATE_FOLDS}),
        }
    )


def explain(recipe: Recipe, conditions: Conditions, pairs: int) -> str:
    """One line: what was chosen, and for which conditions."""
    device = "a CPU" if _device(recipe, conditions) == "cpu" else "a GPU"
    reason = f"{device}, {conditions.encoder_parameters / 1e6:.0f} M encoder parameters, {conditions.labels} labels"
    if conditions.method == "supervised":
        section = recipe.supervised
        return f"recipe auto ({reason}): {section.max_steps} steps at {section.learning_rate:.0e}"
    if conditions.method == "frozen":
        rows = min(conditions.unlabeled, recipe.frozen.unlabeled_rows)
        return (
            f"recipe auto ({reason}, {conditions.labeled} labelled rows): label vectors of {pairs} pairs, "
            f"{recipe.max_seq_length} tokens, {rows:,} of {conditions.unlabeled:,} unlabelled rows"
        )
    member = recipe.member_settings(recipe.language_modeling)
    layers = f", the upper {1 - member.frozen_layers:.0%} of the layers" if member.frozen_layers else ""
    rows = min(conditions.unlabeled, recipe.unlabeled_rows or conditions.unlabeled)
    count = min(pairs, recipe.max_pairs or pairs) * recipe.repetitions
    parts = [
        f"{count} member{'s' if count > 1 else ''}",
        f"{member.max_steps} steps at {member.learning_rate:.0e}{layers}",
        f"{recipe.max_seq_length} tokens",
    ]
    if conditions.unlabeled:
        parts.append(f"{rows:,} of {conditions.unlabeled:,} unlabelled rows")
    if conditions.multilabel and recipe.multilabel.threshold is None:
        parts.append(f"{recipe.multilabel.folds} models for thresholds and an estimate of micro-F1")
    parts.append(f"a classifier of {recipe.distill.max_steps} steps" if recipe.distillation else "no classifier")
    if recipe.estimate.folds and not (conditions.multilabel and recipe.multilabel.threshold is None):
        of_fold = 1 if conditions.multilabel else min(count, recipe.estimate.pairs or count)
        metric = "micro-F1" if conditions.multilabel else "the accuracy"
        parts.append(f"{recipe.estimate.folds * of_fold} models to estimate {metric} (--no-estimate leaves them out)")
    return f"recipe auto ({reason}, {conditions.labeled} labelled rows): {', '.join(parts)}"
