"""The page's charts and texts, of results that were made up."""

import pytest

from clozify.bench.page import bench_page, breakable
from clozify.bench.results import read_results
from clozify.bench.summary import summarize
from tests.unit.bench.made import grid, write


@pytest.fixture
def page(tmp_path):
    def make(**changes):
        write(tmp_path, grid(**changes))
        return bench_page(summarize(read_results(tmp_path), tmp_path, ["clozify bench"]))

    return make


def test_one_number_of_rows_is_drawn_as_a_dot_plot_with_names(page):
    content = page(data=("sample", "emotion"), sizes=(8,))
    assert content.count("<bdi>sample</bdi>, 8 rows a label") == 2  # the chart's title and the table's
    assert '<polyline class="line' not in content
    assert "Accuracy on each data set" in content


def test_several_numbers_of_rows_are_drawn_as_lines(page):
    content = page(data=("sample",), sizes=(8, 64))
    assert content.count('<polyline class="line') == 6
    assert "Accuracy against labelled rows" in content


def test_both_sections_with_charts_have_a_legend_of_the_methods_with_results(page):
    content = page(data=("sample",), sizes=(8, 64))
    legends = content.split('<ul class="legend">')[1:]
    assert len(legends) == 2
    for legend in legends:
        items = legend.partition("</ul>")[0]
        assert items.count("<li>") == 6
        assert "FastFit" not in items


def test_a_model_name_may_be_broken_after_its_punctuation_only_and_is_escaped():
    assert str(breakable("builtin:mini")) == "builtin:<wbr>mini<wbr>"
    assert str(breakable("models/<b>")) == "models/<wbr>&lt;b&gt;<wbr>"
    assert str(breakable("")) == ""
