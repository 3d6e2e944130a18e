"""What a run measured, as types: the content of `metrics.json`.

Every method fills its own fields: PET and iPET `untrained`, `members`, `ensemble` and `classifier`, iPET also
`generations`, the baselines the field of their name; all methods fill `trivial`. A field is None where nothing was
measured, for example without test rows; `metrics.json` leaves it out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from clozify.metrics import BasicMetrics, Evaluation, GroupMetrics, LabelMetrics
from clozify.utils.checked_files import read_record


class Record(BaseModel):
    """A part of `metrics.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts; fields without a value are left out."""
        return self.model_dump(mode="json", exclude_none=True)


class UntrainedMetrics(Record):
    """The pairs before any training: their accuracy on T is the ensemble weight w(p)."""

    # one per pair, of several labels a row the average precision; None without labelled rows
    accuracy_on_labeled: list[float] | None = None
    job: str | None = None  # None where the members' jobs measured it


class UnsupervisedMetrics(Record):
    """The pairs before any training on the test rows (lines 1 and 2 of table 1)."""

    accuracy: float  # mean over the pairs
    macro_f1: float
    micro_f1: float | None = None  # with several labels a row, here and below
    best: float  # accuracy, or micro-F1, of the best pair
    pairs: list[BasicMetrics]


class MemberMetrics(Record):
    """One ensemble member on the test rows; a generation's members have no detail, nor those of very many labels."""

    pair: str
    seed: int | None
    job: str  # KIND/KEY of its folder in the run
    accuracy: float
    macro_f1: float
    micro_f1: float | None = None
    calibration_error: float | None = None
    labels: dict[str, LabelMetrics] | None = None
    confusion: list[list[int]] | None = None


class MembersMetrics(Record):
    """All members on the test rows."""

    accuracy: float  # mean over the members
    macro_f1: float
    micro_f1: float | None = None
    min: float  # accuracy, or micro-F1, of the worst pair, a mean over its seeds
    max: float
    pairs: dict[str, BasicMetrics]
    each: list[MemberMetrics]


class Generation(Record):
    """One generation of iPET: its training sets, its certainty, and its members on the test rows."""

    generation: int
    members: int
    training_rows: int  # of a member, rounded
    jobs: list[str]
    certainty: float | None = None  # mean probability of the predicted label over the unlabelled rows
    drawn: dict[str, float] | None = None  # label -> rows drawn, mean over the members
    certainty_of_drawn: float | None = None
    topped_up: int | None = None
    agreement: float | None = None  # share of unlabelled rows with the previous generation's label
    consensus: float | None = None  # share of unlabelled rows to which a member gives the ensemble's label, the mean
    kept: bool = True  # False: worse than the one before, which is the result
    accuracy: float | None = None
    macro_f1: float | None = None
    micro_f1: float | None = None
    min: float | None = None
    max: float | None = None
    each: list[MemberMetrics] | None = None


class AccuracyMetrics(Record):
    """The estimated accuracy of a run's result, without test rows; `reliability.json` has the held-out rows, too.

    With several labels a row, the accuracy is the exact match of all of them, and micro-F1 is estimated, too.
    """

    rows: int  # labelled rows, each scored by models that were trained without it
    folds: int
    accuracy: float
    low: float  # of the 95% interval
    high: float
    temperature: float  # the result's scores were divided by it
    micro_f1: float | None = None  # with several labels a row, as its 95% interval
    micro_f1_low: float | None = None
    micro_f1_high: float | None = None

    @property
    def main(self) -> tuple[float, float, float]:
        """The accuracy or, with several labels a row, micro-F1, with its 95% interval."""
        if self.micro_f1 is None or self.micro_f1_low is None or self.micro_f1_high is None:
            return self.accuracy, self.low, self.high
        return self.micro_f1, self.micro_f1_low, self.micro_f1_high


class TriedSteps(Record):
    """One number of steps of UDA or MixText that was tried on the test rows."""

    accuracy: float
    macro_f1: float
    jobs: list[str]


class ClassifierMetrics(Record):
    """The final classifier's repetitions: mean and standard deviation on the test rows."""

    jobs: list[str]
    dev_each: list[float] | None = None
    kept: int | None = None  # which repetition's weights are kept, where development rows decided
    accuracy: float | None = None
    accuracy_std: float | None = None
    accuracy_each: list[float] | None = None
    macro_f1: float | None = None
    macro_f1_std: float | None = None
    macro_f1_each: list[float] | None = None
    micro_f1: float | None = None
    micro_f1_std: float | None = None
    micro_f1_each: list[float] | None = None
    calibration_error: float | None = None
    calibration_error_std: float | None = None
    calibration_error_each: list[float] | None = None
    labels: dict[str, LabelMetrics] | None = None  # of the kept repetition, as all that follow
    confusion: list[list[int]] | None = None
    confused: list[tuple[str, str, int]] | None = None
    groups: GroupMetrics | None = None
    # of UDA and MixText alone
    steps: int | None = None
    chosen: str | None = None  # how `steps` was chosen
    tried: dict[str, TriedSteps] | None = None
    layers: list[int] | None = None
    augmentation: str | None = None
    augmentation_seconds: float | None = None
    versions: int | None = None
    unlabeled_rows: int | None = None  # also of a static classifier
    agreement: float | None = None  # of a static classifier: share of held-out rows with its teacher's label


class TeacherMetrics(Record):
    """A teacher of a run that has others than patterns; all patterns of a model are one teacher."""

    name: str
    kind: str  # "patterns", "rule", "function", "classifier", "nli", "estimator" or "openai"
    weight: float
    estimated_accuracy: float  # where it votes
    coverage: float | None = None  # fraction of the unlabelled rows on which it votes
    conflicts: float | None = None  # of these, the fraction to which the combination gives another label
    votes_on_labeled: int | None = None
    correct_on_labeled: int | None = None
    accuracy: float | None = None  # on the test rows where it votes
    gain: float | None = None  # accuracy of the combination on the test rows, minus that without this teacher


class TrivialBaselines(Record):
    """What takes no language model, on the test rows."""

    tfidf: BasicMetrics | None = None  # logistic regression on TF-IDF vectors; None without labelled rows
    majority: BasicMetrics  # always the most frequent label of the test rows
    majority_label: str


class Metrics(Record):
    """Everything that a run measured."""

    method: str
    task: str
    model: str
    recipe: str
    rows: dict[str, int]  # data set -> rows
    warnings: list[str]
    run: str  # hash of what the run was asked for
    untrained: UntrainedMetrics | None = None
    generations: list[Generation] | None = None
    unsupervised: UnsupervisedMetrics | None = None
    members: MembersMetrics | None = None
    teachers: list[TeacherMetrics] | None = None
    ensemble: Evaluation | None = None
    classifier: ClassifierMetrics | None = None
    static: ClassifierMetrics | None = None  # the result where `classifier` labelled rows for it (--student static)
    supervised: ClassifierMetrics | None = None
    uda: ClassifierMetrics | None = None
    mixtext: ClassifierMetrics | None = None
    trivial: TrivialBaselines | None = None
    estimate: AccuracyMetrics | None = None
    thresholds: dict[str, float] | None = None  # of the result's probabilities, with several labels a row

    @classmethod
    def load(cls, path: Path) -> Metrics:
        """The metrics in a `metrics.json`."""
        return read_record(path, cls)

    @property
    def result(self) -> ClassifierMetrics | Evaluation | None:
        """The measurement of what the run produced: its classifier, or its ensemble where there is none."""
        return self.static or self.classifier or self.supervised or self.uda or self.mixtext or self.ensemble
