"""docs/method.md leads from the paper to the code; every code name on it must exist."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import clozify
from clozify.cli import app
from clozify.config.recipe import Recipe, Section, load_recipe, shipped_recipes
from clozify.config.task import shipped_tasks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([^`]+)`", PAGE)))
PACKAGE = Path(clozify.__file__).parent
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def names_in(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What a module or a class defines, each with what it defines in turn; `self.x = ...` counts for the class."""
    result: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            result[node.name] = node.body if isinstance(node, ast.ClassDef) else []
            result |= {
                inner.attr: []
                for inner in ast.walk(node)
                if isinstance(node, ast.FunctionDef)
                and isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
            }
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            result |= {target.id: [] for target in targets if isinstance(target, ast.Name)}
    return result


def is_in_the_package(name: str) -> bool:
    """A module or a name in one, as in `training.losses.joint_loss`; files are parsed, since importing them is slow."""
    folder, parts = PACKAGE, name.split(".")
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if not parts or name == "clozify":
        return True
    file = folder / f"{parts.pop(0)}.py"
    if not file.is_file():
        return False
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for part in parts:
        expected = names_in(body)
        if part not in expected:
            return False
        body = expected[part]
    return True


def is_a_setting(name: str) -> bool:
    """A field or a section of the recipe, or NAME=VALUE that the recipe takes."""
    path, equals, _ = name.partition("=")
    section: Any = Recipe()
    for part in path.split("."):
        if not isinstance(section, Section) or part not in type(section).model_fields:
            return False
        section = getattr(section, part)
    if equals:
        load_recipe("paper", [name])  # a value that is not allowed raises
    return True


def is_on_the_command_line(name: str) -> bool:
    """`clozify COMMAND`, or an option of `clozify train`, perhaps with a value that it takes."""
    first, *rest = name.split()
    if first == "clozify":
        return not rest or rest[0] in COMMANDS
    return any(first in parameter.opts for parameter in COMMANDS["train"].params)


def is_a_shipped_name(name: str) -> bool:
    """A recipe, a task, or a file that the code writes."""
    return name in shipped_recipes() or name in shipped_tasks() or ("." in name and f'"{name}"' in SOURCE)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_on_the_page_is_there(name):
    assert is_a_setting(name) or is_on_the_command_line(name) or is_a_shipped_name(name) or is_in_the_package(name)


@pytest.mark.parametrize(
    "name", ["training.losses.jiont_loss", "finetune.alpa", "config.task.Task.lables", "--recipes", "clozify trian"]
)
def test_a_misspelt_name_would_be_noticed(name):
    """The check does reject names that do not exist."""
    result = is_a_setting(name) or is_on_the_command_line(name) or is_a_shipped_name(name) or is_in_the_package(name)
    assert not result


def test_the_authors_recipe_sets_exactly_what_the_page_says():
    """The last column of the table is the recipe `original-code`, no more and no less."""
    theirs, table = load_recipe("original-code"), PAGE.split("## The authors' code")[1].split("## Baselines")[0]
    last = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("|")]
    messages = [name for cell in last if "not set" not in cell for name in re.findall(r"`([^`]+=[^`]+)`", cell)]
    messages += [f"{section}.exact_steps=false" for section in ("finetune_without_lm", "distill", "supervised")]
    assert load_recipe("paper", messages).model_dump(exclude={"name"}) == theirs.model_dump(exclude={"name"})


def test_deviations_that_change_numbers_are_told():
    deviations = PAGE.split("## Where clozify deviates from the paper")[1].split("\n## ")[0]
    for topic in ("Precision.", "`precision=float32`", "Weights in zero-shot iPET.", "MixText's head."):
        assert topic in deviations
