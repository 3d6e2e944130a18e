"""The members of a run with a frozen encoder: label vectors for every pair, fitted to kept states."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.frozen import Centre, LabelVectors, fit_label_vectors, pad_words
from clozify.methods.scope import Scope
from clozify.metrics import BasicMetrics, basic_metrics
from clozify.models.lora import save_base
from clozify.pipeline.folds import Fold, estimate_folds
from clozify.pipeline.member_jobs import RECORD
from clozify.pipeline.run import Run
from clozify.pipeline.scope import MEMBER_SCOPE, SourceName, fit_scope
from clozify.pipeline.state_cache import DataSet, StateCache
from clozify.pipeline.untrained import UntrainedRecord, scores_inputs, summarize_pairs
from clozify.runs.jobs import JobResult
from clozify.runs.keys import job_key
from clozify.runs.plan import Plan
from clozify.runs.records import HELD_OUT_SCORES, LABEL_VECTORS, TEST_SCORES, UNLABELED_SCORES, Member
from clozify.runs.scope import save_scope
from clozify.runs.worker import Worker
from clozify.utils.checked_files import naming_damaged, read_json
from clozify.utils.npy import cast_scores, create_npy


def fit_members(run: Run) -> tuple[list[Member], UntrainedRecord]:
    """A member for every pair, and the pairs' metrics before the fit."""
    plan, folder, pairs = run.plan, run.folder, run.plan.task.pairs
    keys = [_key(run, pair) for pair in range(len(pairs))]
    jobs = []
    for index, text in enumerate(plan.task.patterns):
        name = f"pattern {index + 1}/{len(plan.task.patterns)}  {text}"
        of_pattern = [(pair, keys[pair]) for pair, each in enumerate(pairs) if each.pattern.text == text]
        missing = [(pair, key) for pair, key in of_pattern if not folder.has_job("members", key, run.context.log)]
        if missing:
            jobs.append(FrozenJob(name, index, tuple(missing)))
        else:
            run.context.log(f"{name}  already done")
    run.run_jobs(jobs, "patterns")
    members = [
        Member(pair, plan.recipe.seed, folder.job_path("members", key), plan.unlabeled is not None)
        for pair, key in enumerate(keys)
    ]
    return members, _read_untrained(run, members)


def _key(run: Run, pair: int) -> str:
    plan = run.plan
    return job_key(
        "frozen",
        pattern=plan.task.pairs[pair].pattern.text,
        words=plan.key_words(plan.task.pairs[pair].verbalizer),
        penalty=plan.recipe.frozen.penalty,
        **({} if plan.is_distilled else MEMBER_SCOPE),
        **({"folds": [len(folds), plan.recipe.seed]} if (folds := estimate_folds(plan)) else {}),
        truth=None if plan.test is None else plan.test.labels.tolist(),
        **scores_inputs(run),
    )


def _read_untrained(run: Run, members: list[Member]) -> UntrainedRecord:
    """The pairs' metrics before the fit, from the members' records."""
    records = []
    for member in members:
        path = member.folder / RECORD
        with naming_damaged(path):
            untrained = read_json(path)["untrained"]
            records.append({name: BasicMetrics(**metrics) for name, metrics in untrained.items()})
    return UntrainedRecord(
        accuracy_on_labeled=[record["labeled"].accuracy for record in records] if len(run.plan.labeled) else None,
        test=None if run.plan.test is None else summarize_pairs([record["test"] for record in records]),
        seconds=0.0,
    )


@dataclass(frozen=True)
class FrozenJob:
    """Fits the label vectors of a pattern's pairs and writes their scores."""

    name: str
    pattern: int  # index in `task.patterns`
    keys: tuple[tuple[int, str], ...]  # pairs of the pattern, and the keys of their members

    def run(self, worker: Worker) -> JobResult:
        """Compute the states that are not kept yet, fit, and write the members."""
        plan, started = worker.plan, time.monotonic()
        prompt = worker.prompts.patterns[self.pattern]
        cache = StateCache(worker, prompt)
        total = cache.fill()
        seconds = time.monotonic() - started
        labeled = _concat(cache, "labeled")
        width = worker.cloze_model.head.word_vectors.shape[1]
        centre = Centre.of(cache.chunks("labeled" if plan.unlabeled is None else "unlabeled"), width)
        scope = None if plan.is_distilled else _fit_scope(plan, cache, width)  # where the result is the ensemble
        for pair, key in self.keys:
            label_vectors = worker.cloze_model.label_vectors(prompt.words[prompt.pairs.index(pair)])
            words, biases = (tensor.detach().double().cpu().numpy() for tensor in label_vectors)
            before = LabelVectors(pad_words(words, len(centre.mean)), biases)
            after, penalty = fit_label_vectors(labeled, plan.labeled.labels, words, centre, plan.recipe.frozen.penalty)
            with worker.folder.writing("members", key) as tmp_path:
                untrained = _write_scores(plan, cache, before, after, tmp_path)
                if folds := estimate_folds(plan):
                    np.save(tmp_path / HELD_OUT_SCORES, _held_out_scores(plan, folds, labeled, words, centre, penalty))
                save_base(tmp_path / "model", plan.base)
                np.save(tmp_path / "model" / LABEL_VECTORS, after.to_array())
                if scope is not None:
                    save_scope(tmp_path / "model", scope)
                record = {
                    "pair": plan.task.pairs[pair].name,
                    "pattern": plan.task.pairs[pair].pattern.text,
                    "rows": len(plan.labeled),
                    "penalty": penalty,
                    "untrained": untrained,
                    "seconds": (time.monotonic() - started) / len(self.keys),
                }
                (tmp_path / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        kept = total - cache.computed
        return JobResult(f"{cache.computed:,} rows computed in {seconds:,.0f} s, {kept:,} were kept from before")


def _fit_scope(plan: Plan, cache: StateCache, width: int) -> Scope:
    """The reference rows of the out-of-scope score, from the states p(x), which follow the `width` of h(x)."""

    def embed(name: SourceName, indices: NDArray[np.int64]) -> NDArray[Any]:
        states, start = [], 0
        for chunk in cache.chunks(name):
            inside = indices[(indices >= start) & (indices < start + len(chunk))] - start
            states.append(chunk[inside, width:].astype(np.float32))
            start += len(chunk)
        return np.concatenate(states)

    return fit_scope(plan, int(cache.worker.cloze_model.model.config.hidden_size), embed)


def _held_out_scores(
    plan: Plan,
    folds: Sequence[Fold],
    states: NDArray[Any],
    words: NDArray[np.float64],
    centre: Centre,
    penalty: float | None,
) -> NDArray[np.float32]:
    """Scores of T, each row's by label vectors that were fitted without its fold: (rows, labels)."""
    scores = np.zeros((len(states), len(words)), dtype=np.float32)
    for fold in folds:
        kept, held_out = fold.training(plan), fold.held_out(plan)
        fitted, _ = fit_label_vectors(states[kept], plan.labeled.labels[kept], words, centre, penalty)
        scores[held_out] = fitted.scores(states[held_out])
    return scores


def _concat(cache: StateCache, name: DataSet) -> NDArray[Any]:
    """The states of all rows of a data set, (rows, states); of none, (0, 0)."""
    chunks = list(cache.chunks(name))
    return np.concatenate(chunks) if chunks else np.zeros((0, 0))


def _write_scores(
    plan: Plan, cache: StateCache, before: LabelVectors, after: LabelVectors, folder: Path
) -> dict[str, Any]:
    """Write a member's scores; returns the pair's metrics on labelled and test rows before the fit."""
    if plan.unlabeled is not None:
        dtype = plan.recipe.scores_dtype
        stored = create_npy(folder / UNLABELED_SCORES, dtype, (len(plan.unlabeled), len(plan.task.labels)))
        start = 0
        for states in cache.chunks("unlabeled"):
            stored[start : start + len(states)] = cast_scores(after.scores(states), dtype)
            start += len(states)
    untrained = {}
    for name in ("labeled", "test"):
        rows: Rows | None = getattr(plan, name)
        if rows is None or not len(rows):
            continue
        chunks = list(cache.chunks(name))
        scores = np.concatenate([before.scores(states) for states in chunks])
        untrained[name] = basic_metrics(rows.labels, scores.argmax(axis=-1), scores.shape[-1]).model_dump()
        if name == "test":
            np.save(folder / TEST_SCORES, np.concatenate([after.scores(states) for states in chunks]))
    return untrained
