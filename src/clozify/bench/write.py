"""Writes a bench's files: `bench.html`, `bench.md` and `results.json`."""

from __future__ import annotations

import json
from pathlib import Path

from clozify.bench.page import bench_page
from clozify.bench.render import markdown, to_json
from clozify.bench.summary import Summary
from clozify.utils.atomic import atomic_write_text

PAGE, MARKDOWN, JSON = "bench.html", "bench.md", "results.json"


def write_bench(summary: Summary, folder: Path) -> list[Path]:
    """Write the page, the Markdown and the JSON, each atomically; returns their paths."""
    contents = {
        PAGE: bench_page(summary),
        MARKDOWN: markdown(summary),
        JSON: json.dumps(to_json(summary), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in contents.items():
        atomic_write_text(folder / name, text)
    return [folder / name for name in contents]
