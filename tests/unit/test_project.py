"""Promises about the project itself: how it imports, in which order modules may know each other, how long they are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import clozify

PACKAGE = Path(clozify.__file__).parent
ORDER = """
errors company arrays pattern task settings recipe progress hub files data tokens encode masks packing verbalize
adapters sublayers_kernel sublayers cloze precision replay adamw_kernel adamw masters products exported classifier
questions metrics losses training
steps baselines run lease store trackers memory plan bench executors pile shards rewriting backtranslation augment
semisupervised members softlabels generations final comparison sources usefulness report estimate room pet pretraining
check predictions zeroshot predict suggest push export serving candidates findwords demo reproduce estimator studio cli
__main__
""".split()
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def place(name: str) -> int:
    return ORDER.index(name.removeprefix("clozify.").split(".")[0])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_knows_only_those_before_it(path):
    """Data flows one way; an import against it is the start of a knot."""
    own = place(path.relative_to(PACKAGE).with_suffix("").parts[0])
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "clozify" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("clozify.") and not name.endswith("__version__"):
                assert place(name) <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_stays_small_and_opens_with_what_it_is_for(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 400


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
