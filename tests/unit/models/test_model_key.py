"""Keys of models that are computed in the background."""

import hashlib
import threading

import pytest

from clozify.errors import ModelError
from clozify.models import model_key as module
from clozify.models.model_key import hash_model_folder, model_key, start_hashing


def test_weights_that_are_hashed_in_the_background_are_read_once(tmp_path, monkeypatch):
    """A run that needs the key earlier waits for it."""
    (tmp_path / "weights").write_bytes(b"1234")
    digest_file, calls, go_on = hashlib.file_digest, [], threading.Event()

    def slow_digest(*args):
        calls.append(threading.current_thread().name)
        assert go_on.wait(60)
        return digest_file(*args)

    monkeypatch.setattr(hashlib, "file_digest", slow_digest)
    start_hashing(str(tmp_path))
    threading.Timer(0.05, go_on.set).start()
    assert model_key(str(tmp_path)) == hash_model_folder(tmp_path)
    assert calls == ["hashing"]


def test_a_model_that_does_not_exist_is_reported_once_by_who_needs_its_key(capfd):
    start_hashing("builtin:huge")
    module._hashing["builtin:huge"].join()
    assert capfd.readouterr().err == ""
    with pytest.raises(ModelError):
        model_key("builtin:huge")
