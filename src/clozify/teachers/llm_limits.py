"""Limits on what a large language model may cost: those of its entry in the task file and the run's budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from clozify.config.budget import Budget
from clozify.config.teachers import OpenAIEntry
from clozify.errors import RunError
from clozify.teachers.llm_cache import AnswerCache, Spent


class LimitReachedError(Exception):
    """Another request would go beyond a limit; the rows that are left get no vote."""


class Limits:
    """Lets requests through until a limit is reached; what earlier runs in the same folder have spent counts, too."""

    def __init__(self, entry: OpenAIEntry, teacher: str, cache: AnswerCache, budget: Budget | None) -> None:
        self._entry, self._teacher, self._cache = entry, teacher, cache
        self._own = Budget(entry.max_requests, entry.max_tokens)
        self._run = budget or Budget()
        self._in_flight = Spent()
        self._lock = threading.Lock()

    @contextmanager
    def request(self, estimate: Spent) -> Iterator[None]:
        """A block that sends one request; requests under way count with their estimates."""
        with self._lock:
            needed = self._in_flight + estimate
            for limit, spent in ((self._own, self._cache.spent(self._teacher)), (self._run, self._cache.spent())):
                if _exceeds(limit, spent + needed):
                    raise LimitReachedError
            self._in_flight = needed
        try:
            yield
        finally:
            with self._lock:
                self._in_flight = self._in_flight + Spent(-estimate.requests, -estimate.tokens, -estimate.price)


def _exceeds(limit: Budget, spent: Spent) -> bool:
    return (
        (limit.requests is not None and spent.requests > limit.requests)
        or (limit.tokens is not None and spent.tokens > limit.tokens)
        or (limit.price is not None and spent.price > limit.price * (1 + 1e-9))
    )


def price(entry: OpenAIEntry, input_tokens: int, output_tokens: int) -> float | None:
    """What tokens cost; None where the entry has no prices."""
    if entry.input_price is None and entry.output_price is None:
        return None
    return (input_tokens * (entry.input_price or 0.0) + output_tokens * (entry.output_price or 0.0)) / 1e6


def check_budget(entry: OpenAIEntry, teacher: str, budget: Budget | None) -> None:
    """Raise an error where a budget is a sum of money and the teacher has no prices."""
    if budget is not None and budget.price is not None and price(entry, 0, 0) is None:
        raise RunError(
            f"The budget is a sum of money, but the teacher '{teacher}' has no prices; add input_price and "
            "output_price (of a million tokens) to it, or give the budget as requests or tokens."
        )
