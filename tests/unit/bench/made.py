"""Results of cells that were never run, for tests of what is made of results."""

from __future__ import annotations

import math
from pathlib import Path

from clozify.bench.plan import CellSpec
from clozify.bench.results import CELLS, FAILED, LOG, RESULT, CellResult, Measured
from clozify.bench.rivals import RIVALS

STRENGTH = {"tfidf": 0.45, "embeddings": 0.62, "supervised": 0.66, "setfit": 0.7, "pet": 0.76, "ipet": 0.77}
SECONDS = {"tfidf": 0.3, "embeddings": 8.0, "supervised": 60.0, "setfit": 130.0, "pet": 300.0, "ipet": 700.0}


def spec(data: str = "sample", per_label: int = 8, draw: int = 0, method: str = "pet", **changes) -> CellSpec:
    fields = {
        "data": data,
        "data_key": f"{data}-12345678",
        "per_label": per_label,
        "draw": draw,
        "method": method,
        "model": "" if RIVALS[method].ENCODER == "none" else "builtin",
        "settings": (),
        "recipe": "auto" if method in ("pet", "ipet", "supervised") else "",
        "max_length": 64,
        "seed": draw,
    }
    return CellSpec(**fields | changes)


def result(cell: CellSpec, accuracy: float | None = 0.75, **changes) -> CellResult:
    measured = Measured(
        training_seconds=SECONDS.get(cell.method, 1.0) * math.sqrt(cell.per_label / 8),
        prediction_seconds=0.1 if cell.method == "tfidf" else 20.0,
        memory_bytes=1_500 * 2**20,
        size_bytes=80 * 2**20,
        versions={"python": "3.11.7", "torch": "2.13.0"},
    )
    fields = {
        "key": f"{cell.data}-{cell.per_label}-{cell.draw}-{cell.method}-{abs(hash(cell)) % 10**8}",
        "spec": cell,
        "title": RIVALS[cell.method].TITLE,
        "settings": RIVALS[cell.method].SETTINGS,
        "machine": "a machine, 2 processors",
        "device": "cpu",
        "labeled_rows": 14 * cell.per_label,
        "unlabeled_rows": 600,
        "test_rows": 1_000,
        "labels": 14,
        "measured": None if accuracy is None else measured,
        "accuracy": accuracy,
        "macro_f1": None if accuracy is None else accuracy - 0.03,
        "failure": "ImportError: no module" if accuracy is None else "",
    }
    return CellResult(**fields | changes)


def grid(data=("agnews", "emotion", "sample"), sizes=(8, 16, 64), draws=3) -> list[CellResult]:
    """Every method on every draw; FastFit fails, and on one data set SetFit, too, in one draw."""
    results = []
    for number, name in enumerate(data):
        for size in sizes:
            for draw in range(draws):
                for method, strength in STRENGTH.items():
                    noise = 0.02 * math.sin(7 * draw + 3 * number + len(method))
                    accuracy = min(0.99, strength - 0.08 * number + 0.035 * math.log2(size / 8) + noise)
                    failed = method == "setfit" and (number, size, draw) == (1, 64, 2)
                    results.append(result(spec(name, size, draw, method), None if failed else accuracy))
                results.append(result(spec(name, size, draw, "fastfit"), None))
    return results


def write_package(folder: Path, name: str, version: str, code: str = "") -> str:
    """A folder with an installed package; returns its path."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return str(folder)


def write(folder: Path, results: list[CellResult]) -> None:
    """The results as a bench keeps them."""
    for one in results:
        path = folder / (FAILED if one.failure else CELLS) / one.key
        path.mkdir(parents=True)
        (path / RESULT).write_text(one.model_dump_json())
        (path / LOG).write_text("Traceback (most recent call last):\n  ...\nImportError: no module\n")
