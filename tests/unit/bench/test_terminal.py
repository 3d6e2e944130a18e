"""What `clozify bench` prints, on terminals of several widths."""

import pytest
from rich.console import Console

from clozify.bench.cost import BenchCost, MethodCost
from clozify.bench.results import read_results
from clozify.bench.summary import summarize
from clozify.bench.terminal import accuracy_tables, show_cost
from tests.unit.bench.made import grid, result, spec, write

MODELS = ("builtin:mini", "builtin:base")


def summary_of(folder, results):
    write(folder, results)
    return summarize(read_results(folder), folder, [])


def printed(summary, width):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        for part in accuracy_tables(console, summary):
            console.print(part)
    return capture.get()


def eleven_columns(data=("sample",), sizes=(8,)):
    methods = ["embeddings", "supervised", "setfit", "pet", "ipet"]
    cells = [
        spec(name, size, 0, method, model=model)
        for name in data
        for size in sizes
        for method in methods
        for model in MODELS
    ]
    cells += [spec(name, size, 0, "tfidf") for name in data for size in sizes]
    return [result(cell, 0.7, key=str(number)) for number, cell in enumerate(cells)]


def test_a_table_that_fits_has_a_line_for_each_data_set(tmp_path):
    shown = printed(summary_of(tmp_path, grid(data=("sample",), sizes=(8,))), 100)
    assert shown.split("\n")[0].split() == [
        *("data", "rows", "a", "label", "TF-IDF", "embeddings", "supervised"),
        *("FastFit", "SetFit", "PET", "iPET"),
    ]


def test_a_table_that_is_too_wide_has_a_line_for_each_method(tmp_path):
    summary = summary_of(tmp_path, eleven_columns(data=("sample", "emotion")))
    lines = printed(summary, 80).splitlines()
    assert lines[0].split() == ["emotion", "sample"]
    assert len(lines) == 2 + len(summary.names)
    assert "…" not in "".join(lines)


def test_many_data_sets_have_a_table_each(tmp_path):
    summary = summary_of(tmp_path, eleven_columns(data=("sample", "emotion", "agnews", "trec"), sizes=(8, 64)))
    shown = printed(summary, 80)
    assert shown.count("8 a label  64 a label") == 4
    assert "\nemotion" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("width", [20, 30, 40, 80, 120])
def test_names_are_never_cut(tmp_path, width):
    summary = summary_of(tmp_path, eleven_columns(data=("sample", "emotion"), sizes=(8, 16, 64)))
    shown = printed(summary, width)
    assert "…" not in shown
    assert shown.count("supervised") >= 2


def test_the_cost_is_in_seconds_or_minutes_where_it_is_small():
    cost = BenchCost(4, 0, 41.0, 1, [MethodCost("TF-IDF", 1, 0.4, "timed steps"), MethodCost("PET", 3, 700, "x")])
    console = Console(width=80)
    with console.capture() as capture:
        show_cost(console, cost)
    shown = capture.get()
    assert "About 41 seconds on this machine, one cell at a time." in shown
    assert "1 second" in shown
    assert "12 minutes" in shown
    assert "0.00" not in shown
