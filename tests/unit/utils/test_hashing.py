"""Hashes of files."""

import hashlib
import threading

from clozify.utils.hashing import hash_file


def test_a_file_that_two_threads_want_hashed_is_read_once(tmp_path, monkeypatch):
    """A model's weights are hashed in the background, and a run that needs the hash earlier waits for it."""
    (tmp_path / "weights").write_bytes(b"1234")
    expected = hashlib.sha256(b"1234").hexdigest()
    digest_file, started, go_on, calls = hashlib.file_digest, threading.Event(), threading.Event(), []

    def slow_digest(*args):
        calls.append(args)
        started.set()
        assert go_on.wait(10)
        return digest_file(*args)

    monkeypatch.setattr(hashlib, "file_digest", slow_digest)
    hashes: list[str] = []
    threads = [threading.Thread(target=lambda: hashes.append(hash_file(tmp_path / "weights"))) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert started.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert hashes == [expected] * 2
    assert len(calls) == 1
