"""What a run may spend on teachers that cost something: `--budget 500requests`, `200000tokens` or `1.50`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from clozify.errors import RunError

_PART = re.compile(r"([0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)\s*(requests?|tokens?)?")


@dataclass(frozen=True)
class Budget:
    """Limits for all of a run's requests together; None is no limit."""

    requests: int | None = None
    tokens: int | None = None  # input and output
    price: float | None = None  # in the currency of the prices in the task file


def parse_budget(text: str) -> Budget:
    """A budget from text: a number of `requests` or `tokens`, a sum of money, or several with commas between."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        kind = f"{match[2].rstrip('s')}s" if match and match[2] else "price"
        value = float(match[1]) if match else math.nan
        if not match or kind in limits or (kind != "price" and value != int(value)):
            raise RunError(
                f"The budget '{text}' is not understood; write a number of requests (500requests) or of tokens "
                "(200000tokens), a sum of money (1.50), or several with commas between."
            )
        limits[kind] = value
    return Budget(
        requests=int(limits["requests"]) if "requests" in limits else None,
        tokens=int(limits["tokens"]) if "tokens" in limits else None,
        price=limits.get("price"),
    )
