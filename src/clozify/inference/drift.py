"""Implements `clozify drift`: whether new rows differ from the run's unlabelled rows, by more than chance.

The classifier or ensemble predicts both, so that they compare. What is compared of the reference rows is kept in the
run's folder, so that the next call need neither read nor predict them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from clozify.data.in_memory import RowSource, load_rows
from clozify.data.rows import Rows, read_rows
from clozify.errors import ClozifyError, DataError, RunError
from clozify.inference.abstaining import REJECTED
from clozify.inference.drift_scope import ReferenceStates, fit_reference, probabilities_and_states
from clozify.inference.finished_run import FinishedRun
from clozify.methods import drift as tests
from clozify.models.classifier_folder import ONNX_FILE
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.report.unlabeled import unlabeled_ids
from clozify.runs.keys import hash_file, hash_key
from clozify.runs.metrics import Record
from clozify.runs.records import ENSEMBLE_FILE
from clozify.runs.results import weights_hash
from clozify.utils.atomic import atomic_write_text
from clozify.utils.checked_files import read_record

LEVEL, MIN_EFFECT, MAX_ROWS = 0.01, 0.05, 2_000
MIN_UNUSED = 200  # reference rows that the classifier was not trained on; with fewer, all rows are taken
FEW_ROWS = 100  # new rows; with fewer, a note says that only large changes show
MAX_WORDS = 20  # in a result
CACHE_FOLDER, CACHE_VERSION = "drift", 2
LABELS, WORDS, NEW_WORDS = "predicted labels", "words", "new words, fraction"
SCOPE_SCORE, OUT_OF_SCOPE = "out-of-scope score", "out of scope, fraction"
ONLY_LARGER = {NEW_WORDS, SCOPE_SCORE}  # numbers of which only larger ones are drift


class Profile(Record):
    """What is compared of a set of rows."""

    source: str
    rows: int
    label_counts: list[int]  # how many rows are predicted as each label
    columns: dict[str, list[float]]  # by name, a number for each row
    word_counts: dict[str, int]  # how many rows have each word
    states: ReferenceStates | None = None  # of the reference, that out-of-scope scores are distances from
    notes: list[str] = []  # about the choice of the rows


class Statistic(Record):
    """One comparison of the new rows with the reference."""

    name: str
    p_value: float  # corrected for the number of statistics
    effect: float  # from 0 to 1
    drift: bool  # whether the p-value is below the level, and the effect at least the smallest one that counts
    reference: float | None = None  # the mean, where a number is compared; the fraction out of scope
    new: float | None = None


class LabelShare(Record):
    """How often a label is predicted."""

    label: str
    reference: float
    new: float


class WordShare(Record):
    """A word that became more or less frequent, and the share of rows that have it."""

    word: str
    reference: float
    new: float
    p_value: float  # corrected for the number of words


class DriftReport(Record):
    """Whether new rows differ from the reference rows."""

    drift: bool
    statistics: list[Statistic]
    labels: list[LabelShare]  # the largest change first
    words: list[WordShare]  # the smallest p-value first
    model: str  # what predicted the rows
    data: str
    rows: int
    reference: str
    reference_rows: int
    level: float
    min_effect: float
    warnings: list[str]


def drift(
    run: str | Path | FinishedRun,
    data: RowSource,
    reference: RowSource | None = None,
    column_mapping: Mapping[str, str] | None = None,
    level: float = LEVEL,
    min_effect: float = MIN_EFFECT,
    max_rows: int = MAX_ROWS,
) -> DriftReport:
    """Compare new rows with the run's unlabelled rows: predicted labels, confidence, length, words, distance.

    - `run`: the run's folder or address, or what `load_run` returned; with `reference` also the folder of a classifier
      or an export.
    - `data`: the new rows, as for `predict`.
    - `reference`: rows to compare with instead of the run's unlabelled ones.
    - `column_mapping`: the data's and the reference's column for a field, as in `{"text": "body"}`.
    - `level`: how often there may be an alarm without a difference; all statistics together.
    - `min_effect`: the smallest difference that counts, between 0 and 1, however significant: of the labels' shares, of
      the distribution of a number, of a word's share of rows.
    - `max_rows`: compare at most so many rows of each set, drawn at random.
    """
    _check_settings(level, min_effect, max_rows)
    finished = run if isinstance(run, FinishedRun) else FinishedRun(run)
    loaded = load_rows(data, finished.task, column_mapping)  # fails before the reference is predicted
    before = _reference_profile(finished, reference, column_mapping, max_rows)
    after = make_profile(finished, sample_rows(loaded, max_rows), before)
    report = compare_profiles(finished.task.labels, before, after, finished.decision.multilabel, level, min_effect)
    notes = [*finished.notes, *loaded.warnings, *before.notes]
    if after.rows < len(loaded):
        notes.append(f"{after.rows:,} random rows of {len(loaded):,} were compared; --rows sets the number.")
    if after.rows < FEW_ROWS:
        notes.append(f"With {after.rows:,} new rows only large changes can be told from chance.")
    return report.model_copy(update={"model": finished.description, "warnings": notes})


def _check_settings(level: float, min_effect: float, max_rows: int) -> None:
    if not 0.001 <= level <= 0.5:
        raise DataError(f"The level is {level}; it must be from 0.001 to 0.5.")
    if not 0 <= min_effect <= 1:
        raise DataError(f"The smallest effect that counts is {min_effect}; it must be from 0 to 1.")
    if max_rows < 1:
        raise DataError(f"'max_rows' is {max_rows}; it must be 1 or more.")


def sample_rows(rows: Rows, count: int) -> Rows:
    """At most `count` rows, drawn at random, the same ones each time, in their order."""
    if len(rows) <= count:
        return rows
    return rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:count]))


def make_profile(finished: FinishedRun, rows: Rows, reference: Profile | None = None) -> Profile:
    """Predict rows and count what is compared; `reference` is None for the reference rows themselves."""
    return profile_of(rows, *probabilities_and_states(finished, rows), finished, reference)


def profile_of(
    rows: Rows,
    probabilities: NDArray[np.float64],
    states: NDArray[np.float32] | None,
    finished: FinishedRun,
    reference: Profile | None = None,
) -> Profile:
    """The profile of rows with these probabilities, (rows, labels), and states, (rows, hidden).

    A number of each row is one line of `columns`; of the reference, half of the rows have an out-of-scope score.
    """
    fields = zip(*[rows.texts(field) for field in rows.task.fields], strict=True)
    words = [tests.row_words(texts) for texts in fields]
    counts = tests.count_rows_with_words(words)
    seen = counts if reference is None else reference.word_counts
    columns: dict[str, NDArray[Any]] = {
        "confidence": finished.decision.certainty(_scores(probabilities, finished)),
        "different words": np.array([len(row) for row in words], dtype=np.float64),
        NEW_WORDS: tests.unseen_fractions(words, seen, own=reference is None),
    }
    scope = fit_reference(states) if reference is None else None
    if scope is not None:
        columns[SCOPE_SCORE] = scope.in_scope
    elif reference is not None and reference.states is not None and states is not None:
        columns[SCOPE_SCORE] = reference.states.scores(states)
    predicted, labels = finished.decision.predict(probabilities), len(rows.task.labels)
    of_labels = predicted.sum(axis=0) if finished.decision.multilabel else np.bincount(predicted, minlength=labels)
    return Profile(
        source=rows.source,
        rows=len(rows),
        label_counts=of_labels.tolist(),
        columns={name: np.round(values.astype(np.float64), 6).tolist() for name, values in columns.items()},
        word_counts=dict(counts),
        states=None if scope is None else ReferenceStates.of(scope),
    )


def _scores(probabilities: NDArray[np.float64], finished: FinishedRun) -> NDArray[np.float64]:
    """Scores with these probabilities."""
    if finished.decision.multilabel:
        scores: NDArray[np.float64] = logit(np.clip(probabilities, 1e-12, 1 - 1e-12))
        return scores
    return np.log(np.maximum(probabilities, 1e-12))


def compare_profiles(
    labels: list[str], before: Profile, after: Profile, multilabel: bool, level: float, min_effect: float
) -> DriftReport:
    """Compare two sets of rows by every statistic; p-values are corrected for their number by Holm's method."""
    rows = before.rows, after.rows
    counts = np.array(before.label_counts), np.array(after.label_counts)
    by_word, shifts = tests.compare_words(before.word_counts, after.word_counts, rows, level)
    of_labels = partial(tests.compare_label_sets, rows=rows) if multilabel else tests.compare_shares
    results = {LABELS: of_labels(*counts), WORDS: by_word}
    names = [name for name in before.columns if name in after.columns]
    numbers = {name: (np.array(before.columns[name]), np.array(after.columns[name])) for name in names}
    results |= {name: tests.compare_numbers(*values, name in ONLY_LARGER) for name, values in numbers.items()}
    means = {name: (float(one.mean()), float(other.mean())) for name, (one, other) in numbers.items()}
    exceeding = tests.compare_exceeding(*numbers[SCOPE_SCORE], REJECTED) if SCOPE_SCORE in numbers else None
    if exceeding is not None:
        results[OUT_OF_SCOPE], means[OUT_OF_SCOPE] = exceeding.difference, (exceeding.reference, exceeding.new)
    corrected = tests.holm([result.p_value for result in results.values()])
    statistics = []
    for (name, result), p_value in zip(results.items(), corrected.tolist(), strict=True):
        of_reference, of_new = means.get(name, (None, None))
        is_drift = p_value < level and result.effect >= min_effect
        statistics.append(
            Statistic(
                name=name, p_value=p_value, effect=result.effect, drift=is_drift, reference=of_reference, new=of_new
            )
        )
    shares = [
        LabelShare(label=label, reference=counts[0][i] / rows[0], new=counts[1][i] / rows[1])
        for i, label in enumerate(labels)
    ]
    return DriftReport(
        drift=any(statistic.drift for statistic in statistics),
        statistics=statistics,
        labels=sorted(shares, key=lambda share: -abs(share.new - share.reference)),
        words=[WordShare(**vars(shift)) for shift in shifts[:MAX_WORDS]],
        model="",
        data=after.source,
        rows=after.rows,
        reference=before.source,
        reference_rows=before.rows,
        level=level,
        min_effect=min_effect,
        warnings=[],
    )


def _reference_profile(
    finished: FinishedRun, reference: RowSource | None, column_mapping: Mapping[str, str] | None, max_rows: int
) -> Profile:
    """The profile of the reference rows, from the run's folder where it was computed before."""
    record = RunRecord.load(finished.folder) if (finished.folder / "run.json").is_file() else None
    rows, content = None, dict[str, Any]()
    if reference is not None:
        rows = load_rows(reference, finished.task, column_mapping, name="reference")
        content = {"texts": rows.digest}
    elif record is None or "unlabeled" not in record.inputs.data:
        what = "The run" if record is not None else "The folder"
        raise RunError(
            f"{what} '{finished.folder}' has no unlabelled rows to compare with; name rows like those that it was made "
            "for with --reference."
        )
    else:
        content = record.inputs.data["unlabeled"].model_dump()
    key = hash_key(step="drift", version=CACHE_VERSION, model=_model_hash(finished), reference=content, rows=max_rows)
    path = finished.folder / CACHE_FOLDER / f"{key}.json"
    if record is not None and (cached := _read_cached(path)) is not None:
        return cached
    notes = list[str]()
    if rows is None:
        assert record is not None
        rows = _unlabeled_rows(record, notes)
    profile = make_profile(finished, sample_rows(rows, max_rows)).model_copy(update={"notes": notes})
    if record is not None:
        _write_cached(path, profile)
    return profile


def _model_hash(finished: FinishedRun) -> str:
    """A hash of what predicts, and in which precision."""
    classifier = finished.classifier
    if classifier is None:
        return hash_file(finished.folder / ENSEMBLE_FILE)
    weights = hash_file(classifier / ONNX_FILE) if (classifier / ONNX_FILE).is_file() else weights_hash(classifier)
    return hash_key(weights=weights, precision=finished.precision)


def _read_cached(path: Path) -> Profile | None:
    """A kept profile; None where there is none, or where it is damaged."""
    try:
        return read_record(path, Profile) if path.is_file() else None
    except (OSError, RunError):
        return None


def _write_cached(path: Path, profile: Profile) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        atomic_write_text(path, profile.model_dump_json())
    except OSError:  # a folder that cannot be written to: the reference is predicted each time
        return


def _unlabeled_rows(record: RunRecord, notes: list[str]) -> Rows:
    """The rows of the run's unlabelled data, if possible those that nothing was trained on.

    A classifier is more confident on rows that it was trained on, which would look like drift.
    """
    recorded = record.inputs.data["unlabeled"]
    try:
        used = reread_rows(record.inputs, "unlabeled", unlabeled_ids(record))
        rows = read_rows(recorded.source, record.task, recorded.columns)
    except ClozifyError as error:
        hint = "If the unlabelled rows have moved or were in memory, pass them as --reference."
        raise RunError([*error.problems, hint]) from None
    trained = [used]
    try:
        labeled = reread_rows(record.inputs, "labeled")
        trained += [labeled] if len(labeled) else []
    except ClozifyError:  # a few rows of a file that has moved
        pass
    unused = rows.excluding(*trained)
    if len(unused) >= MIN_UNUSED:
        return unused
    notes.append(
        "The run was trained on the reference rows, so that it may be more confident on them, and find them more "
        "alike, than any new rows; --reference names others."
    )
    return used
