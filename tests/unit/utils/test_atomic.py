"""Atomic writes: a file or folder is replaced as a whole or not at all."""

import re

import pytest

from clozify.utils.atomic import atomic_folder, atomic_write, atomic_write_text, check_writable, remove_leftovers


def test_a_file_replaces_the_old_one_only_when_the_block_ends(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("old")
    with atomic_write(path) as written:
        written.write_text("new")
        assert path.read_text() == "old"
        assert written.parent == tmp_path
        assert re.fullmatch(r"\.metrics\.json\.[0-9a-f]{8}\.part", written.name)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "metrics.json"
    atomic_write_text(path, "öld")
    with pytest.raises(FileNotFoundError), atomic_write(path) as written:
        written.with_name("none").rename(written)
    assert path.read_text(encoding="utf-8") == "öld"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_replaces_the_old_one_with_all_its_files(tmp_path):
    path = tmp_path / "members" / "key"  # its parent is created
    with atomic_folder(path) as written:
        (written / "old.npy").touch()
        assert not path.exists()
    with atomic_folder(path) as written:
        (written / "new.npy").touch()
    assert [file.name for file in path.iterdir()] == ["new.npy"]
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_keeps_the_old_folder_and_leaves_nothing(tmp_path):
    path = tmp_path / "classifier"
    with atomic_folder(path) as written:
        (written / "model").touch()
    with pytest.raises(IsADirectoryError), atomic_folder(path) as written:
        written.write_text("no folder")
    assert [file.name for file in path.iterdir()] == ["model"]
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_may_write_one_folder_at_the_same_time(tmp_path):
    """A worker that is taken for dead may still be writing the job that another one does again."""
    path = tmp_path / "key"
    with atomic_folder(path) as first, atomic_folder(path) as second:
        (first / "scores").write_text("same")
        (second / "scores").write_text("same")
    assert (path / "scores").read_text() == "same"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "members" / ".key.0a1b2c3d.part").mkdir(parents=True)
    (tmp_path / "members" / ".key.0a1b2c3d.part" / "scores.npy").touch()
    (tmp_path / ".run.json.part").touch()
    (tmp_path / "run.json").touch()
    (tmp_path / "body.part").touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["body.part", "members", "run.json"]


def test_whether_a_path_can_be_written_is_known_beforehand(tmp_path):
    check_writable(tmp_path / "words.toml")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        check_writable(tmp_path / "none" / "words.toml")
