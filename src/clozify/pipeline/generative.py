"""What differs in a run whose members are causal or encoder-decoder models."""

from __future__ import annotations

from pathlib import Path

from clozify.config.recipe import Recipe
from clozify.errors import ModelError
from clozify.models.builtin import DEFAULT, is_builtin
from clozify.models.loading import architecture_of

METHODS = ("pet", "ipet")


def is_generative(model: str | Path) -> bool:
    """Whether a language model is causal or encoder-decoder."""
    return not is_builtin(model) and architecture_of(model) != "masked LM"


def check_method(method: str, model: str | Path) -> None:
    """Raise a `ModelError` where a method needs the masked language model that `model` is not."""
    if method not in METHODS:
        raise ModelError(
            f"The method '{method}' needs a masked language model, and '{model}' is a {architecture_of(model)}; use "
            f"--method pet or ipet, or --model builtin."
        )


def fit_generative(recipe: Recipe, model: str | Path, notes: list[str]) -> Recipe:
    """The recipe without what there is for masked language models alone."""
    if recipe.language_modeling:
        notes.append(
            f"'{model}' is a {architecture_of(model)}: there is no auxiliary language modelling, and members are "
            "trained as by finetune_without_lm."
        )
    return recipe.for_generative()


def default_student(model: str | Path, notes: list[str]) -> str:
    """The model that the final classifier starts from where none is named."""
    notes.append(
        f"The classifier starts from the built-in model clozify-{DEFAULT}, since '{model}' is a "
        f"{architecture_of(model)}; --student names another one."
    )
    return "builtin"
