"""A job's files are as they were written, or the job runs again."""

import json

import pytest

from clozify.runs.checksums import CHECKSUMS, find_damage
from clozify.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path / "run") as folder, folder.writing("members", "key") as path:
        folder.write_json("run.json", {})
        (path / "scores.npy").write_bytes(b"0123456789")
        (path / "model").mkdir()
        (path / "model" / "weights").write_bytes(b"abc")
    with RunFolder(tmp_path / "run") as folder:  # opened again: nothing was checked yet
        yield folder


def test_a_finished_job_is_used_again(folder):
    assert folder.has_job("members", "key")
    assert not folder.has_job("members", "another")


@pytest.mark.parametrize("name", ["scores.npy", "model/weights", CHECKSUMS])
@pytest.mark.parametrize("damage", ["cut off", "garbled", "removed", "emptied"])
def test_a_job_with_a_damaged_file_is_removed_and_the_file_is_named(folder, name, damage):
    path = folder.path / "members" / "key" / name
    if damage == "removed":
        path.unlink()
    else:
        content = path.read_bytes()
        garbled = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes({"cut off": content[: len(content) // 2], "garbled": garbled, "emptied": b""}[damage])
    messages = []
    assert not folder.has_job("members", "key", messages.append)
    assert len(messages) == 1
    assert messages[0].startswith(f"members/key/{name} is damaged")
    assert not (folder.path / "members" / "key").exists()


def test_the_list_of_checksums_does_not_list_itself(folder):
    assert set(json.loads((folder.path / "members" / "key" / CHECKSUMS).read_text())) == {"scores.npy", "model/weights"}


def test_files_that_were_not_downloaded_are_not_missed(folder):
    (folder.path / "members" / "key" / "model" / "weights").unlink()
    assert find_damage(folder.path / "members" / "key", skip_prefix="model/") is None


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "1", '{"scores.npy": 5}', '{"scores.npy": [10, "x"]}', "{", "[" * 100_000],
    ids=lambda content: content[:24],
)
def test_other_json_in_the_list_never_passes_for_a_check(folder, content):
    path = folder.path / "members" / "key"
    (path / CHECKSUMS).write_text(content)
    assert find_damage(path) is not None
