import gzip
import json
import pickle

import numpy as np
import pandas as pd
import pytest

from clozify.config.task import load_task, parse_task
from clozify.data.few_shot import few_shot, reselect
from clozify.data.rows import NO_LABEL, Rows, read_rows
from clozify.errors import DataError, TaskError

ROWS = [("1", 'He said "no", twice'), ("3", "tabs\tand ünïcode 日本"), ("2", "NA"), ("1", "")]


def write(path, rows=ROWS, columns=("label", "text")):
    frame = pd.DataFrame(rows, columns=list(columns))
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[1]
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    elif kind == "jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in frame.to_dict("records"))
        (gzip.open if path.name.endswith(".gz") else open)(path, "wt", encoding="utf-8").write(text)
    return path


@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz", "d.jsonl", "d.jsonl.gz", "d.parquet"])
def test_every_format_gives_the_same_rows(name, tmp_path, stars):
    rows = read_rows(write(tmp_path / name), stars)
    assert rows.texts("text") == ['He said "no", twice', "tabs\tand ünïcode 日本", "NA", ""]
    assert rows.labels.tolist() == [0, 2, 1, 0]
    assert rows.ids() == [0, 1, 2, 3]


def test_a_quotation_mark_in_a_tsv_file_swallows_no_lines(tmp_path, stars):
    """With CSV's quoting, a lone quotation mark would join the rows up to the next one."""
    (tmp_path / "d.tsv").write_text('label\ttext\n1\t"so he said\n2\tokay\n')
    assert read_rows(tmp_path / "d.tsv", stars).texts("text") == ['"so he said', "okay"]


def test_a_folder_of_shards_is_read_in_the_order_of_names(tmp_path, stars):
    write(tmp_path / "b.jsonl", [("2", "second")])
    write(tmp_path / "a.jsonl", [("1", "first")])
    assert read_rows(tmp_path, stars).texts("text") == ["first", "second"]


def test_a_file_without_a_header_takes_the_columns_of_the_task(tmp_path):
    task = load_task("agnews")
    (tmp_path / "d.csv").write_text('"3","A title","line one\\line two"\n')
    rows = read_rows(tmp_path / "d.csv", task)
    assert rows.texts("description") == ["line one line two"]
    assert rows.labels.tolist() == [2]


def test_a_file_with_a_header_keeps_it_although_the_task_names_columns(tmp_path):
    (tmp_path / "d.csv").write_text("description,title,label\nbody,head,3\n")
    rows = read_rows(tmp_path / "d.csv", load_task("agnews"))
    assert (rows.texts("title"), rows.labels.tolist()) == (["head"], [2])


def test_null_fields_and_line_breaks_become_plain_text(tmp_path, stars):
    (tmp_path / "d.jsonl").write_text('{"text": null}\n{"text": " a \\r\\n b\\n"}\n{"text": 7}\n')
    assert read_rows(tmp_path / "d.jsonl", stars).texts("text") == ["", "a b", "7"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["entailment", "neutral", "contradiction"], [0, 1, 2]),
        ([0, 1, 2], [0, 1, 2]),
        ([0, 2, -1], [0, 2, NO_LABEL]),
        (["neutral", "-", None], [1, NO_LABEL, NO_LABEL]),
        ([0.0, 1.0, None], [0, 1, NO_LABEL]),
    ],
)
def test_labels_are_known_by_any_of_their_names(values, expected, tmp_path):
    rows = [(value, "p", "h") for value in values]
    path = write(tmp_path / "d.parquet", rows, ("label", "premise", "hypothesis"))
    assert read_rows(path, load_task("mnli")).labels.tolist() == expected


def test_yahoo_numbers_are_read_from_zero_or_from_one_as_the_data_has_them(tmp_path):
    """Taken one value at a time, '1' would be Society in one file and Science in the other, and nobody would know."""
    task = load_task("yahoo")
    for first in (0, 1):
        rows = [(first + n, "q", "a") for n in range(10)]
        path = write(tmp_path / f"from{first}.csv", rows, ("label", "question_title", "best_answer"))
        assert read_rows(path, task).labels.tolist() == list(range(10))


def test_numbers_that_fit_two_namings_are_taken_as_the_task_writes_them_with_a_warning(tmp_path):
    path = write(tmp_path / "d.csv", [("1", "t", "d"), ("2", "t", "d")], ("label", "title", "description"))
    rows = read_rows(path, load_task("agnews"))
    assert rows.labels.tolist() == [0, 1]
    assert "as well as" in rows.warnings[0]


def test_an_unknown_label_is_named_with_the_known_ones(tmp_path, stars):
    with pytest.raises(DataError, match="the label '9'.*its labels are '1', '2' and '3'"):
        _ = read_rows(write(tmp_path / "d.csv", [("9", "x")]), stars).labels


def test_a_missing_column_is_named_with_the_columns_there_are(tmp_path, stars):
    with pytest.raises(DataError, match=r"lacks the column 'text' \(did you mean 'txt'\?\).*'label' and 'txt'"):
        read_rows(write(tmp_path / "d.csv", columns=("label", "txt")), stars)


def test_a_task_is_also_a_name_or_the_entries_of_a_task_file(tmp_path, stars):
    path = write(tmp_path / "d.csv", [("Sports", "a match"), ("World", "an election")], ["label", "text"])
    entries = {"fields": ["text"], "patterns": ["{mask}: {text}"], "labels": {"Sports": "sports", "World": "world"}}
    assert read_rows(path, entries).labels.tolist() == [0, 1]
    assert read_rows(path, "agnews", {"title": "text", "description": "text"}).texts("title") == [
        "a match",
        "an election",
    ]
    with pytest.raises(TaskError, match="did you mean 'agnews'"):
        read_rows(path, "agnew")


def test_a_field_may_be_mapped_to_another_column(tmp_path, stars):
    path = write(tmp_path / "d.csv", columns=("stars", "review"))
    rows = read_rows(path, stars, {"text": "review", "label": "stars"})
    assert rows.labels.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("d.csv", b"", "is empty"),
        ("d.csv", b"label,text\n", "has no rows"),
        ("d.csv", b"label,text\n1,caf\xe9\n", "line 2 holds the byte 0xe9"),
        ("d.jsonl", b'{"label": 1, "text": "caf\xe9"}\n', "line 1 holds the byte 0xe9"),
        ("d.jsonl", b'{"label": 1, "text": "x"}\n{"label": 2,\n', "cannot be read"),
        ("d.csv", b"label,text\n1,a,b,c\n", "cannot be read"),
        ("d.csv", b"text,text\n1,2\n", "'text' twice"),
        ("d.txt", b"hello", "in no supported format"),
        ("d.csv.gz", b"label,text\n1,x\n", "not a complete gzip file"),
        ("d.parquet", b"no parquet", "cannot be read"),
        ("d.csv", b"label,text\n1,caf\xc3", "ends in the middle of a character"),
        ("d.csv.gz", gzip.compress(b"label,text\n1,x\n", mtime=0)[:-9] + b"\0" * 9, "not a complete gzip file"),
        ("d.jsonl", b'{"text": "x"}\nnot json\n', "line 2 is not JSON"),
        ("d.jsonl", b'{"text": "x"}\n[1]\n', "cannot be read"),
    ],
)
def test_a_bad_file_is_one_sentence(name, content, part, tmp_path, stars):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        read_rows(tmp_path / name, stars)
    (problem,) = error.value.problems
    assert part in problem
    assert name in problem


def test_a_missing_file_suggests_its_neighbour(tmp_path, stars):
    write(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"does not exist \(did you mean '.*train\.csv'\?\)"):
        read_rows(tmp_path / "trian.csv", stars)


def test_a_hub_name_without_a_network_says_what_to_do(stars):
    with pytest.raises(DataError, match="could not be fetched from the hub.*give a local file"):
        read_rows("nobody/nothing@test", stars)


def test_a_hub_name_needs_its_split(stars):
    with pytest.raises(DataError, match="name its split"):
        read_rows("nobody/nothing", stars)


def labelled(tmp_path, counts, labels="abcd"):
    task = parse_task(
        'name = "t"\nfields = ["text"]\npatterns = ["{mask} {text}"]\n[labels]\n'
        + "".join(f'{label} = "{label}{label}"\n' for label in labels)
    )
    rows = [
        (label, f"{label} {n}") for n in range(max(counts)) for label, c in zip(labels, counts, strict=True) if n < c
    ]
    return read_rows(write(tmp_path / "d.csv", rows), task)


def test_ten_examples_over_four_labels_are_three_three_two_two_in_the_order_of_the_file(tmp_path):
    chosen = few_shot(labelled(tmp_path, [5, 5, 5, 5]), 10)
    assert np.bincount(chosen.labels).tolist() == [3, 3, 2, 2]
    assert chosen.texts("text")[:4] == ["a 0", "b 0", "c 0", "d 0"]
    assert chosen.ids() == sorted(chosen.ids())


def test_a_seed_draws_other_rows_and_the_same_ones_again(tmp_path):
    rows = labelled(tmp_path, [50, 50, 50, 50])
    first, again, other = few_shot(rows, 12, seed=1), few_shot(rows, 12, seed=1), few_shot(rows, 12, seed=2)
    assert first.ids() == again.ids() != other.ids()
    assert np.bincount(first.labels).tolist() == [3, 3, 3, 3]


def test_of_a_label_with_too_few_rows_all_are_taken_and_a_warning_counts_them(tmp_path):
    rows = labelled(tmp_path, [5, 5, 5, 1])
    chosen = few_shot(rows, 10)
    assert np.bincount(chosen.labels).tolist() == [3, 3, 2, 1]
    assert "1 of 4 labels have fewer rows" in chosen.warnings[-1]
    assert "'d (1 of 2)'" in chosen.warnings[-1]
    assert "9 rows in all" in chosen.warnings[-1]
    assert not rows.warnings
    assert not few_shot(rows, 4).warnings


def test_fewer_examples_than_labels_leave_labels_without_any_and_a_warning_says_so(tmp_path):
    chosen = few_shot(labelled(tmp_path, [5, 5, 5, 5]), 3)
    assert np.bincount(chosen.labels, minlength=4).tolist() == [1, 1, 1, 0]
    assert "--examples 4" in chosen.warnings[-1]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("examples", [2, 4, 9, 10, 17, 60])
def test_a_selection_is_recognised_by_its_number_of_rows(tmp_path, examples, seed):
    """A report reads T again from its file, and knows only how many rows it had."""
    rows = labelled(tmp_path, [5, 9, 2, 1])
    chosen = few_shot(rows, examples, seed)
    assert reselect(rows, len(chosen), seed).ids() == chosen.ids()


def test_the_unlabelled_set_never_holds_a_labelled_row(tmp_path):
    """D that holds T or the test set would make every measured accuracy too good."""
    rows = labelled(tmp_path, [5, 5, 5, 5])
    chosen = few_shot(rows, 8)
    left = rows.excluding(chosen)
    assert len(left) == 12
    assert not set(left.texts("text")) & set(chosen.texts("text"))
    assert left.ids() == [n for n in range(20) if n not in chosen.ids()]


def test_ids_of_the_task_column_are_kept_through_selection(tmp_path):
    task = parse_task(
        'name = "t"\nid = "uid"\nfields = ["text"]\npatterns = ["{mask} {text}"]\n[labels]\na = "aa"\nb = "bb"\n'
    )
    rows = read_rows(
        write(tmp_path / "d.csv", [("x7", "a", "one"), ("x9", "b", "two")], ("uid", "label", "text")), task
    )
    assert rows.select([1]).ids() == ["x9"]


def test_a_label_column_of_lists_is_an_error(tmp_path, stars):
    pd.DataFrame({"label": [["1"]], "text": ["x"]}).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(DataError, match="a label is text or a number"):
        _ = read_rows(tmp_path / "d.parquet", stars).labels
    (tmp_path / "d.jsonl").write_text('{"label": ["1"], "text": "x"}\n')
    with pytest.raises(DataError, match="which the task does not know"):
        _ = read_rows(tmp_path / "d.jsonl", stars).labels


@pytest.mark.parametrize("name", ["a [1].csv", "a*.csv", "b {x}, y.csv"])
def test_a_file_s_name_is_a_name_and_no_search(name, tmp_path, stars):
    """Taken as a search, `a*.csv` would read its neighbours too, and nobody would know."""
    write(tmp_path / "ab.csv", [("1", "neighbour")])
    assert read_rows(write(tmp_path / name, [("1", "own")]), stars).texts("text") == ["own"]


def test_a_subset_reads_its_labels_as_the_whole_file_does(tmp_path):
    """Hub numbers 1 to 3 without the 0 look like the task's own 1 to 3, which are other labels."""
    rows = [(str(n), f"t{n}", "d") for n in range(4)]
    whole = read_rows(write(tmp_path / "d.csv", rows, ("label", "title", "description")), load_task("agnews"))
    assert whole.select([1, 2, 3]).select([1, 2]).labels.tolist() == [2, 3]


def test_the_index_column_that_pandas_writes_is_no_obstacle(tmp_path, stars):
    pd.DataFrame(ROWS, columns=["label", "text"]).to_csv(tmp_path / "d.csv")
    assert read_rows(tmp_path / "d.csv", stars).labels.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize("name", ["label", "text"])
def test_a_column_named_on_purpose_must_exist(name, tmp_path, stars):
    """Taken as unlabelled data, a misspelt label column would make the accuracy vanish without a word."""
    with pytest.raises(DataError, match="lacks the column 'nope'"):
        read_rows(write(tmp_path / "d.csv"), stars, {name: "nope"})


def test_rows_may_have_other_keys_and_types_than_the_first_ones(tmp_path, stars):
    """The fast reader settles the columns on the first block and fails on what comes behind it."""
    filler = [{"text": f"row {n} " + "x" * 500, "label": 1, "more": None} for n in range(25_000)]
    rows = [*filler, {"text": "late", "label": "2", "more": [1], "new": {"a": 1}}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = read_rows(tmp_path / "d.jsonl", stars)
    assert result.texts("text", 25_000) == ["late"]
    assert result.labels[[0, -1]].tolist() == [0, 1]


def test_whole_numbers_written_with_a_point_are_whole_numbers(tmp_path, stars):
    assert read_rows(write(tmp_path / "d.csv", [("1.0", "x"), ("3.0", "y")]), stars).labels.tolist() == [0, 2]


def test_a_negative_number_of_examples_is_an_error(tmp_path):
    with pytest.raises(DataError, match="-3 examples"):
        few_shot(labelled(tmp_path, [5, 5, 5, 5]), -3)


def many(tmp_path, stars, count=60):
    return read_rows(write(tmp_path / "many.csv", [(str(1 + n % 3), f"text {n}") for n in range(count)]), stars)


@pytest.mark.parametrize("chosen", [[3, 4, 5, 7, 8], [0, 59], [9, 2, 2, 30], list(range(59, 0, -1)), [7], []])
def test_selected_rows_are_read_alike_whether_they_lie_together_or_apart(chosen, tmp_path, stars):
    rows = many(tmp_path, stars).select(chosen)
    assert len(rows) == len(chosen)
    assert rows.texts("text") == [f"text {n}" for n in chosen]
    assert rows.texts("text", 1, 3) == [f"text {n}" for n in chosen[1:3]]
    assert rows.ids() == chosen
    assert rows.labels.tolist() == [n % 3 for n in chosen]
    if len(chosen) > 1:
        assert rows.select([1, 0]).texts("text") == [f"text {chosen[1]}", f"text {chosen[0]}"]


def test_a_row_that_is_not_there_cannot_be_selected(tmp_path, stars):
    """A negative number would quietly mean a row at the end."""
    for wrong in ([60], [-1]):
        with pytest.raises(IndexError, match="There are 60 rows"):
            many(tmp_path, stars).select(wrong)


def test_the_hash_of_all_texts_is_that_of_their_fingerprints_whatever_the_stretches(tmp_path, stars, monkeypatch):
    """Another hash would train every member of every existing run again."""
    from clozify.data import rows as data
    from clozify.runs.keys import hash_key

    rows = many(tmp_path, stars)
    expected = hash_key(texts=rows.fingerprints().tolist())
    monkeypatch.setattr(data, "CHUNK_ROWS", 7)
    monkeypatch.setattr(data.Rows.chunks, "__defaults__", (7, 0, None))
    assert rows.digest == expected
    assert rows.select([]).digest == hash_key(texts=[])
    assert rows.select([1, 2]).digest == hash_key(texts=rows.fingerprints(1, 3).tolist()) != expected


def test_rows_are_taken_out_of_unlabelled_data_in_stretches_too(tmp_path, stars, monkeypatch):
    from clozify.data import rows as data

    rows = many(tmp_path, stars)
    monkeypatch.setattr(data.Rows.chunks, "__defaults__", (7, 0, None))
    left = rows.excluding(rows.select([0, 6, 7, 59]), rows.select([8]))
    assert left.ids() == [n for n in range(60) if n not in (0, 6, 7, 8, 59)]
    assert rows.excluding(rows.select([])) is rows
    assert len(rows.excluding(rows)) == 0


def test_rows_are_sent_to_another_machine_with_their_text_ids_and_labels(tmp_path, stars):
    """A path to this machine's cache is of no use on another one."""
    rows = read_rows(write(tmp_path / "d.csv"), stars).select([1, 3, 2])
    assert rows.labels.tolist() == [2, 0, 1]
    pickled = pickle.dumps(rows.in_memory_state())
    assert b".arrow" not in pickled
    received = Rows.from_state(pickle.loads(pickled))
    assert received.texts("text") == rows.texts("text")
    assert received.ids() == rows.ids() == [1, 3, 2]
    assert received.labels.tolist() == rows.labels.tolist()
    assert received.digest == rows.digest
    assert received.select([1]).ids() == [3]


def test_the_texts_of_a_file_are_hashed_once_for_exclusion_and_digests(tmp_path, stars, monkeypatch):
    """A file of millions of rows is read for minutes: every pass over it that can be spared counts."""
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"row {n},1\n" for n in range(9)))
    rows, reads = read_rows(tmp_path / "a.csv", stars), []
    texts = Rows.texts
    monkeypatch.setattr(Rows, "texts", lambda self, *args: reads.append(args) or texts(self, *args))
    fresh = read_rows(tmp_path / "a.csv", stars).select(np.arange(2, 9)).digest
    reads.clear()
    kept = rows.excluding(rows.select([0, 1]))
    assert (kept.row_numbers().tolist(), kept.digest) == (list(range(2, 9)), fresh)
    assert rows.digest != kept.digest
    assert len(reads) == 1
    other = kept.with_task(stars.with_changes(line_breaks=["row"]))
    assert other.digest != kept.digest
