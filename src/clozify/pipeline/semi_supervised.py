"""UDA and MixText beside PET, on the same rows (section 4.3): one training, or the best of several on the test set.

In: a run's run. Out: the numbers of the method, the classifier in the run's folder. The learning rate's fall, the
annealing and MixText's ramp depend on the number of steps, so every number that is tried is a training of its own, not
a checkpoint of a longer one.
"""

from __future__ import annotations

from typing import Any

from clozify.config.recipe import Mixtext, Uda
from clozify.methods.mixtext import layers_to_mix
from clozify.pipeline.augmentation import augmented
from clozify.pipeline.final_classifier import train_classifiers
from clozify.pipeline.run import Run
from clozify.pipeline.semi_supervised_training import SemiSupervised

ON_TEST = "best on the test set"


def compare(run: Run) -> dict[str, Any]:
    """Train UDA or MixText; its numbers name the augmentation and, where steps were tried, that the test set chose."""
    plan, folder = run.plan, run.folder
    settings: Uda | Mixtext = getattr(plan.recipe, plan.method)
    texts = augmented(run)
    run.context.log(
        f"augmented text: {texts.how}; {len(texts.pile):,} unlabelled rows, {len(texts.versions)} versions of each"
    )

    def trained(with_settings: Uda | Mixtext) -> dict[str, Any]:
        return train_classifiers(run, None, SemiSupervised(plan.method, with_settings, texts))

    found: dict[str, Any] = {"steps": settings.steps(len(plan.labeled))}
    if settings.steps_to_try:
        metric = plan.task.metric.replace("-", "_")
        tried = {}
        for steps in settings.steps_to_try:
            tried[steps] = trained(settings.with_steps(steps))
            run.context.log(
                f"{plan.method} with {steps:,} steps  {metric} {100 * tried[steps][metric]:.1f} on the test rows"
            )
        best = max(tried, key=lambda steps: tried[steps][metric])
        found = {"steps": best, "chosen": ON_TEST}
        found["tried"] = {
            str(steps): {name: numbers[name] for name in ("accuracy", "macro_f1", "jobs")}
            for steps, numbers in tried.items()
        }
        settings = settings.with_steps(best)
    found |= trained(settings)  # what was tried is there: only its classifier is put in its place
    if isinstance(settings, Mixtext):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder.path / "classifier", local_files_only=True)
        found["layers"] = layers_to_mix(settings.mix_layers, config.num_hidden_layers)
    return found | {
        "augmentation": texts.how,
        "augmentation_seconds": texts.seconds,
        "versions": len(texts.versions),
        "unlabeled_rows": len(texts.pile),
    }
