"""Promises about the project itself: layers, sizes, names, and what an import costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clozify

PACKAGE = Path(clozify.__file__).parent
ROOT = PACKAGE.parents[1]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
PUBLIC = set(clozify.__all__)
AVOIDED = set("chance place places found known given there beside company room bench masters lie parcel pile".split())
MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS, MAX_ENTRIES = 400, 60, 8, 30


def name_of(path):
    return str(path.relative_to(PACKAGE))


def functions(path):
    """All functions of a module; the constructor of a public class goes by the class's name."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in PUBLIC:
            for method in node.body:
                if getattr(method, "name", "") == "__init__":
                    method.name = node.name
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def is_free_of_limits(path, function):
    """The command line's functions and the public ones mirror what a user may set."""
    return path.is_relative_to(PACKAGE / "cli") or function.name in PUBLIC or path.parent.name == "kernels"


def test_packages_are_layers():
    """import-linter holds the order of the packages, which CONTRIBUTING shows."""
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None) == 0


def test_the_package_has_few_entries():
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MAX_ENTRIES


def test_contributing_lists_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in PACKAGE.iterdir():
        name = path.stem if path.is_file() else f"{path.name}/"
        if not name.startswith("__") and name != "py":
            assert re.search(rf"(?<!\w){re.escape(name)}", text), f"CONTRIBUTING does not list {name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_small_and_documented(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_function_is_short_and_has_few_parameters(path):
    for function in functions(path):
        if is_free_of_limits(path, function):
            continue
        lines = function.end_lineno - function.lineno + 1
        arguments = function.args
        names = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
        names = [name for name in names if name not in ("self", "cls")]
        assert lines <= MAX_FUNCTION_LINES, f"{function.name} has {lines} lines"
        assert len(names) <= MAX_PARAMETERS, f"{function.name} has {len(names)} parameters"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_names_are_those_of_the_field(path):
    """A name that says nothing about its type makes every reader look for the definition."""
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        used |= {getattr(node, "id", None), getattr(node, "arg", None), getattr(node, "attr", None)}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            used.add(node.name)
    assert not used & AVOIDED


def test_importing_the_package_is_quick_and_loads_no_heavy_library():
    """A slow import makes every command and every completion slow."""
    code = (
        "import sys, time; t = time.perf_counter(); import clozify; s = time.perf_counter() - t\n"
        "assert s < 1, s\n"
        "assert not {'torch', 'transformers', 'datasets', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_the_package_promises_is_there():
    for name in clozify.__all__:
        assert getattr(clozify, name).__name__ == name


def test_listing_tasks_loads_neither_torch_nor_transformers():
    code = (
        "import sys; sys.argv = ['clozify', 'tasks']\n"
        "from clozify.cli import app\n"
        "app(standalone_mode=False)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def is_text_file_call(node: ast.AST) -> bool:
    """Whether a call reads or writes a file as text."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func).startswith("webbrowser"):
        return False
    name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
    modes = [str(getattr(value, "value", "")) for value in [*node.args, *(word.value for word in node.keywords)]]
    return name in ("read_text", "write_text") or (name == "open" and not any(re.match("[rwax]b", m) for m in modes))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_text_files_have_an_encoding(path):
    """Python's default is the locale's, which may lack a label's characters; Ruff's rule sees only some calls."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_text_file_call(node)]
    assert not [ast.unparse(call) for call in calls if "encoding" not in {word.arg for word in call.keywords}]


def test_install_lines_name_extras_that_exist_in_one_form():
    """A newcomer's first command must work; in a clone `.` stands for the name, which only README and tutorial say."""
    import tomllib

    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *MODULES]:
        for target, names in re.findall(r"pip install '([^'\[]*)\[([\w,]+)\]'", path.read_text()):
            assert set(names.split(",")) <= extras, f"{path.name}: {names}"
            assert target == "clozify" or (target == "." and path.name in ("README.md", "tutorial.md")), path.name


def test_help_names_rows_in_words_not_by_the_papers_letters():
    """T and D are defined in the paper, which somebody who types --help has not read."""
    from typer.main import get_command

    from clozify.cli import app

    for name, command in get_command(app).commands.items():
        for text in [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]:
            assert not re.search(r"\b[TD]\b", text or ""), f"{name}: {text}"


def test_a_tag_releases_what_was_checked():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    for part in (
        'tags: ["v*"]',
        "python -m build",
        "twine check --strict",
        "id-token: write",
        "gh-action-pypi-publish",
    ):
        assert part in text
