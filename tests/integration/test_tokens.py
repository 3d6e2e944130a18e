"""The unlabelled rows are tokenised once a run, while its members train; nothing waits for it at the end."""

import threading

import numpy as np
import pytest

from clozify.pipeline import token_cache
from clozify.pipeline.final_classifier import ClassifierJob
from clozify.pipeline.member_jobs import MemberJob
from tests.integration.test_train import scores


@pytest.fixture
def written(monkeypatch):
    """The tokenizer and the field of every column of tokens that this process writes, and "classifier" at its start."""
    events = []
    write, train = token_cache._write, ClassifierJob.run

    def note_column(rows, tokenizer, field, *arguments):
        events.append((tokenizer.digest, field))
        write(rows, tokenizer, field, *arguments)

    def note_classifier(job, worker):
        events.append("classifier")
        return train(job, worker)

    monkeypatch.setattr(token_cache, "_write", note_column)
    monkeypatch.setattr(ClassifierJob, "run", note_classifier)
    return events


@pytest.mark.parametrize("student", [None, "roberta"])
def test_rows_are_tokenised_once_and_for_the_classifier_before_it_starts(run, written, tiny_folder, student):
    run(student=None if student is None else str(tiny_folder(student)))
    first_classifier = written.index("classifier")
    columns = written[:first_classifier]
    assert len(set(columns)) == len(columns)
    assert len({digest for digest, _ in columns}) == (1 if student is None else 2)
    assert set(written[first_classifier:]) == {"classifier"}


def test_a_classifier_that_reads_as_the_patterns_do_adds_no_tokens(run, written, files):
    """BERT's tokens do not depend on what is before a field, so that one column serves all."""
    run()
    assert len(written) - written.count("classifier") == 1


def test_what_fails_in_the_background_is_done_by_the_job_that_needs_it(run, files, monkeypatch):
    expected = run("alone")
    load_or_write, failed = token_cache._load_or_write, threading.Event()

    def fail_in_background(*args):
        if threading.current_thread().name == "tokenizing":
            failed.set()
            raise OSError("no more files")
        assert failed.wait(60)  # else the job may have done it all by then
        return load_or_write(*args)

    monkeypatch.setattr(token_cache, "_load_or_write", fail_in_background)
    assert run("failing") == expected
    one, other = scores(files / "alone"), scores(files / "failing")
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_finished_run_that_is_given_again_tokenises_nothing(run, written):
    run()
    del written[:]
    run()
    assert written == []


def test_a_run_that_fails_ends_the_tokenising_first(run, monkeypatch):
    """What it wrote after the run's end would be in the way of the folder's removal, or of the next run."""
    write, started = token_cache._write, threading.Event()

    def wait_for_the_failure(rows, tokenizer, field, folder, stop):
        started.set()
        assert stop.wait(60)
        write(rows, tokenizer, field, folder, stop)

    def fail(*_):
        assert started.wait(60)
        raise RuntimeError("the first member fails")

    monkeypatch.setattr(token_cache, "_write", wait_for_the_failure)
    monkeypatch.setattr(MemberJob, "run", fail)
    with pytest.raises(Exception, match="the first member fails"):
        run()
    assert "tokenizing" not in {thread.name for thread in threading.enumerate()}
