"""The columns of a bench's tables: a method with a model and settings, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozify.bench.plan import CellSpec
from clozify.bench.rivals import RIVALS


@dataclass(frozen=True)
class Variant:
    """A method with a model and settings: a column of the tables."""

    method: str
    model: str
    recipe: str
    settings: tuple[str, ...]
    max_length: int
    options: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: CellSpec) -> Variant:
        """The variant of a cell."""
        return cls(spec.method, spec.model, spec.recipe, spec.settings, spec.max_length, spec.options)


def variant_names(variants: Sequence[Variant]) -> list[str]:
    """The methods' titles; where a method has several variants, with what tells them apart."""
    names = []
    for variant in variants:
        siblings = [other for other in variants if other.method == variant.method]
        parts = []
        if len({other.model for other in siblings}) > 1:
            parts.append(variant.model.rstrip("/").rpartition("/")[2])
        if len({(other.recipe, other.settings) for other in siblings}) > 1:
            parts += [variant.recipe, *variant.settings]
        if len({other.max_length for other in siblings}) > 1:
            parts.append(f"{variant.max_length} tokens")
        if len({other.options for other in siblings}) > 1:
            parts += [value.rstrip("/").rpartition("/")[2] for _, value in variant.options]
        title = RIVALS[variant.method].TITLE
        names.append(f"{title} ({', '.join(dict.fromkeys(filter(None, parts)))})" if parts else title)
    return names
