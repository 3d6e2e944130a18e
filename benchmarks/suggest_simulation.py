"""Simulated labelling for `suggest.py`: data sets, rounds of training with the labels so far, and learning curves.

With the method `frozen` a round takes a fraction of a second: the states of all rows are computed once and kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from clozify.config.task import Task, load_task, parse_task
from clozify.data.in_memory import load_rows
from clozify.data.rows import Rows
from clozify.methods.ensemble import combine_scores
from clozify.methods.frozen import Centre, LabelVectors, compute_states, fit_label_vectors, pad_words
from clozify.metrics import accuracy, macro_f1
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.report.outlook import Change, cohen_kappa, expected_gain, gain_seen

PATTERNS = 3
MAX_LENGTH = 64
FOLDS = 5
EMOTION = """
name = "emotion"
fields = ["text"]
patterns = ["{text} I feel {mask}.", "{mask}! {text}", "{text} It was {mask}."]
[labels]
sadness = "sad"
joy = "happy"
love = "love"
anger = "angry"
fear = "afraid"
surprise = "surprised"
"""

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """Rows to label, of which every seed draws some, and rows to measure on: others of the same, or a file of them."""

    task: Task
    rows: Rows
    candidates: int  # rows that a seed may label
    source: int | None  # candidates are drawn from so many first rows, and the rest measures; None: from all rows
    test: Rows | None = None  # rows to measure on; None: the rows that are not candidates
    test_rows: int | None = None  # measure on at most so many

    def split(self, seed: int) -> tuple[Rows, Rows]:
        """The candidates and the rows to measure on."""
        total = len(self.rows) if self.source is None else self.source
        order = np.random.default_rng([seed, 0]).permutation(total)
        rest = order[self.candidates :] if self.source is None else np.arange(total, len(self.rows))
        test = self.rows.select(rest) if self.test is None else self.test
        test = test.select(np.arange(len(test))[: self.test_rows])
        return self.rows.select(order[: self.candidates]), test


def load_data(name: str, folder: Path | None, final: bool) -> DataSet:
    """A data set by name; `final` has the test rows that nothing was chosen on."""
    if name == "sample":
        task = _few_patterns(load_task("debian"))
        rows = load_rows(f"builtin:{'test' if final else 'labeled'}", task)
        return DataSet(task, rows, 600 if final else 190, None)
    if folder is None:
        raise SystemExit(f"The data '{name}' is not in the package; name its folder with --data-folder.")
    if name == "emotion":
        if final:
            raise SystemExit("Emotion is for choosing alone; add --choose.")
        task = parse_task(EMOTION)
        return DataSet(task, _draw(load_rows(folder / "emotion" / "train.csv", task), 1500), 900, 900)
    if name != "agnews":
        raise SystemExit(f"There is no data '{name}'; use sample, agnews or emotion.")
    task = _few_patterns(load_task("agnews"))
    rows = _draw(load_rows(folder / "ag_news" / "train_pool.csv", task), 2100)
    test = load_rows(folder / "ag_news" / "test.csv", task).select(np.arange(2000)) if final else None
    return DataSet(task, rows, 900, 1400, test)


def _few_patterns(task: Task) -> Task:
    return task.with_changes(patterns=task.patterns[:: max(1, len(task.patterns) // PATTERNS)])


def _draw(rows: Rows, count: int) -> Rows:
    return rows.select(np.random.default_rng(0).permutation(len(rows))[:count])


@dataclass(frozen=True)
class Round:
    """What training with the labels so far gives."""

    scores: list[NDArray[np.float32]]  # of the candidates by each member, (candidates, labels)
    weights: list[float]
    predicted: NDArray[np.int64]  # of the rows to measure on
    held_out: float | None = None  # accuracy on the labelled rows by cross-fitting
    estimate: float | None = None  # mean calibrated confidence on the candidates without labels

    @cached_property
    def combined(self) -> NDArray[np.float64]:
        """The ensemble's scores of the candidates: (candidates, labels)."""
        return combine_scores(self.scores, self.weights)


class Trainer(Protocol):
    """Trains with the labels of some candidates."""

    def __call__(self, labeled: Indices, estimate: bool) -> Round:
        """A round; `estimate` asks for the accuracy without the rows to measure on."""


class States:
    """The states of rows in each pattern, computed once and kept as .npy files."""

    def __init__(self, task: Task, model: str, cache: Path) -> None:
        self.task, self.cache, self.name = task, cache, model
        self._rows: dict[int, tuple[int, int]] = {}  # a row's hash -> index of its file, and in it
        self._arrays: list[list[NDArray[np.float16]]] = []

    @cached_property
    def model(self) -> Any:
        """The model, loaded when states are missing, and for the words' vectors."""
        return load_model(self.name)

    @cached_property
    def words(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Each pattern's word vectors, (labels, width), and biases, (labels,)."""
        vectors = [self.model.label_vectors(p.words[0]) for p in compile_task(self.model, self.task).patterns]
        return [(vector.detach().double().numpy(), bias.detach().double().numpy()) for vector, bias in vectors]

    def add(self, rows: Rows) -> None:
        """Compute the states of rows, or read them from the cache."""
        paths = [self.cache / f"{self.task.name}-{rows.digest}-{index}.npy" for index in range(len(self.task.patterns))]
        if not all(path.exists() for path in paths):
            prompts = compile_task(self.model, self.task)
            tokens = prompts.tokenize(self.model, rows, 0, len(rows))
            for prompt, path in zip(prompts.patterns, paths, strict=True):
                np.save(path, compute_states(self.model, EncodedRows(prompt.template, tokens, MAX_LENGTH)))
        self._rows |= {row: (len(self._arrays), index) for index, row in enumerate(rows.fingerprints().tolist())}
        self._arrays.append([np.load(path) for path in paths])

    def of(self, rows: Rows) -> list[NDArray[np.float16]]:
        """The states of rows that were added, for each pattern: (rows, states)."""
        where = [self._rows[row] for row in rows.fingerprints().tolist()]
        return [
            np.stack([self._arrays[array][pattern][index] for array, index in where])
            for pattern in range(len(self.task.patterns))
        ]


class FrozenTrainer:
    """The method `frozen`: label vectors fitted to kept states."""

    def __init__(self, states: States, candidates: Rows, test: Rows) -> None:
        self.labels, self.words = candidates.labels.astype(np.int64), states.words
        self.states, self.test_states = states.of(candidates), states.of(test)
        self.centres = [
            Centre.of([of_pattern], words.shape[1])
            for of_pattern, (words, _) in zip(self.states, self.words, strict=True)
        ]
        before = [
            LabelVectors(pad_words(words, of_pattern.shape[1]), biases).scores(of_pattern).argmax(axis=1)
            for of_pattern, (words, biases) in zip(self.states, self.words, strict=True)
        ]
        self.hits = np.stack(before) == self.labels  # of the patterns before training: (patterns, candidates)

    def __call__(self, labeled: Indices, estimate: bool) -> Round:
        """Fit the label vectors; the accuracy is estimated by cross-fitting."""
        vectors, penalties, weights = self._fit(labeled)
        scores = [each.scores(states) for each, states in zip(vectors, self.states, strict=True)]
        test = [each.scores(states) for each, states in zip(vectors, self.test_states, strict=True)]
        fitted = Round(scores, weights, combine_scores(test, weights).argmax(axis=1))
        if not estimate:
            return fitted
        held_out, truth = self._cross_fit(labeled, penalties), self.labels[labeled]
        temperature = fit_temperature(held_out, truth)
        rest = np.setdiff1d(np.arange(len(self.labels)), labeled)
        confidence = softmax(fitted.combined[rest] / temperature, axis=1).max(axis=1).mean()
        hits = (held_out.argmax(axis=1) == truth).mean()
        return Round(scores, weights, fitted.predicted, float(hits), float(confidence))

    def _fit(
        self, labeled: Indices, penalties: list[float | None] | None = None
    ) -> tuple[list[LabelVectors], list[float | None], list[float]]:
        """The label vectors, penalties and weights of all patterns."""
        fits = [
            fit_label_vectors(states[labeled], self.labels[labeled], words, centre, penalty)
            for states, (words, _), centre, penalty in zip(
                self.states, self.words, self.centres, penalties or [None] * len(self.states), strict=True
            )
        ]
        weights = self.hits[:, labeled].mean(axis=1).tolist()
        return [vectors for vectors, _ in fits], [penalty for _, penalty in fits], weights

    def _cross_fit(self, labeled: Indices, penalties: list[float | None]) -> NDArray[np.float64]:
        """The ensemble's scores of each labelled row, fitted without the row's fold: (rows, labels)."""
        order = np.argsort(self.labels[labeled], kind="stable")
        folds = np.empty(len(labeled), dtype=np.int64)
        folds[order] = np.arange(len(labeled)) % FOLDS
        scores = np.empty((len(labeled), len(self.words[0][0])))
        for fold in range(FOLDS):
            vectors, _, weights = self._fit(labeled[folds != fold], penalties)
            rows = labeled[folds == fold]
            parts = [each.scores(states[rows]) for each, states in zip(vectors, self.states, strict=True)]
            scores[folds == fold] = combine_scores(parts, weights)
        return scores


class PetTrainer:
    """PET's ensemble, fine-tuned anew in every round by `clozify.train`, in a folder that is then removed."""

    def __init__(self, folder: Path, candidates: Rows, test: Rows, model: str, settings: list[str], seed: int) -> None:
        self.folder, self.candidates, self.test, self.model = folder, candidates, test, model
        self.settings = [
            "distillation=false",
            "overlap=true",
            f"max_seq_length={MAX_LENGTH}",
            f"seed={seed}",
            *settings,
        ]

    def __call__(self, labeled: Indices, estimate: bool) -> Round:  # noqa: ARG002
        """Train, and read the members' scores from the run's folder; the accuracy is not estimated."""
        from clozify import train
        from clozify.report.run import RunRecord
        from clozify.runs.records import TEST_SCORES

        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        train(
            self.candidates.task,
            _table(self.candidates.select(labeled), True),
            run,
            unlabeled=_table(self.candidates, False),
            test=_table(self.test, True),
            model=self.model,
            recipe="quick",
            settings=self.settings,
            log=lambda line: None,
        )
        record = RunRecord.load(run)
        scores = [np.array(member) for member in record.unlabeled_scores]
        weights = [member.weight for member in record.scoring_members]
        test = combine_scores([np.load(member.folder / TEST_SCORES) for member in record.scoring_members], weights)
        shutil.rmtree(run)
        return Round(scores, weights, test.argmax(axis=1))


def _table(rows: Rows, labels: bool) -> Any:
    import pandas as pd

    task = rows.task
    columns: dict[str, Any] = {name: rows.texts(name) for name in task.fields}
    return pd.DataFrame(columns | ({task.label: [task.labels[n] for n in rows.labels]} if labels else {}))


def fit_temperature(scores: NDArray[np.float64], labels: Indices) -> float:
    """The temperature with the highest likelihood of the labels."""

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(scores / np.exp(log_temperature), axis=1)
        return -float(scaled[np.arange(len(labels)), labels].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2, 5), method="bounded").x))


@dataclass(frozen=True)
class State:
    """What a way to choose rows may use."""

    round: Round
    candidates: Rows
    labeled: Indices
    rng: np.random.Generator
    cache: dict[str, Any] = field(default_factory=dict)  # of vectors of the candidates, kept for all rounds

    @property
    def free(self) -> Indices:
        """The candidates without a label."""
        return np.setdiff1d(np.arange(len(self.candidates)), self.labeled)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """How many labelled rows have each label."""
        return np.bincount(self.candidates.labels[self.labeled], minlength=len(self.candidates.task.labels))


Strategy = Callable[[State, int], Indices]  # a state and how many rows -> the rows to label


def learning_curve(
    trainer: Trainer, strategy: Strategy, data: tuple[Rows, Rows], seed: int, sizes: list[int], outlook: bool
) -> Iterator[dict[str, float | None]]:
    """Label rows up to each of the sizes; yields what is measured after every training."""
    candidates, test = data
    rng, cache = np.random.default_rng([seed, 2]), dict[str, Any]()
    labeled = np.random.default_rng([seed, 1]).permutation(len(candidates))[: sizes[0]]
    previous: tuple[int, NDArray[np.int64]] | None = None
    for index, size in enumerate(sizes):
        trained = trainer(labeled, outlook)
        measured: dict[str, float | None] = {
            "labels": size,
            "accuracy": accuracy(test.labels, trained.predicted),
            "macro_f1": macro_f1(test.labels, trained.predicted, len(test.task.labels)),
        }
        state = State(trained, candidates, labeled, rng, cache)
        if outlook:
            measured |= _outlook(state, measured["accuracy"] or 0.0, previous)
            previous = size, trained.combined.argmax(axis=1)
        yield measured
        if index + 1 < len(sizes):
            chosen = strategy(state, sizes[index + 1] - size)
            assert not np.isin(chosen, labeled).any()
            assert len(np.unique(chosen)) == sizes[index + 1] - size
            labeled = np.concatenate([labeled, chosen])


def _outlook(state: State, measured: float, previous: tuple[int, NDArray[np.int64]] | None) -> dict[str, float | None]:
    """What `clozify suggest` would say of the next 20 labels, from the run alone and with the one before."""
    trained, labels = state.round, len(state.labeled)
    estimate = measured if trained.estimate is None else trained.estimate
    alone = expected_gain(1 - estimate, labels, 20)
    content: dict[str, float | None] = {
        "held_out": trained.held_out,
        "estimate": trained.estimate,
        "alone": alone.expected,
        "alone_low": alone.low,
        "alone_high": alone.high,
    }
    if previous is not None:
        before, predicted = previous[0], previous[1][state.free]
        scores = trained.combined[state.free]
        now = scores.argmax(axis=1)
        change = Change(
            before=before,
            after=labels,
            rows=len(now),
            changed=float((now != predicted).mean()),
            kappa=cohen_kappa(now, predicted),
            gain=gain_seen(scores, predicted, estimate),
        )
        both = expected_gain(1 - estimate, labels, 20, change)
        content |= {"changed": change.changed, "kappa": change.kappa}
        content |= {"gain": both.expected, "gain_low": both.low, "gain_high": both.high}
    return content
