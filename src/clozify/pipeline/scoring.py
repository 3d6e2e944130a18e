"""Raw scores of a run's rows by the worker's model, in memory or as `.npy` files (section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clozify.methods.score import score_rows
from clozify.models.task_prompts import TaskPrompts
from clozify.pipeline.token_cache import evaluation_tokens, unlabeled_tokens
from clozify.runs.records import TEST_SCORES, UNLABELED_SCORES
from clozify.runs.worker import Worker
from clozify.utils.npy import cast_scores, create_npy
from clozify.utils.process_group import current_group
from clozify.utils.progress import progress


def score_data_set(
    worker: Worker, prompts: TaskPrompts, name: Literal["labeled", "test", "dev"]
) -> NDArray[np.float32]:
    """Scores of one of the run's data sets, (pairs of the prompts, rows, labels)."""
    rows = getattr(worker.plan, name)
    tokens = evaluation_tokens(worker, name, rows)
    length = worker.plan.recipe.max_seq_length
    with _progress(name, len(rows) * len(prompts.patterns)) as advance:
        chunks = score_rows(worker.model, prompts, rows, length, advance=advance, tokens=tokens)
        return np.concatenate([scores for _, scores in chunks], axis=1)


def _progress(name: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """The progress of scoring, by the first process of a group; development rows are scored within a training's."""
    if name == "dev" or current_group().rank:
        return nullcontext(lambda count: None)
    return progress(f"scoring {name} rows", total)


def write_unlabeled_scores(
    worker: Worker, prompts: TaskPrompts, folder: Path, span: tuple[int, int] | None = None
) -> None:
    """Write a pair's scores of the unlabelled rows, all or those from `span[0]` to before `span[1]`."""
    plan, dtype = worker.plan, worker.plan.recipe.scores_dtype
    assert plan.unlabeled is not None
    tokens = unlabeled_tokens(worker)
    first, last = span or (0, len(plan.unlabeled))
    stored = create_npy(folder / UNLABELED_SCORES, dtype, (last - first, len(plan.task.labels)))
    length = plan.recipe.max_seq_length
    with _progress("unlabeled", last - first) as advance:
        for start, scores in score_rows(
            worker.model, prompts, plan.unlabeled, length, advance=advance, span=span, tokens=tokens
        ):
            stored[start - first : start - first + scores.shape[1]] = cast_scores(scores[0], dtype)


def write_scores(worker: Worker, prompts: TaskPrompts, folder: Path, score_unlabeled: bool) -> None:
    """Write a pair's scores of the unlabelled rows, where they are needed, and of the test rows."""
    if score_unlabeled:
        write_unlabeled_scores(worker, prompts, folder)
    if worker.plan.test is not None:
        np.save(folder / TEST_SCORES, score_data_set(worker, prompts, "test")[0])
