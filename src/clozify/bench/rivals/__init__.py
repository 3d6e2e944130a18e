"""The methods of the bench, a module each: what it is called, what it needs, and how it trains and predicts.

To add one, write a module here with the names of `worker.Rival`, and name it below. A module with `REQUIREMENTS` runs
in an environment of its own, which does not have clozify: it must import nothing of clozify, not even in its functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from clozify.bench.rivals import (
    embeddings,
    fastfit,
    finetune,
    frozen,
    ipet,
    llm,
    model2vec,
    nli,
    pet,
    pet_static,
    setfit,
    supervised,
    tfidf,
    zero_shot,
)
from clozify.bench.rivals.worker import Rival
from clozify.errors import DataError, quoted, unknown_names

_MODULES: tuple[Rival, ...] = (
    tfidf,
    embeddings,
    model2vec,
    zero_shot,
    nli,
    llm,
    supervised,
    finetune,
    frozen,
    fastfit,
    setfit,
    pet,
    pet_static,
    ipet,
)
RIVALS: dict[str, Rival] = {rival.NAME: rival for rival in _MODULES}  # the cheapest first
DEFAULT = ("tfidf", "embeddings", "supervised", "pet")


def choose_rivals(names: Sequence[str]) -> list[Rival]:
    """The methods with these names, the cheapest first."""
    if unknown := [name for name in names if name not in RIVALS]:
        raise DataError(
            f"There is no method {unknown_names(unknown, list(RIVALS))} in the bench; there is {quoted(RIVALS, 20)}."
        )
    if not names:
        raise DataError(f"--methods names no method; there is {quoted(RIVALS, 20)}.")
    return [rival for name, rival in RIVALS.items() if name in names]
