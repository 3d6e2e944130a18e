"""Files of a run that are cut off or garbled: the error names the file, whichever library stumbles over it."""

import numpy as np
import pytest

from clozify.errors import RunError
from clozify.report.costs import _job_costs
from clozify.utils.checked_files import open_npy, read_json


def test_an_array_with_a_garbled_header_is_named(tmp_path):
    """NumPy reads the header with Python's tokenizer, whose errors are no ValueError."""
    np.save(tmp_path / "scores.npy", np.zeros((4, 2)))
    content = (tmp_path / "scores.npy").read_bytes()
    for damaged in (content.replace(b"}", b"(", 1), content.replace(b"'descr'", b"'''descr", 1), content[:30], b""):
        (tmp_path / "scores.npy").write_bytes(damaged)
        with pytest.raises(RunError, match=r"scores\.npy' is damaged"):
            open_npy(tmp_path / "scores.npy")


@pytest.mark.parametrize("content", ["{}", "[]", '{"seconds": "x"}', '{"seconds": null}', "[" * 100_000])
def test_a_job_without_its_seconds_is_named(content, tmp_path):
    (tmp_path / "member.json").write_text(content)
    with pytest.raises(RunError, match=r"member\.json' is damaged"):
        _job_costs("patterns", [tmp_path / "member.json"])


def test_json_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"ä": 1}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"ä": 1}


@pytest.mark.parametrize("content", ["1e+308", "[]", '"x"', "null", "[" * 100_000, "{", ""], ids=lambda text: text[:9])
def test_json_that_is_no_object_is_damaged(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match=r"run\.json' is damaged"):
        read_json(tmp_path / "run.json")
