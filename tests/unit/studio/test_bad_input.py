"""Files, names and numbers that the studio cannot use get a sentence, and the project stays usable."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozify.errors import ClozifyError
from clozify.studio.draft import TaskDraft
from clozify.studio.project import Project
from clozify.studio.run_inputs import RunSettings

ROWS = b"text,label\ngood,pos\nbad,neg\nfair,\n"


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path / "project")
    project.draft = TaskDraft("stars", ["text"], "label", ["{mask} {text}"], [("neg", "bad"), ("pos", "great")])
    yield project
    project.close()


@pytest.mark.parametrize("labels", [[["x"], ["y"]], [{"x": 1}, {"x": 2}]])
def test_a_nested_label_column_names_no_labels_and_gets_a_sentence(project, tmp_path, labels):
    pq.write_table(pa.table({"text": ["a", "b"], "label": labels}), tmp_path / "rows.parquet")
    words, project.draft.words = project.draft.words, []
    project.load(str(tmp_path / "rows.parquet"))
    assert project.draft.labels == []
    project.draft.words = words
    with pytest.raises(ClozifyError, match="The label column 'label' of .* holds"):
        project.data.label_indices(project.draft)
    project.draft.label = "other"
    assert project.data.label_indices(project.draft).tolist() == [-1, -1]


def test_an_upload_is_not_stopped_by_a_folder_of_its_name_or_by_a_long_name(project):
    (project.folder / "data" / "rows.csv").mkdir(parents=True)
    project.upload("rows.csv", ROWS)
    assert project.data.source.endswith("rows-2.csv")
    for name in ("x" * 300 + ".csv", "\u6f22" * 300 + ".csv"):
        project.upload(name, ROWS)
        assert len(project.data) == 3


def test_an_upload_says_that_its_folder_is_a_file(project):
    (project.folder / "data").write_text("mine")
    with pytest.raises(ClozifyError, match="but that is a file; rename it"):
        project.upload("rows.csv", ROWS)
    assert (project.folder / "data").read_text() == "mine"


@pytest.mark.parametrize("source", ["x" * 300 + ".csv", "a\0b.csv", "~nobody-of-this-name/rows.csv"])
def test_a_path_that_no_file_can_have_gets_a_sentence(project, source):
    with pytest.raises(ClozifyError):
        project.load(source)


@pytest.mark.parametrize("settings", [RunSettings(unlabeled=-3), RunSettings(examples=-1)])
def test_negative_numbers_of_rows_get_a_sentence(project, settings):
    project.upload("rows.csv", ROWS)
    with pytest.raises(ClozifyError, match="cannot be negative"):
        project.inputs.write(settings)
