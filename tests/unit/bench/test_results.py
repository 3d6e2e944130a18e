"""The folder of a bench: what is refused before anything is written."""

import json

import pytest

from clozify.bench.results import check_output
from clozify.errors import RunError


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_is_no_folder_of_a_bench(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file' is a file; name a folder"):
        check_output(tmp_path / name)


def test_an_address_is_no_folder_of_a_bench():
    with pytest.raises(RunError, match="not to 's3://bucket/x'"):
        check_output("s3://bucket/x")


def test_a_folder_with_other_files_is_refused_and_a_new_or_empty_one_is_not(tmp_path):
    assert check_output(tmp_path / "new") == tmp_path / "new"
    assert check_output(tmp_path) == tmp_path
    (tmp_path / ".lock").touch()  # of a bench that was killed at once
    assert check_output(tmp_path) == tmp_path
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match=r"holds 'notes.txt' but no bench"):
        check_output(tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_bench_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"kind": "bench", "commands": [], "cells": {}}))
    with pytest.raises(RunError, match="another version of clozify; name another folder"):
        check_output(tmp_path)
