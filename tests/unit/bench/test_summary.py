"""Tables and pages of results that were made up."""

import json

import pytest

from clozify.bench import charts
from clozify.bench.published import published_tables
from clozify.bench.render import markdown
from clozify.bench.results import read_results
from clozify.bench.summary import Block, summarize
from clozify.bench.write import write_bench
from tests.unit.bench.made import grid, result, spec, write


@pytest.fixture
def made(tmp_path):
    write(tmp_path, grid())
    return summarize(read_results(tmp_path), tmp_path, ["clozify bench"]), tmp_path


def test_an_entry_has_the_mean_over_draws_and_the_difference_from_pet_on_the_same_draws(made):
    summary, _ = made
    entry = summary.entry(Block("agnews", 8), "TF-IDF")
    of_method = {
        method: {
            one.spec.draw: one.accuracy
            for one in grid()
            if (one.spec.data, one.spec.per_label, one.spec.method) == ("agnews", 8, method)
        }
        for method in ("tfidf", "pet")
    }
    assert entry.accuracy.mean == pytest.approx(sum(of_method["tfidf"].values()) / 3)
    differences = [of_method["tfidf"][draw] - of_method["pet"][draw] for draw in range(3)]
    assert entry.difference.mean == pytest.approx(sum(differences) / 3)
    assert summary.entry(Block("agnews", 8), "PET").difference is None


def test_a_method_that_failed_everywhere_is_shown_as_failed_and_does_not_empty_the_ranks(made):
    summary, _ = made
    entry = summary.entry(Block("sample", 16), "FastFit")
    assert entry.accuracy is None
    assert entry.failures == 3
    assert summary.complete_blocks == 9
    assert [point.name for point in summary.points] == ["TF-IDF", "embeddings", "supervised", "SetFit", "PET", "iPET"]
    assert summary.failed_cells == 28
    assert "ImportError" in summary.failures[0].log


def test_page_markdown_and_json_have_every_part(made):
    summary, folder = made
    page, text, content = (path.read_text() for path in write_bench(summary, folder))
    for part in ("accuracy", "rows", "cost", "ranks", "measured", "run", "failed", "published"):
        assert f'id="{part}"' in page
    assert "<script" not in page
    assert "| FastFit | 3 | failed |" in text
    assert json.loads(content)["reference"] == "PET"


def test_names_from_data_are_escaped(tmp_path):
    write(tmp_path, [result(spec("<b>x</b>", method=method), key=method) for method in ("tfidf", "pet")])
    summary = summarize(read_results(tmp_path), tmp_path, [])
    page = write_bench(summary, tmp_path)[0].read_text()
    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page


def test_variants_of_a_method_are_told_apart_by_what_differs(tmp_path):
    cells = [spec(method="pet", model=model) for model in ("builtin", "models/other")]
    write(tmp_path, [result(cell) for cell in cells])
    assert summarize(read_results(tmp_path), tmp_path, []).names == ["PET (builtin)", "PET (other)"]


def test_a_success_replaces_an_earlier_failure(tmp_path):
    cell = spec()
    write(tmp_path, [result(cell, None, key="k"), result(cell, 0.5, key="k")])
    assert [one.accuracy for one in read_results(tmp_path)] == [0.5]


def test_published_figures_have_sources_and_as_many_values_as_columns():
    tables = published_tables()
    assert tables
    for table in tables:
        assert table.source
        assert all(len(row.values) == len(table.columns) for row in table.rows)


def test_published_figures_are_apart_from_measured_ones(made):
    measured, _, published = markdown(made[0]).partition("## Published figures")
    assert "T-Few" not in measured
    assert "T-Few" in published


def test_every_method_has_a_marker_and_a_colour_of_its_own():
    marks = {charts.marker(index, 0, 0) for index in range(13)}
    assert len(marks) == 13


def test_labels_of_points_close_together_do_not_overlap():
    points = [charts.Series(f"method {n}", n, (charts.Point(10.0, 0.5 + n / 1000),)) for n in range(6)]
    drawn = str(charts.scatter(points, "Training", "seconds"))
    assert drawn.count("method ") == 12  # the labels and the text alternative
