"""Tables and figures from made-up results: ours, the paper's value and the difference in every place."""

import re
import zlib

import pytest

from clozify.reproduce.draw import AXES, LINES, _look, draw
from clozify.reproduce.exhibits import EXHIBITS, exhibit
from clozify.reproduce.render import html, markdown, plain, shown
from clozify.reproduce.results import fill
from clozify.reproduce.run import write


def made_up(cell):
    """A result for any cell, the same one every time."""
    base = 0.5 + zlib.crc32(str(cell).encode()) % 1000 / 4000
    numbers = {measure: [base, 0.004] for measure in ("classifier", "ensemble", "min", "max", "avg")}
    return {
        "numbers": dict.fromkeys(("test", "m", "mm", "de", "fr", "it"), numbers),
        "generations": {part: {str(n): base + n / 20 for n in range(5)} for part in ("test", "m")},
        "words": {label: ["one", "two", "three", "four", "five", "six"] for label in "12345"},
        "lacking": {},
    }


def nothing(cell):
    return None


@pytest.mark.parametrize("what", EXHIBITS)
def test_every_table_and_figure_is_whole_with_and_without_results(what, tmp_path):
    for find in (made_up, nothing):
        filled = fill(exhibit(what), find, {}, ("Model: x.",))
        files = {path.suffix: path for path in write(filled, tmp_path)}
        text, page = files[".md"].read_text(), files[".html"].read_text()
        assert ("not run" in text) == (find is nothing)
        assert len(filled.places) == len(filled.exhibit.rows)
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in tables}) == 1
        assert page.count("<tr>") == len(filled.exhibit.rows) + 1
        assert (".png" in files) == what.startswith("figure")
        if what.startswith("figure"):
            assert files[".png"].read_bytes().startswith(b"\x89PNG")
            assert "<svg" in page
        assert not list(tmp_path.glob(".*"))


def test_a_place_shows_ours_then_the_paper_s_value_and_the_difference():
    filled = fill(exhibit("table1"), made_up, {})
    row = [row.name for row in filled.exhibit.rows].index("unsupervised (avg)")
    place = filled.places[row][0]
    assert shown(place) == f"{place.ours.mean:.1f} ±0.4 (33.8 ±9.6; {place.ours.mean - 33.8:+.1f})"
    assert "| \\|T\\| = 10 | PET | not run (52.9 ±0.1) |" in markdown(fill(exhibit("table1"), nothing, {}))


def test_a_difference_of_two_cells_is_the_first_less_the_second():
    """With the sign the wrong way round the auxiliary task would seem to harm."""

    def find(cell):
        share = 0.75 if "language_modeling=true" in cell.settings else 0.5
        return {"numbers": {part: {"classifier": [share, 0.0]} for part in ("test", "m")}, "lacking": {}}

    places = fill(exhibit("figure3"), find, {}).places
    assert {place.ours.mean for row in places for place in row} == {25.0}


def test_values_that_are_only_quoted_or_not_in_the_text_are_not_compared():
    table3 = plain(fill(exhibit("table3"), made_up, {}))["places"]
    assert [p["value"] for p in table3 if p["row"] == "sup. (*)"] == [None] * 3
    assert [p["paper_value"] for p in table3 if p["row"] == "sup. (*)"] == [76.8, 76.7, 70.2]
    solid = [p for p in plain(fill(exhibit("figure4"), made_up, {}))["places"] if "skipping" not in p["row"]]
    assert all(p["paper_value"] is None and p["difference"] is None for p in solid)


def test_another_training_set_size_has_no_value_of_the_paper_s():
    """Table 4 is for 10 examples; its values beside a run with 50 would be compared with the wrong thing."""
    assert all(p["paper_value"] is None for p in plain(fill(exhibit("table4", None, ["50"]), nothing, {}))["places"])
    rows = exhibit("table1", None, ["20"]).rows
    assert [row.name for row in rows if row.group == "|T| = 20"] == ["supervised", "PET", "iPET"]


def test_only_what_is_asked_for_is_run():
    asked = exhibit("table1", ["agnews"], ["10"], ["pet", "ipet"]).asked()
    assert [(cell.task, cell.examples, cell.method) for cell in asked] == [
        ("agnews", 10, "pet"),
        ("agnews", 10, "ipet"),
    ]
    assert len(exhibit("figure6").asked()) == 30
    assert len(exhibit("table1").asked()) == 4 * 13  # lines 1 and 2 are one cell
    assert {cell.share for cell in exhibit("table2").asked()} == {0.5}


def test_the_same_numbers_make_the_same_drawing():
    filled = fill(exhibit("figure5"), made_up, {})
    assert draw(filled)[0] == draw(filled)[0]


def test_every_line_of_every_figure_has_its_look():
    for what in AXES:
        for row in exhibit(what, ["sample"]).rows:
            look, variant = _look(row.name)
            assert variant == ("PT" in row.name or "skipping" in row.name)
            assert look["marker"] in {mark for _, mark, _ in LINES.values()}


def test_a_page_needs_nothing_from_elsewhere_and_suits_light_and_dark():
    page = html(fill(exhibit("table1"), made_up, {}))
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"""(src|href)=["']""", page)
