"""What UDA and MixText train on, and how: the part of the final classifier's training that is theirs.

In: a run's plan and the augmented pile. Out: a `SemiSupervised`, which `final.py` trains like any other classifier:
once a repetition, each a job of the run's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clozify.config.recipe import Mixtext, Uda
from clozify.methods.mixtext import mixtext
from clozify.methods.uda import uda
from clozify.models.classifier import Classifier
from clozify.pipeline.augmentation import Augmented
from clozify.runs.plan import Plan
from clozify.training.loop import TrainingSetup

METHODS = ("uda", "mixtext")


@dataclass(frozen=True)
class SemiSupervised:
    """A training on labelled rows and on augmented unlabelled ones."""

    kind: str  # one of METHODS
    settings: Uda | Mixtext
    augmented: Augmented

    @property
    def key(self) -> dict[str, Any]:
        """What a training depends on beside what every classifier does."""
        return {"augmented": self.augmented.key}

    def fit(self, plan: Plan, classifier: Classifier, setup: TrainingSetup) -> list[float]:
        """Train the classifier in place; returns the losses."""
        method = uda if isinstance(self.settings, Uda) else mixtext
        return method(
            classifier,
            classifier.encode(plan.labeled),
            plan.labeled.labels,
            classifier.encode(self.augmented.pile),
            [classifier.encode(version) for version in self.augmented.versions],
            setup,
        )
