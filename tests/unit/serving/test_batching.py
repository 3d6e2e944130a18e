"""The queue behind the server, with a scorer made for the test."""

import asyncio
import threading

import numpy as np
import pytest

from clozify.serving.batching import Batcher


class Scorer:
    """Scores a text by the number it is; waits while `gate` is closed; keeps what it was given."""

    def __init__(self):
        self.gate, self.batches = threading.Event(), []
        self.gate.set()

    def __call__(self, texts):
        self.batches.append(list(texts["text"]))
        assert self.gate.wait(10)
        if "poison" in texts["text"]:
            raise ValueError("poison")
        return np.array([[float(text), -float(text)] for text in texts["text"]])


def numbers(*values):
    return {"text": [str(value) for value in values]}


async def gathered(scorer, batcher):
    """Close the gate and let the thread take a first job, so that what comes next waits together."""
    scorer.gate.clear()
    first = batcher.submit(numbers(0))
    while not scorer.batches:
        await asyncio.sleep(0.001)
    return first


def test_what_waits_is_scored_together_and_everyone_gets_their_own():
    """Answers that are mixed up between requests look like answers."""
    scorer = Scorer()

    async def run():
        batcher = Batcher(scorer, 2, 8)
        await gathered(scorer, batcher)
        jobs = [batcher.submit(numbers(n, n + 100)) for n in range(1, 4)]
        scorer.gate.set()
        result = [await job.future for job in jobs]
        batcher.close()
        return result

    result = asyncio.run(run())
    assert [scores[:, 0].tolist() for scores in result] == [[1, 101], [2, 102], [3, 103]]
    assert scorer.batches[1] == ["1", "101", "2", "102", "3", "103"]


def test_a_small_request_does_not_wait_for_all_of_a_large_one():
    scorer = Scorer()

    async def run():
        batcher = Batcher(scorer, 2, 4)
        await gathered(scorer, batcher)
        large = batcher.submit(numbers(*range(20)))
        small = batcher.submit(numbers(77))
        scorer.gate.set()
        both = await asyncio.gather(large.future, small.future)
        batcher.close()
        return both

    large, small = asyncio.run(run())
    assert "77" in scorer.batches[1]
    assert large[:, 0].tolist() == list(range(20))
    assert small.tolist() == [[77, -77]]


def test_a_request_that_nobody_waits_for_is_not_worked_on():
    """A server that goes on with what has timed out never catches up."""
    scorer = Scorer()

    async def run():
        batcher = Batcher(scorer, 2, 4)
        await gathered(scorer, batcher)
        gone = batcher.submit(numbers(1))
        gone.dropped = True
        kept = batcher.submit(numbers(2))
        scorer.gate.set()
        await kept.future
        batcher.close()

    asyncio.run(run())
    assert scorer.batches == [["0"], ["2"]]


def test_a_request_that_fails_fails_alone():
    scorer = Scorer()

    async def run():
        batcher = Batcher(scorer, 2, 8)
        await gathered(scorer, batcher)
        good, bad = batcher.submit(numbers(1)), batcher.submit({"text": ["poison"]})
        scorer.gate.set()
        with pytest.raises(ValueError, match="poison"):
            await bad.future
        assert (await good.future).tolist() == [[1, -1]]
        assert batcher.alive
        batcher.close()
        assert not batcher.alive

    asyncio.run(run())


def test_closing_finishes_what_was_queued():
    scorer = Scorer()

    async def run():
        batcher = Batcher(scorer, 2, 1)
        jobs = [batcher.submit(numbers(n)) for n in range(5)]
        await asyncio.to_thread(batcher.close)
        return [await job.future for job in jobs]

    assert [scores[0, 0] for scores in asyncio.run(run())] == [0, 1, 2, 3, 4]
