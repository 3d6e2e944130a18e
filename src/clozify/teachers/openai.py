"""The teacher `kind = "openai"`: a large language model behind an address is asked for each row's label."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.budget import Budget
from clozify.config.task import Task
from clozify.config.teachers import OPENAI_URL, OpenAIEntry
from clozify.data.rows import Rows
from clozify.errors import TaskError, require_package
from clozify.teachers.base import Cost, ScoringContext
from clozify.teachers.llm_answers import to_log
from clozify.teachers.llm_cache import AnswerCache
from clozify.teachers.llm_client import ChatClient
from clozify.teachers.llm_limits import Limits, Tally, check_budget, price
from clozify.teachers.llm_prompt import PromptBuilder, estimate_tokens, iterate_texts
from clozify.teachers.llm_questions import Questions

PRIVATE = ("kind", "name", "api_key_env", "concurrency", "timeout", "retries", "input_price", "output_price")
SAMPLE_ROWS = 1_000  # rows whose length is measured for an estimate


class OpenAITeacher:
    """Asks a model for each row's label; see `OpenAIEntry` for its settings and docs/teachers.md for what is sent."""

    kind = "openai"
    learns_from_labeled = False  # T gives examples, but a row of T is never its own one: no need to cross-fit

    def __init__(
        self, entry: OpenAIEntry, task: Task, budget: Budget | None = None, run_tally: Tally | None = None
    ) -> None:
        """`budget` limits what all teachers with the same `run_tally` spend together."""
        if problems := entry.problems(task.fields, task.labels):
            raise TaskError(problems)
        self.name = entry.name or entry.model
        check_budget(entry, self.name, budget)
        self._entry, self._task, self._budget = entry, task, budget
        self._tally, self._run_tally = Tally(), run_tally or Tally()

    @property
    def row_limit(self) -> int | None:
        """How many rows it is asked about at most; None for all. Under a limit the most uncertain rows come first."""
        budget = self._budget or Budget()
        counts = [n for n in (self._entry.rows, self._entry.max_requests, budget.requests) if n is not None]
        if self._entry.max_tokens is not None or budget.tokens is not None or budget.price is not None:
            counts.append(sys.maxsize)  # how many rows that is shows later
        return min(counts, default=None)

    def notes(self) -> list[str]:
        """What is missing on this machine to ask the model; answers that are kept need nothing."""
        notes = list[str]()
        if find_spec("openai") is None:
            notes.append(f"The teacher '{self.name}' needs the package openai: pip install 'clozify[llm]'.")
        variable = self._entry.api_key_env
        if self._entry.base_url == OPENAI_URL and not os.environ.get(variable, "").strip():
            notes.append(
                f"The teacher '{self.name}' needs a key, and the environment variable {variable} is not set; put the "
                "key into it."
            )
        return notes

    def key(self) -> dict[str, Any]:
        """What the scores depend on: all settings but those of how requests are sent; the limits, too."""
        key = {name: value for name, value in self._entry.model_dump(mode="json").items() if name not in PRIVATE}
        if self._budget is not None:
            prices = (self._entry.input_price, self._entry.output_price)
            limits = (self._budget.requests, self._budget.tokens, self._budget.price)
            key["budget"] = [*limits, *(prices if self._budget.price is not None else ())]
        return {"kind": self.kind, **key}

    def cost(self, rows: Rows, labeled: Rows | None = None) -> Cost:
        """An estimate: a token is four bytes, and each row is asked about `answers` times (once with `logprobs`).

        Without `labeled` the examples are taken to be as long as the rows.
        """
        entry = self._entry
        sample = rows.select(np.arange(min(len(rows), SAMPLE_ROWS)))
        builder = PromptBuilder(entry, self._task, labeled)
        texts = list(iterate_texts(sample))
        tokens = sum(estimate_tokens(builder.messages(row)) for row in texts)
        if labeled is None:
            tokens += entry.examples * sum(sum(map(len, row.values())) // 4 + 5 for row in texts)
        per_request = tokens / max(len(texts), 1)
        requests = min(len(rows), entry.rows or len(rows)) * (1 if entry.logprobs is True else entry.answers)
        budget = self._budget or Budget()
        output = min(entry.answer_tokens, 16)
        per_price = price(entry, round(per_request), output)
        limits: list[float] = [n for n in (entry.max_requests, budget.requests) if n is not None]
        limits += [n // (per_request + output) for n in (entry.max_tokens, budget.tokens) if n is not None]
        limits += [budget.price // per_price] if budget.price is not None and per_price else []
        requests = int(min([requests, *limits]))
        inputs, outputs = round(requests * per_request), requests * output
        return Cost(requests, inputs, outputs, price(entry, inputs, outputs))

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities of the labels, (rows, labels); NaN where the model named no label or was not asked."""
        require_package("openai", "llm", f"The teacher '{self.name}'")
        order = _most_uncertain(len(rows), self._entry.rows, context.uncertainty)
        prompts = PromptBuilder(self._entry, self._task, context.labeled)
        own = Budget(self._entry.max_requests, self._entry.max_tokens)
        limits = Limits([(own, self._tally), (self._budget or Budget(), self._run_tally)])
        cache = AnswerCache(context.cache)
        client = ChatClient(self._entry, self.name)
        try:
            questions = Questions(prompts, client, cache, limits, context.log)
            probabilities = questions.ask_all(rows.select(order))
            questions.log_summary(self._tally.spent)
        finally:
            client.close()
            cache.close()
        scores = np.full((len(rows), len(self._task.labels)), np.nan, dtype=np.float32)
        scores[order] = to_log(probabilities, len(self._task.labels))
        return scores


def _most_uncertain(count: int, limit: int | None, uncertainty: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """The indices of the rows to ask about, the most uncertain first; rows of equal uncertainty in their order."""
    order = np.arange(count) if uncertainty is None else np.argsort(-uncertainty, kind="stable")
    return order[:limit]
