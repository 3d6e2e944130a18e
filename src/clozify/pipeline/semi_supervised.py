"""The semi-supervised baselines UDA and MixText on the rows of a run (section 4.3).

Where the recipe names several numbers of steps, each is a training of its own, and the one with the best result on the
test rows is reported, as in the paper. A checkpoint of a longer training would not do: the learning rate's decay, the
annealing and MixText's ramp depend on the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clozify.config.recipe import Mixtext, Uda
from clozify.data.decision import Decision
from clozify.methods.mixtext import layers_to_mix, mixtext
from clozify.methods.uda import uda
from clozify.models.classifier import Classifier
from clozify.models.loading import load_config
from clozify.pipeline.augmentation import Augmented, augment
from clozify.pipeline.final_classifier import train_classifier
from clozify.pipeline.run import Run
from clozify.runs.metrics import ClassifierMetrics, TriedSteps
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup

METHODS = ("uda", "mixtext")
CHOSEN_ON_TEST = "best on the test set"


@dataclass(frozen=True)
class SemiSupervised:
    """A `ClassifierTraining` on labelled rows and on augmented unlabelled rows."""

    name: str  # one of METHODS
    method_settings: Uda | Mixtext
    augmented: Augmented

    def settings(self, plan: Plan) -> Uda | Mixtext:  # noqa: ARG002
        """The recipe's section of the method, perhaps with another number of steps."""
        return self.method_settings

    def steps(self, plan: Plan) -> int:
        """The number of optimizer steps."""
        return self.method_settings.steps(len(plan.labeled))

    def key(self, plan: Plan) -> dict[str, Any]:
        """The augmented texts and the balance of labels in a batch."""
        return {"augmented": self.augmented.key, "balance": plan.recipe.balance}

    def fit(self, worker: Worker, classifier: Classifier, setup: TrainingSetup) -> list[float]:
        """Train the classifier; returns the losses."""
        return self.train(worker.plan, classifier, setup)

    def train(self, plan: Plan, classifier: Classifier, setup: TrainingSetup) -> list[float]:
        """Train the classifier outside of a run's folder; returns the losses."""
        method = uda if isinstance(self.method_settings, Uda) else mixtext
        return method(
            classifier,
            classifier.encode(plan.labeled),
            plan.labeled.labels,
            classifier.encode(self.augmented.unlabeled),
            [classifier.encode(version) for version in self.augmented.versions],
            setup,
        )


def train_semi_supervised(run: Run) -> ClassifierMetrics:
    """Train UDA or MixText; the metrics name the augmentation and, where steps were tried, how they were chosen."""
    plan, context = run.plan, run.context
    settings: Uda | Mixtext = getattr(plan.recipe, plan.method)
    texts = augment(run)
    versions = "a version" if len(texts.versions) == 1 else f"{len(texts.versions)} versions"
    size = f"{len(texts.unlabeled):,} unlabelled rows, {versions} of each"
    context.log(f"augmented text: {texts.description}; {size}")
    decision = Decision(plan.task.labels)
    details: dict[str, Any] = {"steps": settings.steps(len(plan.labeled))}
    if settings.steps_to_try:
        metric, tried = plan.task.metric.replace("-", "_"), {}
        for steps in settings.steps_to_try:
            tried[steps], _ = train_classifier(
                run, SemiSupervised(plan.method, settings.with_steps(steps), texts), decision
            )
            score = 100 * getattr(tried[steps], metric)
            context.log(f"{plan.method} with {steps:,} steps  {metric} {score:.1f} on the test rows")
        best = max(tried, key=lambda steps: getattr(tried[steps], metric))
        summaries = {
            str(steps): TriedSteps(**metrics.model_dump(include={"accuracy", "macro_f1", "jobs"}))
            for steps, metrics in tried.items()
        }
        details = {"steps": best, "chosen": CHOSEN_ON_TEST, "tried": summaries}
        settings = settings.with_steps(best)
    metrics, _ = train_classifier(
        run, SemiSupervised(plan.method, settings, texts), decision
    )  # one that was tried is published
    if isinstance(settings, Mixtext):
        config = load_config(run.results / "classifier")
        details["layers"] = layers_to_mix(settings.mix_layers, config.num_hidden_layers)
    details |= {
        "augmentation": texts.description,
        "augmentation_seconds": texts.seconds,
        "versions": len(texts.versions),
        "unlabeled_rows": len(texts.unlabeled),
    }
    return metrics.model_copy(update=details)
