"""The Python examples of README and docs: they have right types, and the short ones run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/python.md"]


def blocks(page):
    return re.findall(
        r"^```python[^\n]*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.slow
def test_examples_have_right_types(tmp_path):
    """mypy reads each page's examples as one module; it checks names, parameters and attributes of results."""
    for page in PAGES:
        name = page.replace("/", "_").removesuffix(".md").lower()
        (tmp_path / f"example_{name}.py").write_text("\n".join(blocks(page)), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_example_is_valid_python():
    for page in PAGES:
        for number, block in enumerate(blocks(page)):
            compile(block, f"{page}, example {number}", "exec")


def test_examples_without_training_run(builtin, monkeypatch, capsys):
    """`builtin` is loaded once; the sample's rows are cut to a few."""
    from clozify.data.rows import Rows, read_rows
    from clozify.inference import zero_shot

    def read_first_rows(*args: object) -> Rows:
        return read_rows(*args).select(range(5))

    monkeypatch.setattr("clozify.data.in_memory.read_rows", read_first_rows)
    monkeypatch.setattr(zero_shot, "load_model", lambda name, **settings: builtin)
    examples = [block for block in blocks("docs/python.md") if "zero_shot" in block or "ClozifyError" in block]
    assert len(examples) == 3
    names: dict[str, object] = {}
    for block in examples:
        exec(block, names)
    assert names["result"].probabilities.shape[0] == 5
    assert "neither a file nor a shipped task" in capsys.readouterr().out
