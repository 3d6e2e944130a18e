"""Words for the labels, found from labelled rows: the room behind `clozify find-words` (appendix E).

In: a task, labelled rows, the pile if there is one, and words that the user allows, forbids or has already. Out: the
same task with the words found, and a report of them. The model reads each row once a pattern; the rest is arithmetic.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, Verbalizer, load_task
from clozify.data.rows import Rows, few_shot, read_rows
from clozify.errors import DataError, ModelError, TaskError, did_you_mean, quoted
from clozify.methods.score import TOKENS_PER_BATCH, ScoringStats
from clozify.methods.verbalizer_candidates import Candidates, fill_candidates
from clozify.methods.verbalizer_search import WordScores, search_verbalizer
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.task_prompts import TaskPrompts, compile_task
from clozify.prompts.encode import EncodedRows
from clozify.runs.plan import with_labels
from clozify.utils.atomic import atomic_write, check_writable
from clozify.utils.progress import progress

WordList = Sequence[str] | str | Path  # words, or the name of a file of them


def find_words(
    task: str | Path | Task,
    labeled: str | Path | Rows,
    unlabeled: str | Path | Rows | None = None,
    output: str | Path | None = None,
    model: str | Path | ClozeModel = "builtin",
    recipe: str | Path | Recipe = "paper",
    settings: Sequence[str] = (),
    examples: int | None = None,
    allowed_words: WordList | None = None,
    forbidden_words: WordList = (),
    seed_words: Mapping[str, Sequence[str]] | None = None,
    column_mapping: Mapping[str, str] | None = None,
) -> tuple[Task, dict[str, Any]]:
    """Search words for every label of the task; with `output`, write the task with them to that file.

    `allow` is what may be found, `forbid` what may not; `seeds` are words that a label has already: they come first,
    and its first draw is from them. The recipe's section `words` has the paper's numbers. Returns the new task and a
    report, whose `labels` hold each label's words with their `rho` and `score`.
    """
    loaded, how, warnings = load_task(task), load_recipe(recipe, settings), list[str]()
    given, forbidden = _check_seed_words(loaded, seed_words or {}), _words(forbidden_words)
    allowed = None if allowed_words is None else _words(allowed_words)
    if output is not None:
        check_output(Path(output))
    breaks = [*loaded.line_breaks, "\\"] if how.backslashes_to_spaces else loaded.line_breaks
    read_as = loaded.with_changes(line_breaks=breaks)

    def rows_of(source: str | Path | Rows) -> Rows:
        return source.with_task(read_as) if isinstance(source, Rows) else read_rows(source, read_as, column_mapping)

    rows = with_labels(rows_of(labeled), warnings, "labelled")
    if examples is not None:
        rows = few_shot(rows, examples, how.seed if how.selection == "random" else None)
    without = _labels_without_rows(rows)
    for label in without:
        given.setdefault(label, list(loaded.verbalizers[0].words[label]))
        warnings.append(f"No labelled row has the label '{label}', so its words stay {quoted(given[label])}.")
    pile = None if unlabeled is None else rows_of(unlabeled)
    model = model if isinstance(model, ClozeModel) else load_model(model)

    began = time.monotonic()
    questions = compile_task(model, _with_words(loaded, given), rows, how.wording)  # checks the given words
    candidates = Candidates(model.tokenizer, [question.template for question in questions.patterns])
    candidates.add([word for words in given.values() for word in words], sys.maxsize)
    places = {  # each label's given words, by the label's place in the task
        loaded.labels.index(label): list(dict.fromkeys(candidates.index[candidates.ids(word) or ()] for word in words))
        for label, words in given.items()
    }
    if clash := [word for word in forbidden if candidates.ids(word) in candidates.index]:
        raise TaskError(f"The word {quoted(clash)} is forbidden, but also given to a label; choose one of the two.")
    banned = {candidates.ids(word) for word in forbidden}
    warnings += fill_candidates(candidates, how.words.candidates, allowed, banned, questions, rows, pile)
    scores = _scores(model, questions, candidates, rows, how.max_seq_length, warnings)
    start = np.full((len(loaded.labels), len(candidates.words)), 1 / len(candidates.words))  # rho_0
    for number, of_label in places.items():
        start[number] = 0
        start[number, of_label] = 1 / len(of_label)
    with progress("comparing words", how.words.i_max * len(rows) * len(scores), "rows") as advance:
        found = search_verbalizer(scores, rows.labels, start, how.words, how.seed, advance)
    chosen = dict(zip(loaded.labels, found.choose(how.words, places), strict=True))
    warnings += _doubts(candidates, found, how, chosen, without)
    new = _with_words(loaded, {label: [candidates.words[n] for n in numbers] for label, numbers in chosen.items()})
    if output is not None:
        with atomic_write(Path(output)) as tmp_path:
            new.save(tmp_path)
    return new, {
        "task": loaded.name,
        "model": model.name,
        "labeled": rows.source,
        "unlabeled": None if pile is None else pile.source,
        "rows": len(rows),
        "patterns": loaded.patterns,
        "candidates": len(candidates.words),
        "settings": {"seed": how.seed, **how.words.model_dump()},
        "labels": {
            label: [
                {
                    "word": candidates.words[n],
                    "given": n in places.get(number, []),
                    "rho": float(found.rho[number, n]),
                    "score": None if label in without else float(found.scores[number, n]),
                }
                for n in chosen[label]
            ]
            for number, label in enumerate(loaded.labels)
        },
        "warnings": warnings + rows.warnings,
        "output": None if output is None else str(output),
        "seconds": round(time.monotonic() - began, 2),
    }


def default_output(task: Task) -> Path:
    """`NAME-words.toml` here; never a file that is there already."""
    path = Path(re.sub(r"[^\w.-]+", "-", task.name) + "-words.toml")
    if path.exists():
        raise TaskError(f"The file '{path}' is there already; name it with --output to replace it, or another one.")
    return path


def check_output(path: Path) -> None:
    """Fail before the work, not after it, where the task file could not be written."""
    if path.suffix != ".toml" or path.is_dir():
        raise TaskError(f"The task cannot be written to '{path}'; name a file that ends in '.toml'.")
    if not path.parent.is_dir():
        raise TaskError(f"The task cannot be written to '{path}': the folder '{path.parent}' does not exist.")
    try:
        check_writable(path)
    except OSError as error:
        raise TaskError(f"The task cannot be written to '{path}': {error.strerror}.") from None


def _with_words(task: Task, words: Mapping[str, Sequence[str]]) -> Task:
    verbalizer = Verbalizer(words={label: tuple(of_label) for label, of_label in words.items()})
    return task.with_changes(verbalizers=[verbalizer.model_dump()])


def _words(given: WordList) -> list[str]:
    """Words, each once; a file holds them separated by white space."""
    if isinstance(given, (str, Path)):
        try:
            given = Path(given).read_text(encoding="utf-8-sig").split()
        except UnicodeDecodeError:
            raise DataError(f"The file of words '{given}' is not UTF-8 text; save it as UTF-8.") from None
        except OSError as error:
            raise DataError(f"The file of words '{given}' cannot be read: {error.strerror}.") from None
    return list(dict.fromkeys(word.strip() for word in given if word.strip()))


def _check_seed_words(task: Task, seed_words: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    problems = [
        f"There are words for '{label}', which is no label{did_you_mean(label, task.labels)}; the labels are "
        f"{quoted(task.labels)}."
        for label in seed_words
        if label not in task.labels
    ]
    if problems:
        raise TaskError(problems)
    given = {label: _words([words] if isinstance(words, str) else words) for label, words in seed_words.items()}
    return {label: words for label, words in given.items() if words}


def _labels_without_rows(rows: Rows) -> list[str]:
    labels = rows.task.labels
    present = [labels[number] for number in np.unique(rows.labels)]
    if len(present) < 2:
        raise DataError(
            f"All labelled rows of '{rows.source}' have the label {quoted(present)}; words are found by comparing a "
            "label's rows with those of others, so give rows of two labels or more."
        )
    return [label for label in labels if label not in present]


@torch.inference_mode()
def _scores(
    model: ClozeModel, questions: TaskPrompts, candidates: Candidates, rows: Rows, max_length: int, warnings: list[str]
) -> NDArray[np.float32]:
    """M(t) at the mask: (patterns, rows, candidates), on disk, not in memory."""
    max_length = min(max_length, model.max_length)
    budget = TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
    ids = np.array(list(candidates.index), dtype=np.int64)  # (candidates, patterns)
    columns = questions.tokenize(model, rows, 0, len(rows))
    encoded = [EncodedRows(question.template, columns, max_length) for question in questions.patterns]
    with tempfile.TemporaryFile() as file:
        scores = np.memmap(file, dtype=np.float32, mode="w+", shape=(len(encoded), len(rows), len(ids)))
    with model.scoring(), progress("scoring", len(encoded) * len(rows), "rows") as advance:
        for number, spliced in enumerate(encoded):
            wanted = model.to_device(ids[:, number].copy())
            for batch in spliced.batches(budget):
                states = model.states_at_mask(batch).to(model.model.dtype)  # (batch, hidden)
                scores[number, batch.rows] = model.head(states, wanted).float().cpu().numpy()
                advance(len(batch.rows))
    if not np.isfinite(scores).all():
        raise ModelError(f"The model '{model.name}' gives scores that are no numbers; it may be damaged.")
    seen = ScoringStats()
    seen.update(columns, encoded)
    warnings += seen.warnings(max_length)
    return scores


def _doubts(
    candidates: Candidates, found: WordScores, how: Recipe, chosen: dict[str, list[int]], without: list[str]
) -> list[str]:
    """Remarks on labels with fewer good words than asked for, and on words of more than one label."""
    good = (found.scores > how.words.epsilon).sum(axis=1)  # (labels,)
    weak = [label for label, n in zip(chosen, good, strict=True) if n < how.words.m and label not in without]
    remarks = []
    if weak:
        remarks.append(
            f"Fewer than {how.words.m} words score above {how.words.epsilon:g} for the label {quoted(weak)}; more "
            "labelled rows, or words of your own, would help."
        )
    owners: dict[str, list[str]] = {}
    for label, places in chosen.items():
        for n in places:
            owners.setdefault(candidates.words[n], []).append(label)
    if twice := [f"{word} ({', '.join(labels)})" for word, labels in owners.items() if len(labels) > 1]:
        remarks.append(f"Found for more than one label, which is allowed: {', '.join(twice)}.")
    return remarks
