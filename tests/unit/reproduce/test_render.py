"""Tables and figures from made-up results: our value, the paper's and the difference in every cell."""

import re
import zlib

import pytest

from clozify.reproduce.catalog import TABLES, build_table
from clozify.reproduce.draw import AXES, LINES, draw, line_style
from clozify.reproduce.experiments import ExperimentResult
from clozify.reproduce.render import format_cell, html, markdown, to_json
from clozify.reproduce.results import fill_table
from clozify.reproduce.run import write_table


def made_up(cell):
    """A result for any cell, the same one every time."""
    base = 0.5 + zlib.crc32(str(cell).encode()) % 1000 / 4000
    numbers = dict.fromkeys(("classifier", "ensemble", "min", "max", "avg"), (base, 0.004))
    return ExperimentResult(
        numbers=dict.fromkeys(("test", "m", "mm", "de", "fr", "it"), numbers),
        generations={test_set: {str(n): base + n / 20 for n in range(5)} for test_set in ("test", "m")},
        words={label: ["one", "two", "three", "four", "five", "six"] for label in "12345"},
    )


def nothing(cell):
    return None


@pytest.mark.parametrize("what", TABLES)
def test_every_table_and_figure_is_whole_with_and_without_results(what, tmp_path):
    for find in (made_up, nothing):
        filled = fill_table(build_table(what), find, {}, ("Model: x.",))
        files = {path.suffix: path for path in write_table(filled, tmp_path)}
        text, page = files[".md"].read_text(), files[".html"].read_text()
        assert ("not run" in text) == (find is nothing)
        assert len(filled.cells) == len(filled.spec.rows)
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in tables}) == 1
        assert page.count("<tr>") == len(filled.spec.rows) + 1
        assert (".png" in files) == what.startswith("figure")
        if what.startswith("figure"):
            assert files[".png"].read_bytes().startswith(b"\x89PNG")
            assert "<svg" in page
        assert not list(tmp_path.glob(".*"))


def test_a_cell_shows_our_value_then_the_paper_s_value_and_the_difference():
    filled = fill_table(build_table("table1"), made_up, {})
    row = [row.name for row in filled.spec.rows].index("unsupervised (avg)")
    cell = filled.cells[row][0]
    assert format_cell(cell) == f"{cell.value.mean:.1f} ±0.4 (33.8 ±9.6; {cell.value.mean - 33.8:+.1f})"
    assert "| \\|T\\| = 10 | PET | not run (52.9 ±0.1) |" in markdown(fill_table(build_table("table1"), nothing, {}))


def test_a_difference_of_two_cells_is_the_first_less_the_second():
    """With the sign the wrong way round the auxiliary task would seem to harm."""

    def find(cell):
        share = 0.75 if "language_modeling=true" in cell.settings else 0.5
        return ExperimentResult(numbers={test_set: {"classifier": (share, 0.0)} for test_set in ("test", "m")})

    cells = fill_table(build_table("figure3"), find, {}).cells
    assert {cell.value.mean for row in cells for cell in row} == {25.0}


def test_values_that_are_only_quoted_or_not_in_the_text_are_not_compared():
    table3 = to_json(fill_table(build_table("table3"), made_up, {}))["cells"]
    assert [p["value"] for p in table3 if p["row"] == "sup. (*)"] == [None] * 3
    assert [p["paper_value"] for p in table3 if p["row"] == "sup. (*)"] == [76.8, 76.7, 70.2]
    solid = [p for p in to_json(fill_table(build_table("figure4"), made_up, {}))["cells"] if "skipping" not in p["row"]]
    assert all(p["paper_value"] is None and p["difference"] is None for p in solid)


def test_another_training_set_size_has_no_value_of_the_paper_s():
    """Table 4 is for 10 examples; its values beside a run with 50 would be compared with the wrong thing."""
    assert all(
        p["paper_value"] is None for p in to_json(fill_table(build_table("table4", None, ["50"]), nothing, {}))["cells"]
    )
    rows = build_table("table1", None, ["20"]).rows
    assert [row.name for row in rows if row.group == "|T| = 20"] == ["supervised", "PET", "iPET"]


def test_only_what_is_asked_for_is_run():
    options = build_table("table1", ["agnews"], ["10"], ["pet", "ipet"]).requested_experiments()
    assert [(cell.task, cell.examples, cell.method) for cell in options] == [
        ("agnews", 10, "pet"),
        ("agnews", 10, "ipet"),
    ]
    assert len(build_table("figure6").requested_experiments()) == 30
    assert len(build_table("table1").requested_experiments()) == 4 * 13  # lines 1 and 2 are one cell
    assert {cell.unlabeled_fraction for cell in build_table("table2").requested_experiments()} == {0.5}


def test_the_same_numbers_make_the_same_drawing():
    filled = fill_table(build_table("figure5"), made_up, {})
    assert draw(filled)[0] == draw(filled)[0]


def test_every_line_of_every_figure_has_itsline_style():
    for what in AXES:
        for row in build_table(what, ["sample"]).rows:
            style, variant = line_style(row.name)
            assert variant == ("PT" in row.name or "skipping" in row.name)
            assert style["marker"] in {mark for _, mark, _ in LINES.values()}


def test_a_page_needs_nothing_from_elsewhere_and_suits_light_and_dark():
    page = html(fill_table(build_table("table1"), made_up, {}))
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"""(src|href)=["']""", page)
