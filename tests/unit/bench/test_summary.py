"""Tables and pages of results that were made up."""

import json
import statistics

import pytest

from clozify.bench.entries import Block
from clozify.bench.published import published_tables
from clozify.bench.render import markdown
from clozify.bench.results import FORMAT, read_results, read_run
from clozify.bench.summary import summarize
from clozify.bench.variants import short_names
from clozify.bench.write import write_bench
from clozify.errors import RunError
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


def test_models_with_the_same_last_part_are_columns_of_their_own(tmp_path):
    accuracies = {"/m1/enc": 0.2, "/m2/enc": 0.8, "org/other": 0.5}
    options = {name: {"options": (("setfit-encoder", name),)} for name in accuracies}
    write(
        tmp_path,
        [
            result(spec(method="setfit", model=name, draw=draw, **options[name]), value, key=f"{name[1:3]}-{draw}")
            for name, value in accuracies.items()
            for draw in (0, 1)
        ],
    )
    summary = summarize(read_results(tmp_path), tmp_path, [])
    assert summary.names == ["SetFit (m1/enc)", "SetFit (m2/enc)", "SetFit (org/other)"]
    for name, accuracy in zip(summary.names, accuracies.values(), strict=True):
        assert summary.entry(Block("sample", 8), name).accuracy.mean == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a/encoder", "b/encoder"], ["a/encoder", "b/encoder"]),
        (["/x/a/v1/enc", "/x/b/v1/enc", "builtin"], ["a/v1/enc", "b/v1/enc", "builtin"]),
        (["/org/x", "org/x"], ["/org/x", "org/x"]),
        (["org/x", "org/y/"], ["x", "y"]),
        ([""], [""]),
    ],
)
def test_short_names_are_as_long_as_it_takes_to_tell_them_apart(names, short):
    assert list(short_names(names).values()) == short


def test_the_page_names_every_version_that_cells_ran_with(tmp_path):
    cells = [result(spec(method="setfit", draw=draw)) for draw in (0, 1)]
    measured = [cell.measured.model_copy(update={"versions": {"setfit": f"1.{cell.spec.draw}"}}) for cell in cells]
    write(tmp_path, [cell.model_copy(update={"measured": one}) for cell, one in zip(cells, measured, strict=True)])
    summary = summarize(read_results(tmp_path), tmp_path, [])
    assert summary.methods[0].versions == {"setfit": "1.0 and 1.1"}


def test_times_of_several_machines_are_remarked_on(tmp_path):
    cells = [result(spec(method=method), machine=f"machine {method}") for method in ("tfidf", "pet")]
    write(tmp_path, [*cells, result(spec(method="setfit"), None, machine="another")])  # it failed and has no time
    summary = summarize(read_results(tmp_path), tmp_path, [])
    page, text, content = (path.read_text() for path in write_bench(summary, tmp_path))
    for shown in (page, text):
        assert "Cells ran on 2 machines (machine pet; machine tfidf)" in shown
    assert {one["machine"] for entry in json.loads(content)["entries"] for one in entry["results"]} == {
        "machine tfidf",
        "machine pet",
    }


def test_times_over_all_data_sets_are_of_the_draws_that_all_methods_have(tmp_path):
    fast = result(spec()).measured
    slow = fast.model_copy(update={"training_seconds": 9_000.0, "prediction_seconds": 9_000.0})
    of_draw = {0: fast, 1: slow}
    pet = [result(spec(draw=draw), measured=measured) for draw, measured in of_draw.items()]
    write(tmp_path, [*pet, result(spec(method="tfidf"))])
    (point,) = (one for one in summarize(read_results(tmp_path), tmp_path, []).points if one.name == "PET")
    assert point.training_seconds == pytest.approx(fast.training_seconds)
    assert point.rows_per_second == pytest.approx(1_000 / fast.prediction_seconds)


def test_mean_ranks_are_shown_for_each_number_of_rows(tmp_path):
    values = {("pet", 8): 0.8, ("pet", 64): 0.5, ("tfidf", 8): 0.4, ("tfidf", 64): 0.9}
    write(tmp_path, [result(spec(method=method, per_label=size), value) for (method, size), value in values.items()])
    summary = summarize(read_results(tmp_path), tmp_path, [])
    assert {point.name: point.rank_by_size for point in summary.points} == {
        "TF-IDF": {8: 2.0, 64: 1.0},
        "PET": {8: 1.0, 64: 2.0},
    }
    assert "| mean rank | at 8 a label | at 64 a label |" in markdown(summary)
    assert "at 64 a label" in write_bench(summary, tmp_path)[0].read_text()


def test_unlabelled_rows_are_not_counted_where_no_method_uses_them(tmp_path):
    write(tmp_path, [result(spec(method="tfidf"), unlabeled_rows=0)])
    rows = summarize(read_results(tmp_path), tmp_path, []).rows[0]
    assert rows.unlabeled is None
    assert rows.text == "112 labelled rows."


def test_a_success_replaces_an_earlier_failure(tmp_path):
    cell = spec()
    write(tmp_path, [result(cell, None, key="k"), result(cell, 0.5, key="k")])
    assert [one.accuracy for one in read_results(tmp_path)] == [0.5]


def test_cells_that_a_later_command_replaced_are_not_counted_as_further_draws(tmp_path):
    cells = [spec(draw=draw) for draw in (0, 1)]
    old = [result(cell, 0.5, key=f"old-{cell.draw}") for cell in cells]
    new = [result(cell, 0.7, key=f"new-{cell.draw}") for cell in cells]
    failed = result(spec(draw=1, method="tfidf"), None, key="old-tfidf")
    write(tmp_path, [*old, *new, failed])
    current = {cell.slot: f"new-{cell.draw}" for cell in cells} | {failed.spec.slot: "new-tfidf"}
    run = {"kind": "bench", "format": FORMAT, "commands": [], "cells": current}
    (tmp_path / "run.json").write_text(json.dumps(run))
    summary = summarize(read_results(tmp_path), tmp_path, [])
    assert summary.entry(Block("sample", 8), "PET").accuracy.draws == 2
    assert summary.entry(Block("sample", 8), "PET").accuracy.mean == pytest.approx(0.7)
    assert not summary.failures


def test_methods_are_ranked_on_the_draws_that_all_of_them_have(tmp_path):
    accuracies = {"pet": [0.6, 0.8], "tfidf": [0.7, None], "fastfit": [None, None]}
    write(
        tmp_path,
        [
            result(spec(method=method, draw=draw), value)
            for method, values in accuracies.items()
            for draw, value in enumerate(values)
        ],
    )
    summary = summarize(read_results(tmp_path), tmp_path, [])
    pet, tfidf = (summary.entry(Block("sample", 8), name) for name in ("PET", "TF-IDF"))
    assert (pet.accuracy.mean, pet.common.accuracy) == (pytest.approx(0.7), pytest.approx(0.6))
    assert (pet.is_best, tfidf.is_best) == (False, True)
    assert (pet.draws_note, tfidf.draws_note) == ("", "1 of 2 draws")
    assert {point.name: point.rank.mean for point in summary.points} == {"TF-IDF": 1.0, "PET": 2.0}
    assert "1 of 2 draws" in markdown(summary)


def test_a_method_without_results_is_no_reference(tmp_path):
    write(tmp_path, [result(spec(method="pet"), None), result(spec(method="supervised")), result(spec(method="tfidf"))])
    assert summarize(read_results(tmp_path), tmp_path, []).reference == "supervised"


def test_the_json_has_every_draw_and_the_deviation(made):
    content = json.loads(write_bench(*made)[2].read_text())
    entry = next(entry for entry in content["entries"] if (entry["name"], entry["block"]["data"]) == ("PET", "agnews"))
    accuracies = [one["accuracy"] for one in entry["results"]]
    assert len(accuracies) == 3
    assert entry["accuracy"]["deviation"] == pytest.approx(statistics.stdev(accuracies))
    assert content["rows"][0]["unlabeled"] == 600


def test_methods_say_whether_there_were_unlabelled_rows(tmp_path):
    cells = [result(spec(method=method), unlabeled_rows=0) for method in ("pet", "tfidf")]
    write(tmp_path, cells)
    summary = summarize(read_results(tmp_path), tmp_path, [])
    assert [method.unlabeled for method in summary.methods] == ["not used", "there were none"]


def test_damaged_files_end_in_a_sentence(tmp_path):
    write(tmp_path, [result(spec(), key="k")])
    (tmp_path / "cells" / "k" / "result.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        read_results(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json' is damaged"):
        read_run(tmp_path)


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
