"""Implements `clozify find-words` and `clozify.find_words`: automatic verbalizer search (appendix E).

The model scores all candidate words once for each labelled row and pattern; the search itself
(`methods/verbalizer_search.py`) only uses these scores.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, TaskSource, Verbalizer, load_task
from clozify.data.few_shot import few_shot, select_labeled
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.rows import Rows
from clozify.errors import DataError, ModelError, TaskError, did_you_mean, quoted
from clozify.methods.score import TOKENS_PER_BATCH, ScoringStats
from clozify.methods.verbalizer_candidates import Candidates, fill_candidates
from clozify.methods.verbalizer_search import WordScores, score_words, search_verbalizer
from clozify.methods.verbalizer_validation import MAX_P_VALUE, Separation, measure_separation
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.runs.context import no_log
from clozify.utils.atomic import atomic_write, check_writable
from clozify.utils.progress import progress

TIMED_ROWS = 4

WordList = Sequence[str] | str | Path  # words, or a file of words


class LabelWord(BaseModel):
    """A word of a label: its final weight rho and its score of the last round.

    The score is None for a label without rows and for a word of several tokens, which takes no part in the search.
    """

    model_config = ConfigDict(frozen=True)

    word: str
    is_seed: bool = Field(serialization_alias="given")
    rho: float
    score: float | None


class FindWordsReport(BaseModel):
    """How the words were found; what `clozify find-words --json` prints."""

    model_config = ConfigDict(frozen=True)

    task: str
    model: str
    labeled: str
    unlabeled: str | None
    rows: int
    patterns: list[str]
    candidates: int
    settings: dict[str, Any]
    labels: dict[str, list[LabelWord]]  # best words first
    separation: dict[str, float]  # of labels with two rows or more: AUC on rows that did not choose the words
    warnings: list[str]
    output: str | None
    seconds: float


class FindWordsResult(NamedTuple):
    """The task with the new words, and the report."""

    task: Task
    report: FindWordsReport


def find_words(
    task: TaskSource,
    labeled: RowSource,
    unlabeled: RowSource | None = None,
    output: str | Path | None = None,
    model: str | Path | ClozeModel = "builtin",
    recipe: str | Path | Recipe = "auto",
    settings: Sequence[str] = (),
    examples: int | None = None,
    allowed_words: WordList | None = None,
    forbidden_words: WordList = (),
    seed_words: Mapping[str, Sequence[str]] | None = None,
    column_mapping: Mapping[str, str] | None = None,
    log: Callable[[str], None] = no_log,
) -> FindWordsResult:
    """Search words for every label of a task, from labelled rows.

    The candidates are the most frequent words of the unlabelled rows (without them, of the labelled ones), or
    `allowed_words`; `forbidden_words` are left out. `seed_words` are words that a label keeps: they come first, and
    the search starts from them. `examples` selects that many labelled rows. The recipe's section `words` has the
    settings of the search. With `output` the task with its new words is written to that file. `log` is called with what
    the search will take, once that is known.
    """
    loaded_task, loaded_recipe = load_task(task), load_recipe(recipe, settings)
    if loaded_task.multilabel:
        raise TaskError(
            "Words are searched for tasks with one label a row, and this one has multilabel = true; write the words "
            "yourself: clozify check shows what the model expects."
        )
    seeds = _check_seed_words(loaded_task, seed_words or {})
    allowed = None if allowed_words is None else _read_words(allowed_words)
    forbidden = _read_words(forbidden_words)
    if output is not None:
        check_output(Path(output))
    warnings: list[str] = []
    breaks = [*loaded_task.line_breaks, *(["\\"] if loaded_recipe.backslashes_to_spaces else [])]
    row_task = loaded_task.with_changes(line_breaks=breaks)
    rows = select_labeled(load_rows(labeled, row_task, column_mapping, name="labeled"), warnings, "labelled")
    if examples is not None:
        rows = few_shot(rows, examples, loaded_recipe.seed if loaded_recipe.selection == "random" else None)
    if without_rows := _labels_without_rows(rows):
        seeds = {label: list(loaded_task.verbalizers[0].words[label]) for label in without_rows} | seeds
        kept = [f"{label}: {', '.join(seeds[label])}" for label in without_rows]
        warnings.append(f"No labelled row has the label {quoted(without_rows, 5)}, so the words stay: {_few(kept)}.")
    unlabeled_rows = None
    if unlabeled is not None:
        unlabeled_rows = load_rows(unlabeled, row_task, column_mapping, name="unlabeled")
    cloze = model if isinstance(model, ClozeModel) else load_model(model)

    started = time.monotonic()
    search = _Search(loaded_task, loaded_recipe, cloze, rows, seeds, warnings, log)
    search.add_candidates(allowed, forbidden, unlabeled_rows)
    labels = search.run()
    new_task = _with_words(loaded_task, {label: [entry.word for entry in labels[label]] for label in labels})
    if output is not None:
        with atomic_write(Path(output)) as tmp_path:
            new_task.save(tmp_path)
    report = FindWordsReport(
        task=loaded_task.name,
        model=cloze.name,
        labeled=rows.source,
        unlabeled=None if unlabeled_rows is None else unlabeled_rows.source,
        rows=len(rows),
        patterns=loaded_task.patterns,
        candidates=len(search.candidates.words),
        settings={"seed": loaded_recipe.seed, **loaded_recipe.words.model_dump()},
        labels=labels,
        separation={loaded_task.labels[label]: round(of.auc, 4) for label, of in search.separation.items()},
        warnings=warnings + rows.warnings,
        output=None if output is None else str(output),
        seconds=round(time.monotonic() - started, 2),
    )
    return FindWordsResult(new_task, report)


@dataclass
class _Search:
    """One search: the candidates, their scores at the masks, and the words that are chosen."""

    task: Task
    recipe: Recipe
    model: ClozeModel
    rows: Rows
    seeds: dict[str, list[str]]  # words that labels keep
    warnings: list[str]
    log: Callable[[str], None]
    separation: dict[int, Separation] = field(default_factory=dict)  # by label, once the search has run

    def __post_init__(self) -> None:
        seed_task = _with_words(self.task, self.seeds)
        wording = self.recipe.wording.model_copy(update={"several_tokens": "mean"})  # one mask
        self.prompts = compile_task(self.model, seed_task, self.rows, wording)  # checks the seed words
        self.candidates = Candidates(self.model.tokenizer, [prompt.template for prompt in self.prompts.patterns])
        is_token = {word: self.candidates.ids(word) is not None for words in self.seeds.values() for word in words}
        # words of several tokens stay the label's, but take no part in the search
        self.kept = {label: [word for word in words if not is_token[word]] for label, words in self.seeds.items()}
        seeds = {label: [word for word in words if is_token[word]] for label, words in self.seeds.items()}
        self.seeds = {label: words for label, words in seeds.items() if words}

    def add_candidates(self, allowed: list[str] | None, forbidden: list[str], unlabeled: Rows | None) -> None:
        """Collect the candidates: seed words, then allowed or frequent words."""
        self.candidates.add([word for words in self.seeds.values() for word in words], sys.maxsize)
        if clash := [word for word in forbidden if self.candidates.ids(word) in self.candidates.index]:
            raise TaskError(
                f"The word {quoted(clash)} is forbidden, but also a seed word of a label; choose one of the two."
            )
        banned = {self.candidates.ids(word) for word in forbidden}
        self.warnings += fill_candidates(
            self.candidates, self.recipe.words.candidates, allowed, banned, self.prompts, self.rows, unlabeled
        )

    @property
    def seed_indices(self) -> dict[int, list[int]]:
        """For each label with seed words, by its index: the indices of these words among the candidates."""
        return {
            self.task.labels.index(label): list(
                dict.fromkeys(self.candidates.index[self.candidates.ids(word) or ()] for word in words)
            )
            for label, words in self.seeds.items()
        }

    def run(self) -> dict[str, list[LabelWord]]:
        """The words of each label, best first."""
        words, labels, settings = self.candidates.words, self.task.labels, self.recipe.words
        scores = self._score_candidates()
        rho = np.full((len(labels), len(words)), 1 / len(words))  # rho_0: (labels, candidates)
        for label, indices in self.seed_indices.items():
            rho[label] = 0
            rho[label, indices] = 1 / len(indices)
        with progress("comparing words", settings.i_max * len(self.rows) * len(scores), "rows") as advance:
            result = search_verbalizer(scores, self.rows.labels, rho, settings, self.recipe.seed, advance)
        chosen = result.choose(settings, self.seed_indices)
        self.separation = measure_separation(scores, self.rows.labels, result, settings, self.seed_indices)
        self._warn(result, chosen)
        without_rows, entries = _labels_without_rows(self.rows), dict[str, list[LabelWord]]()
        for label, name in enumerate(labels):
            entries[name] = [LabelWord(word=word, is_seed=True, rho=0, score=None) for word in self.kept.get(name, [])]
            if name in without_rows and entries[name] and name not in self.seeds:
                continue
            entries[name] += [
                LabelWord(
                    word=words[index],
                    is_seed=index in self.seed_indices.get(label, []),
                    rho=float(result.rho[label, index]),
                    score=None if name in without_rows else float(result.scores[label, index]),
                )
                for index in chosen[label]
            ]
        return entries

    @torch.inference_mode()
    def _score_candidates(self) -> NDArray[np.float32]:
        """M(t) of every candidate t at the mask, memory-mapped: (patterns, rows, candidates)."""
        model, rows, prompts = self.model, self.rows, self.prompts
        max_length = min(self.recipe.max_seq_length, model.max_length)
        budget = TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
        ids = np.array(list(self.candidates.index), dtype=np.int64)  # (candidates, patterns)
        tokenized = prompts.tokenize(model, rows, 0, len(rows))
        encoded = [EncodedRows(prompt.template, tokenized, max_length) for prompt in prompts.patterns]
        with tempfile.TemporaryFile() as file:
            scores = np.memmap(file, dtype=np.float32, mode="w+", shape=(len(encoded), len(rows), len(ids)))
        started, done = time.monotonic(), 0
        with model.scoring(), progress("scoring", len(encoded) * len(rows), "rows") as advance:
            for pattern, pattern_rows in enumerate(encoded):
                pattern_ids = model.to_device(ids[:, pattern].copy())
                for batch in pattern_rows.batches(budget):
                    states = model.states_at_mask(batch).to(model.model.dtype)  # (batch, hidden)
                    scores[pattern, batch.rows] = model.head(states, pattern_ids).float().cpu().numpy()
                    advance(len(batch.rows))
                    done += len(batch.rows)
                    if pattern == 0 and done == len(batch.rows):
                        self._announce(scores[:1, batch.rows[:TIMED_ROWS]], (time.monotonic() - started) / done)
        if not np.isfinite(scores).all():
            raise ModelError(
                f"The model '{model.name}' gives scores that are not finite; it may be damaged, so fetch it again."
            )
        stats = ScoringStats()
        stats.update(tokenized, encoded)
        self.warnings += stats.warnings(max_length)
        return scores

    def _announce(self, scores: NDArray[np.float32], seconds_a_row: float) -> None:
        """Log how long the search will take, by the time of the first scores and of one comparison."""
        settings, labels = self.recipe.words, len(self.task.labels)
        draw = np.random.default_rng(0).integers(scores.shape[2], size=(settings.k, labels))
        started, of_rows = time.monotonic(), self.rows.labels[: scores.shape[1]]
        score_words(scores, of_rows, draw)
        seconds_a_comparison = (time.monotonic() - started) / scores.shape[1]
        count = len(self.rows) * len(self.prompts.patterns)
        seconds = count * (seconds_a_row + settings.i_max * seconds_a_comparison)
        self.log(
            f"{scores.shape[2]:,} words for {labels} labels, {len(self.rows):,} rows in {len(self.prompts.patterns)} "
            f"patterns, {settings.i_max} rounds: about {'a minute' if seconds < 90 else f'{seconds / 60:,.0f} minutes'}"
        )

    def _warn(self, result: WordScores, chosen: list[list[int]]) -> None:
        """Warn of labels with fewer good words than asked for, and of words of more than one label."""
        settings, labels = self.recipe.words, self.task.labels
        good = (result.scores > settings.epsilon).sum(axis=1)  # (labels,)
        without_rows = _labels_without_rows(self.rows)
        weak = [name for name, count in zip(labels, good, strict=True) if count < settings.m]
        if weak := [name for name in weak if name not in without_rows]:
            self.warnings.append(
                f"Fewer than {settings.m} words score above {settings.epsilon:g} for the label {quoted(weak)}; more "
                "labelled rows, or seed words, would help."
            )
        if weak := [labels[label] for label, of in self.separation.items() if of.is_weak]:
            self.warnings.append(
                f"The words of {len(weak)} of {len(labels)} labels are weak ({quoted(weak, 5)}): words chosen on one "
                "half of the labelled rows do not rank the label's rows above the others in the other half (Mann-"
                f"Whitney test, p > {MAX_P_VALUE:g}); give these labels words of your own (--seed-words), or more rows."
            )
        counts = np.bincount(self.rows.labels, minlength=len(labels))
        if single := [name for name, count in zip(labels, counts, strict=True) if count == 1]:
            self.warnings.append(f"The words of {quoted(single, 5)} could not be tested: one labelled row each.")
        labels_of_word: dict[str, list[str]] = {}
        for name, indices in zip(labels, chosen, strict=True):
            for index in indices:
                labels_of_word.setdefault(self.candidates.words[index], []).append(name)
        if shared := [f"{word} ({_few(names, 3)})" for word, names in labels_of_word.items() if len(names) > 1]:
            self.warnings.append(f"Found for more than one label, which is allowed: {_few(shared)}.")


def _few(names: Sequence[str], limit: int = 5) -> str:
    """The names, or the first of them and how many more there are."""
    return ", ".join(names) if len(names) <= limit else f"{', '.join(names[:limit])} and {len(names) - limit} more"


def default_output(task: Task) -> Path:
    """`NAME-words.toml` in the current folder; an error where that file exists."""
    path = Path(re.sub(r"[^\w.-]+", "-", task.name) + "-words.toml")
    if path.exists():
        raise TaskError(f"The file '{path}' exists; name it with --output to replace it, or choose another name.")
    return path


def check_output(path: Path) -> None:
    """Raise an error, before any work is done, where the task file cannot be written."""
    if path.suffix != ".toml" or path.is_dir():
        raise TaskError(f"The task cannot be written to '{path}'; name a file that ends in '.toml'.")
    if not path.parent.is_dir():
        raise TaskError(f"The task cannot be written to '{path}': the folder '{path.parent}' does not exist.")
    try:
        check_writable(path)
    except OSError as error:
        raise TaskError(f"The task cannot be written to '{path}': {error.strerror}.") from None


def _with_words(task: Task, words: Mapping[str, Sequence[str]]) -> Task:
    """The task with one verbalizer of these words."""
    verbalizer = Verbalizer(words={label: tuple(label_words) for label, label_words in words.items()})
    return task.with_changes(verbalizers=[verbalizer.model_dump()])


def _read_words(words: WordList) -> list[str]:
    """Words without duplicates; in a file they are separated by white space."""
    if isinstance(words, (str, Path)):
        try:
            words = Path(words).read_text(encoding="utf-8-sig").split()
        except UnicodeDecodeError:
            raise DataError(f"The file of words '{words}' is not UTF-8 text; save it as UTF-8.") from None
        except OSError as error:
            raise DataError(f"The file of words '{words}' cannot be read: {error.strerror}.") from None
    return list(dict.fromkeys(word.strip() for word in words if word.strip()))


def _check_seed_words(task: Task, seed_words: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The seed words as lists; an error where one is for an unknown label."""
    problems = [
        f"There are words for '{label}', which is no label{did_you_mean(label, task.labels)}; the labels are "
        f"{quoted(task.labels)}."
        for label in seed_words
        if label not in task.labels
    ]
    if problems:
        raise TaskError(problems)
    seeds = {label: _read_words([words] if isinstance(words, str) else words) for label, words in seed_words.items()}
    return {label: words for label, words in seeds.items() if words}


def _labels_without_rows(rows: Rows) -> list[str]:
    """The labels that no row has; an error where all rows have the same label."""
    labels = rows.task.labels
    present = [labels[label] for label in np.unique(rows.labels)]
    if len(present) < 2:
        raise DataError(
            f"All labelled rows of '{rows.source}' have the label {quoted(present)}; words are found by comparing a "
            "label's rows with those of others, so give rows of two labels or more."
        )
    return [label for label in labels if label not in present]
