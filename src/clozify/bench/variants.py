"""The columns of a bench's tables: a method with a model and settings, and its name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    """The methods' titles; where a method has several variants, with what tells them apart. No two are equal."""
    names = []
    for variant in variants:
        siblings = [other for other in variants if other.method == variant.method]
        models = short_names({other.model for other in siblings} | {value for v in siblings for _, value in v.options})
        recipes = short_names({other.recipe for other in siblings})
        parts = []
        if len({other.model for other in siblings}) > 1:
            parts.append(models[variant.model])
        if len({(other.recipe, other.settings) for other in siblings}) > 1:
            parts += [recipes[variant.recipe], *variant.settings]
        if len({other.max_length for other in siblings}) > 1 and variant.max_length:
            parts.append(f"{variant.max_length} tokens")
        if len({other.options for other in siblings}) > 1:
            parts += [models[value] for _, value in variant.options]
        title = RIVALS[variant.method].TITLE
        names.append(f"{title} ({', '.join(dict.fromkeys(filter(None, parts)))})" if parts else title)
    return names


def short_names(names: Collection[str]) -> dict[str, str]:
    """The last part of each path or hub name, or as many of its last parts as tell it from the others."""
    parts = {name: name.rstrip("/").split("/") for name in names}
    for count in range(1, max(map(len, parts.values()), default=0)):
        short = {name: "/".join(of_name[-count:]) for name, of_name in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in names}
