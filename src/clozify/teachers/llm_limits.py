"""Limits on what a large language model may cost: those of its entry in the task file and the run's budget.

Every answer that a run uses counts, kept ones, too: the same limit gives the same votes whatever is kept already.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from clozify.config.budget import Budget
from clozify.config.teachers import OpenAIEntry
from clozify.errors import RunError


@dataclass(frozen=True)
class Spent:
    """What answers cost."""

    requests: int = 0
    tokens: int = 0
    price: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.requests + other.requests, self.tokens + other.tokens, self.price + other.price)

    def __mul__(self, count: int) -> Spent:
        return Spent(self.requests * count, self.tokens * count, self.price * count)


@dataclass
class Tally:
    """What the answers cost that were used so far; an answer that is used twice counts once."""

    spent: Spent = field(default_factory=Spent)
    keys: set[str] = field(default_factory=set)

    def add(self, key: str, cost: Spent) -> None:
        """Count an answer."""
        if key not in self.keys:
            self.keys.add(key)
            self.spent += cost


class Limits:
    """Admits rows until a limit is reached; rows under way count with what they cost by estimate."""

    def __init__(self, limited: list[tuple[Budget, Tally]]) -> None:
        self._limited = limited
        self._reserved = Spent()
        self._settled = threading.Condition()

    def reserve(self, one: Spent, count: int) -> Reservation | None:
        """Room for a row's requests, of the cost `one` by estimate; None where the limit is reached.

        Rows under way mostly cost less than their estimate, so this waits for them before it gives up. Called by one
        thread at a time: so the rows come in their order.
        """
        with self._settled:
            while not self._has_room(one * count):
                if self._reserved.requests == 0:
                    return None
                self._settled.wait()
            self._reserved += one * count
            return Reservation(self, one, count)

    def _has_room(self, cost: Spent) -> bool:
        return not any(_exceeds(limit, tally.spent + self._reserved + cost) for limit, tally in self._limited)

    def _settle(self, reserved: Spent, key: str = "", cost: Spent | None = None) -> None:
        """Release a part of a reservation and count what it became."""
        with self._settled:
            self._reserved += reserved * -1
            if cost is not None:
                for _, tally in self._limited:
                    tally.add(key, cost)
            self._settled.notify_all()


class Reservation:
    """A row's share of the limits, for its requests one after the other."""

    def __init__(self, limits: Limits, one: Spent, count: int) -> None:
        self._limits, self._one, self._left = limits, one, count

    def extend(self) -> bool:
        """Whether there is room for one more request than was reserved."""
        with self._limits._settled:
            if self._left:
                return True
            if not self._limits._has_room(self._one):
                return False
            self._limits._reserved += self._one
            self._left += 1
            return True

    def use(self, key: str, cost: Spent) -> None:
        """Count an answer in the place of one reserved request."""
        released, self._left = min(self._left, 1), max(self._left - 1, 0)
        self._limits._settle(self._one * released, key, cost)

    def close(self) -> None:
        """Release what was not used."""
        left, self._left = self._left, 0
        self._limits._settle(self._one * left)


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


def request_cost(entry: OpenAIEntry, input_tokens: int, output_tokens: int) -> Spent:
    """What one request costs."""
    return Spent(1, input_tokens + output_tokens, price(entry, input_tokens, output_tokens) or 0.0)


def check_budget(entry: OpenAIEntry, teacher: str, budget: Budget | None) -> None:
    """Raise an error where a budget is a sum of money and the teacher has no prices."""
    if budget is not None and budget.price is not None and price(entry, 0, 0) is None:
        raise RunError(
            f"The budget is a sum of money, but the teacher '{teacher}' has no prices; add input_price and "
            "output_price (of a million tokens) to it, or give the budget as requests or tokens."
        )
