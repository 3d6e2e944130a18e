"""Labels are people's work: no file, window or full disk loses one or gives it to another text."""

import errno
import json
import threading
from pathlib import Path

import pandas as pd
import pytest

from clozify.errors import ClozifyError
from clozify.studio.draft import TaskDraft
from clozify.studio.project import Project

SURROGATE = b'{"source": null, "labels": [{"texts": {"text": "\\ud800"}, "label": "pos"}]}'
TEXTS = [f"text number {number}" for number in range(10)]


@pytest.fixture
def folder(tmp_path):
    """A folder with `rows.csv`, ten texts without labels."""
    write_rows(tmp_path / "rows.csv", TEXTS)
    return tmp_path


def write_rows(path: Path, texts: list[str], **columns: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame({"text": texts, **columns}).to_csv(path, index=False)
    return path


@pytest.fixture
def opened(folder):
    """A function that opens the project; those left open are closed with the test."""
    projects = []

    def open_project(source: Path | None = None) -> Project:
        project = Project(folder / "project")
        projects.append(project)
        project.draft = TaskDraft("stars", ["text"], "label", ["{mask} {text}"], [("neg", "bad"), ("pos", "great")])
        if source is not None:
            project.load(str(source))
        return project

    yield open_project
    for project in projects:
        project.close()


def labels_by_text(project: Project) -> dict[str, str]:
    """The labels that count, by text."""
    names, indices = project.draft.labels, project.data.label_indices(project.draft).tolist()
    texts = project.data.texts(project.draft, list(range(len(project.data))))
    return {text: names[index] for text, index in zip(texts, indices, strict=True) if index >= 0}


def labeled_csv(project: Project) -> dict[str, str]:
    frame = pd.read_csv(project.folder / "labeled.csv", dtype=str)
    return dict(zip(frame["text"], frame["label"], strict=True))


def test_an_upload_that_cannot_be_read_leaves_the_file_of_that_name(opened):
    project = opened()
    content = ("text\n" + "\n".join(TEXTS)).encode()
    project.upload("rows.csv", content)
    project.set_label(0, "pos")
    for broken in (b"\xff\xfe garbage", b"", b"text\n"):
        with pytest.raises(ClozifyError, match=r"rows-2\.csv"):
            project.upload("rows.csv", broken)
    assert [path.name for path in (project.folder / "data").iterdir()] == ["rows.csv"]
    assert (project.folder / "data" / "rows.csv").read_bytes() == content
    project.close()
    again = opened()
    assert again.notices == []
    assert labels_by_text(again) == {TEXTS[0]: "pos"}


def test_other_rows_under_the_same_name_get_another_file_and_no_labels(opened):
    project = opened()
    project.upload("my rows.csv", b"text\ngreat film\nbad film\nold film\n")
    project.set_label(0, "pos")
    project.upload("my_rows.csv", b"text\nboring film\ngreat film\n")
    assert labels_by_text(project) == {"great film": "pos"}
    project.upload("my_rows.csv", b"text\nboring film\n")
    assert labels_by_text(project) == {}
    assert project.data.unmatched_labels() == 1
    project.upload("my_rows.csv", b"text\ngreat film\nbad film\nold film\n")
    assert labels_by_text(project) == {"great film": "pos"}
    names = sorted(path.name for path in (project.folder / "data").iterdir())
    assert names == ["my_rows-2.csv", "my_rows-3.csv", "my_rows.csv"]


def test_a_file_that_is_loaded_again_with_other_rows_keeps_labels_with_their_texts(opened, folder):
    project = opened(folder / "rows.csv")
    project.set_label(3, "pos")
    project.set_label(7, "neg")
    write_rows(folder / "rows.csv", ["new", *reversed(TEXTS[2:])])
    project.load(str(folder / "rows.csv"))
    assert labels_by_text(project) == {TEXTS[3]: "pos", TEXTS[7]: "neg"}


def test_labels_of_a_file_that_was_moved_are_kept(opened, folder):
    project = opened(folder / "rows.csv")
    project.set_label(3, "pos")
    project.close()
    (folder / "rows.csv").rename(folder / "moved.csv")
    again = opened()
    assert "rows.csv' does not exist" in again.notices[0]
    assert "labels are kept (1)" in again.notices[0]
    other = write_rows(folder / "other.csv", ["another text", "and one more"])
    again.load(str(other))
    again.set_label(0, "neg")
    again.load(str(folder / "moved.csv"))
    assert labels_by_text(again) == {TEXTS[3]: "pos"}
    again.load(str(other))
    assert labels_by_text(again) == {"another text": "neg"}


def test_a_label_survives_a_disk_that_is_full(opened, folder, monkeypatch):
    project = opened(folder / "rows.csv")
    for row in range(5):
        project.set_label(row, "pos")
    write_text = Path.write_text

    def half(path, text, **options):
        write_text(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(ClozifyError, match=r"studio\.json' could not be written \(No space left on device\)"):
        project.set_label(5, "neg")
    monkeypatch.undo()
    assert len(labels_by_text(project)) == 5  # what is not saved does not count
    project.close()
    again = opened()
    assert labels_by_text(again) == dict.fromkeys(TEXTS[:5], "pos")
    assert not list(again.folder.glob(".*.part"))


@pytest.mark.parametrize(
    "content",
    [b'{"source": "x", "labels": [{"te', b"", b"[]", b"\xff", b'{"source": 1, "labels": []}', b"[" * 10**5, SURROGATE],
)
def test_a_state_that_cannot_be_read_is_kept_and_named_and_labels_come_from_the_csv_file(opened, folder, content):
    project = opened(folder / "rows.csv")
    for row in range(5):
        project.set_label(row, "pos")
    project.close()
    (project.folder / "studio.json").write_bytes(content)
    again = opened()
    assert f"The file '{again.folder / 'studio.json'}', which has the labels, cannot be read" in again.notices[0]
    assert (again.folder / "studio.kept-1.json").read_bytes() == content
    again.load(str(folder / "rows.csv"))
    again.set_label(6, "neg")
    assert labels_by_text(again) == dict.fromkeys(TEXTS[:5], "pos") | {TEXTS[6]: "neg"}
    assert labeled_csv(again) == labels_by_text(again)
    assert len(pd.read_csv(again.folder / "labeled.kept-1.csv")) == 5


def test_files_that_the_studio_did_not_write_are_kept(folder, opened):
    write_rows(folder / "project" / "labeled.csv", ["mine"], label=["pos"], note=["dear to me"])
    write_rows(folder / "project" / "unlabeled.csv", ["mine too"])
    project = opened(folder / "rows.csv")
    project.set_label(0, "pos")
    assert list(pd.read_csv(project.folder / "labeled.kept-1.csv")["note"]) == ["dear to me"]
    assert (project.folder / "unlabeled.kept-1.csv").is_file()
    with pytest.raises(ClozifyError, match="The studio itself writes"):
        project.load(str(project.folder / "labeled.csv"))
    project.close()
    assert opened().notices == []
    assert not (project.folder / "labeled.kept-2.csv").exists()


@pytest.mark.parametrize("with_task", [True, False])
def test_labels_are_taken_over_from_a_file_with_more_columns_than_the_fields(folder, opened, with_task):
    write_rows(folder / "project" / "labeled.csv", TEXTS[:2], label=["pos", "neg"], note=["7", "8"])
    if with_task:
        (folder / "project" / "task.toml").write_text(HAND_WRITTEN)
    project = Project(folder / "project")
    assert "2 labels were taken over from 'labeled.csv'." in project.notices
    project.load(str(folder / "rows.csv"))
    assert project.data.labels == {0: "pos", 1: "neg"}
    project.close()
    assert labels_by_text(opened()) == {TEXTS[0]: "pos", TEXTS[1]: "neg"}


def test_a_task_file_that_cannot_be_read_is_kept(folder, opened):
    (folder / "project").mkdir()
    (folder / "project" / "task.toml").write_text("name = 'stars'\nfields = [")
    assert "task.kept-1.toml" in opened().notices[0]
    assert (folder / "project" / "task.kept-1.toml").read_text().startswith("name = 'stars'")


def test_a_second_studio_on_a_folder_is_refused(opened):
    project = opened()
    with pytest.raises(ClozifyError, match="Another studio is open on the folder"):
        Project(project.folder)
    project.close()
    opened()


def test_two_windows_do_not_lose_each_others_labels(opened, folder):
    """Two windows are two threads on one project."""
    project = opened(folder / "rows.csv")

    def label(rows):
        for row in rows:
            project.set_label(row, "pos")

    windows = [threading.Thread(target=label, args=[range(start, 10, 2)]) for start in (0, 1)]
    for window in windows:
        window.start()
    for window in windows:
        window.join()
    assert len(labels_by_text(project)) == len(labeled_csv(project)) == 10
    project.close()
    assert len(labels_by_text(opened())) == 10


def test_labels_by_row_number_of_an_older_version_become_labels_of_texts(opened, folder):
    (folder / "project").mkdir()
    state = {"source": str(folder / "rows.csv"), "labels": {"3": "pos", "7": "neg", "99": "neg"}}
    (folder / "project" / "studio.json").write_text(json.dumps(state))
    project = opened()
    assert labels_by_text(project) == {TEXTS[3]: "pos", TEXTS[7]: "neg"}
    project.load(str(write_rows(folder / "sorted.csv", TEXTS[::-1])))
    assert labels_by_text(project) == {TEXTS[3]: "pos", TEXTS[7]: "neg"}
    written = json.loads((project.folder / "studio.json").read_text())
    assert written["row_labels"] == {"99": "neg"}  # the file has no such row, which is no reason to drop the label


def test_labels_by_row_number_wait_for_their_file(opened, folder):
    (folder / "project").mkdir()
    state = {"source": str(folder / "later.csv"), "labels": {"3": "pos"}}
    (folder / "project" / "studio.json").write_text(json.dumps(state))
    project = opened(folder / "rows.csv")
    assert labels_by_text(project) == {}
    project.close()
    project = opened(write_rows(folder / "later.csv", ["a", "b", "c", "d"]))
    assert labels_by_text(project) == {"d": "pos"}
    project.load(str(folder / "rows.csv"))
    assert labels_by_text(project) == {}


def test_labels_by_row_number_follow_a_moved_file_of_the_same_name_with_enough_rows(opened, folder):
    (folder / "project").mkdir()
    state = {"source": str(folder / "later.csv"), "labels": {"3": "pos"}}
    (folder / "project" / "studio.json").write_text(json.dumps(state))
    project = opened(write_rows(folder / "short" / "later.csv", ["a", "b"]))
    assert "load the file from its new path under the same name" in project.notices[0]
    assert labels_by_text(project) == {}
    project.load(str(write_rows(folder / "moved" / "later.csv", ["a", "b", "c", "d"])))
    assert labels_by_text(project) == {"d": "pos"}
    assert "row_labels" not in json.loads((project.folder / "studio.json").read_text())


def test_a_label_stays_when_a_column_is_added_and_the_last_one_counts(opened, folder):
    project = opened(write_rows(folder / "titled.csv", ["same", "same", "other"], title=["a", "b", "c"]))
    project.set_label(0, "pos")
    assert project.data.label_counts(project.draft) == {"neg": 0, "pos": 2}
    project.draft.fields = ["title", "text"]
    assert project.data.label_counts(project.draft) == {"neg": 0, "pos": 2}
    project.set_label(1, "neg")
    assert project.data.label_indices(project.draft).tolist() == [1, 0, -1]
    project.set_label(0, None)
    assert project.data.label_indices(project.draft).tolist() == [-1, 0, -1]


def test_a_label_of_the_file_can_be_changed_and_removed(opened, folder):
    project = opened(write_rows(folder / "labelled.csv", ["a", "b", "c"], label=["pos", "neg", ""]))
    project.set_label(0, "neg")
    project.set_label(1, None)
    assert labels_by_text(project) == labeled_csv(project) == {"a": "neg"}
    project.close()
    assert labels_by_text(opened()) == {"a": "neg"}


def test_a_renamed_label_does_not_count_and_is_not_lost(opened, folder):
    project = opened(folder / "rows.csv")
    project.set_label(0, "pos")
    project.draft.words[1] = ("positive", "great")
    assert project.data.label_counts(project.draft) == {"neg": 0, "positive": 0}
    assert project.data.other_labels(project.draft) == ["pos"]
    project.set_label(1, "positive")
    project.draft.words[1] = ("pos", "great")
    assert labels_by_text(project) == {TEXTS[0]: "pos"}


HAND_WRITTEN = """# a comment
name = "stars"
fields = ["text"]
id = "key"
patterns = ["{mask} {text}"]
[[verbalizers]]
name = "one"
words = { neg = "bad", pos = "great" }
[[verbalizers]]
name = "two"
words = { neg = "terrible", pos = "good" }
"""


def test_a_task_file_written_by_hand_is_kept_once_before_it_is_replaced(folder, opened):
    path = folder / "project" / "task.toml"
    path.parent.mkdir()
    path.write_text(HAND_WRITTEN)
    project = opened(folder / "rows.csv")
    project._save_task()
    project.draft.patterns = ["{text} {mask}"]
    project._save_task()
    assert path.with_name("task.kept-1.toml").read_text() == HAND_WRITTEN
    assert len(project.notices) == 1
    assert "task.kept-1.toml" in project.notices[0]
    project.close()
    again = opened()
    again._save_task()  # the studio's own file
    assert again.notices == []
    path.write_text(edited := "# edited meanwhile\n" + path.read_text())
    again.draft.name = "other"
    again._save_task()
    assert path.with_name("task.kept-2.toml").read_text() == edited
    assert len(list(path.parent.glob("task.*"))) == 3


def test_rows_with_several_labels_keep_all_of_them_and_those_with_none_count(opened, folder):
    project = opened(folder / "rows.csv")
    project.draft.multilabel = True
    project.set_label(0, "neg|pos")
    project.set_label(1, "")  # no label applies
    project.set_label(2, "pos")
    project.set_label(2, None)  # not labelled
    assert project.data.label_indices(project.draft, [0, 1, 2]).tolist() == [[1, 1], [0, 0], [-1, -1]]
    assert project.data.label_counts(project.draft) == {"neg": 1, "pos": 1}
    assert project.data.labeled(project.draft) == [0, 1]
    frame = pd.read_csv(project.folder / "labeled.csv", dtype=str, keep_default_na=False)
    assert frame["label"].tolist() == ["neg|pos", ""]
    task = project.draft.to_task()
    assert (task.multilabel, task.metric) == (True, "micro-f1")
    assert TaskDraft.from_task(task).to_task() == task
    project.close()
    again = opened()
    again.draft.multilabel = True
    again.load(str(folder / "rows.csv"))
    assert again.data.label_indices(again.draft, [0, 1, 2]).tolist() == [[1, 1], [0, 0], [-1, -1]]
    again.draft.multilabel = False
    assert again.draft.to_task().metric == "accuracy"


def test_the_labels_of_a_column_with_several_are_named_one_by_one(opened, folder):
    cells = ["neg|pos", "", "pos", "neg", "pos|other", *[""] * 5]
    project = opened(write_rows(folder / "several.csv", TEXTS, label=cells))
    project.draft.words = [("", ""), ("", "")]
    project.draft.multilabel = True
    assert project.name_labels()
    assert project.draft.labels == ["neg", "other", "pos"]
    assert project.data.label_indices(project.draft, [0, 1, 4]).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
