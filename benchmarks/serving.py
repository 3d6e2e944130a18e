"""How much does batching speed up the server, and does it answer mixed requests correctly under load?

Starts `clozify serve` as a process with an untrained classifier of the built-in model's shape (speed does not depend on
the weights) and sends it rows of the sample data:

- one client that sends one row at a time, against many clients at once: answers per second, and the ratio;
- thousands of valid and invalid requests: every valid one must get the classifier's answer, every invalid one a 4xx;
  the server's memory before, during and after.

    python benchmarks/serving.py [--clients 48] [--seconds 15] [--requests 10000] [--folder EXPORT]
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from clozify.config.recipe import load_recipe
from clozify.config.task import load_task
from clozify.data.in_memory import make_rows
from clozify.data.rows import Rows, read_rows
from clozify.inference.finished_run import FinishedRun
from clozify.models.classifier import new_classifier

JSON = {"Content-Type": "application/json"}
DISTINCT = 400  # rows that requests are made of
BAD: list[tuple[bytes, dict[str, str]]] = [
    (b"", JSON),
    (b"rubbish", JSON),
    (b'{"rows": [{"summary": "a"}]}', JSON),
    (b'{"rows": [{"summary": "a", "description": 1}]}', JSON),
    (b'{"rows": [{"summary": "a", "description": "b", "more": "c"}]}', JSON),
    (b'{"rows": []}', JSON),
    (b'{"rows": "a"}', JSON),
    (b'{"rows": [NaN]}', JSON),
    (b'{"text": "a"}', JSON),
    (b'{"rows": [{"summary": "\\ud800", "description": ""}]}', JSON),
    (b'{"rows": [{"summary": "\xff", "description": ""}]}', JSON),
    (b"[" * 50_000, JSON),
    (b"null", JSON),
    (json.dumps({"rows": [{"summary": "a", "description": ""}] * 300}).encode(), JSON),
    (b" " * 1_200_000, JSON),
    (b"summary=a", {"Content-Type": "application/x-www-form-urlencoded"}),
]


class Client:
    """A client with one persistent connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def compile_task(self, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        """The response's status and content."""
        self._connection.request("POST", "/predict", body, headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """Run the server as a process; yields its port."""
    command = [sys.executable, "-m", "clozify", "serve", str(folder), "--port", "0", "--timeout", "120"]
    command += ["--precision", "float32"]  # answers do not depend on the rows that share a batch
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        result = re.search(r"http://127\.0\.0\.1:(\d+)", started.stdout.readline())
        assert result, "the server did not start"
        try:
            yield int(result[1])
        finally:
            started.send_signal(signal.SIGTERM)
            print(f"the server stopped with status {started.wait(60)}")


def body_of(rows: list[dict[str, str]]) -> bytes:
    """A request for these rows."""
    return json.dumps({"rows": rows}).encode()


def throughput(port: int, bodies: list[bytes], clients: int, seconds: float) -> float:
    """Answers per second with this number of clients, each of which sends one row at a time."""
    stop = time.monotonic() + seconds
    counts = [0] * clients

    def work(number: int) -> None:
        client = Client(port)
        for body in itertools.cycle(bodies[number:] + bodies[:number]):
            status, _ = client.compile_task(body, JSON)
            assert status == 200, status
            if time.monotonic() > stop:
                return
            counts[number] += 1

    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    return sum(counts) / (time.monotonic() - began)


def memory_of(port: int) -> float:
    """The server's memory in bytes, by its own metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics")
    result = re.search(r"^process_resident_memory_bytes (\S+)", connection.getresponse().read().decode(), re.MULTILINE)
    assert result
    return float(result[1])


def crowd(
    port: int,
    rows: list[dict[str, str]],
    right: np.ndarray[Any, Any],
    requests: int,
    clients: int,
    tell: Callable[[], None],
) -> Counter[str]:
    """Send valid and invalid requests; returns the number of each outcome."""
    result: Counter[str] = Counter()
    numbers, lock = iter(range(requests)), threading.Lock()
    labels = load_task("debian").labels

    def good(client: Client, rng: random.Random) -> str:
        chosen = [rng.randrange(len(rows)) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        status, answer = client.compile_task(body_of([rows[n] for n in chosen]), JSON)
        if status != 200:
            return f"good, but answered with {status}"
        shares = np.array([list(one["probabilities"].values()) for one in answer["predictions"]])
        named = [one["label"] for one in answer["predictions"]]
        same = shares.shape == right[chosen].shape and np.abs(shares - right[chosen]).max() < 1e-4
        ours = [labels[n] for n in shares.argmax(axis=1)]
        return "good, answered right" if same and named == ours else "good, answered WRONG"

    def work(number: int) -> None:
        client, rng = Client(port), random.Random(number)
        while True:
            with lock:
                at = next(numbers, None)
                if at is None:
                    return
                if at % (requests // 4) == 0:
                    tell()
            if rng.random() < 0.7:
                ended = good(client, rng)
            else:
                body, headers = rng.choice(BAD)
                status, answer = client.compile_task(body, headers)
                sentence = 400 <= status < 500 and isinstance(answer.get("error"), str)
                ended = "bad, refused with a 4xx and a sentence" if sentence else f"bad, but answered with {status}"
            with lock:
                result[ended] += 1

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    return result


def as_dicts(rows: Rows) -> list[dict[str, str]]:
    """Rows as a request holds them."""
    columns = {field: rows.texts(field) for field in rows.task.fields}
    return [dict(zip(columns, texts, strict=True)) for texts in zip(*columns.values(), strict=True)]


def main(
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 48,
    seconds: Annotated[float, typer.Option(help="How long each throughput is measured.")] = 15,
    requests: Annotated[int, typer.Option(help="Mixed requests.")] = 10_000,
    repeats: Annotated[int, typer.Option(help="How often throughput is measured; the median ratio counts.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="A classifier or an export for the task 'debian'.")] = None,
) -> None:
    """Print throughputs and their ratio, how the mixed requests ended, and the server's memory."""
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task("debian")
        if folder is None:
            torch.manual_seed(0)
            folder = Path(scratch)
            new_classifier("builtin", task, load_recipe("quick", []), "cpu").save(folder)
        whole = read_rows("builtin:test", task).select(np.arange(DISTINCT))
        texts = {"summary": whole.texts("summary"), "description": [""] * DISTINCT}
        short = make_rows(texts, task, "the summaries")
        right = FinishedRun(folder, precision="float32").probabilities(short)
        print(f"{clients} clients, {torch.get_num_threads()} threads for the model, torch {torch.__version__}")
        with server(folder) as port:
            for name, rows in (("summaries alone (12 tokens)", short), ("whole rows (up to 64 tokens)", whole)):
                bodies = [body_of([row]) for row in as_dicts(rows)]
                throughput(port, bodies, clients, 2)  # warm-up
                ratios = []
                for _ in range(repeats):
                    one = throughput(port, bodies, 1, seconds)
                    many = throughput(port, bodies, clients, seconds)
                    ratios.append(many / one)
                    print(f"{name}: one at a time {one:.1f}, {clients} clients {many:.1f} answers/s: {many / one:.1f}x")
                print(f"{name}: median {np.median(ratios):.1f}x")
            memory: list[str] = []

            def tell() -> None:
                memory.append(f"{memory_of(port) / 2**20:.0f}")

            crowd(port, as_dicts(short), right, 400, clients, lambda: None)  # warm-up
            began = time.monotonic()
            result = crowd(port, as_dicts(short), right, requests, clients, tell)
            tell()
            print(f"{requests:,} mixed requests in {time.monotonic() - began:.0f} s:")
            for ended, count in sorted(result.items()):
                print(f"  {ended}: {count:,}")
            print(f"memory of the server on the way, MiB: {', '.join(memory)}")


if __name__ == "__main__":
    typer.run(main)
