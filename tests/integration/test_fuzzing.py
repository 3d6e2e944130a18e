"""Damaged task files, data files, run folders and requests, at random.

Every command ends within 10 seconds with status 0, 1, 2 or 130 and without a traceback, and every request is answered.
CLOZIFY_FUZZ_SECONDS is the time of all parts together (60); CLOZIFY_FUZZ_SEED repeats the cases of a printed seed.
"""

import gzip
import json
import os
import random
import shutil
import socket
import time

import hypothesis
import pandas as pd
import pytest
import schemathesis
from schemathesis import GenerationMode

from clozify.serving.model import ServedModel
from clozify.serving.requests import Limits
from tests.integration.conftest import SETTINGS, TASK
from tests.integration.fork_server import ForkServer
from tests.integration.serving import post, running, save_classifier

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("CLOZIFY_FUZZ_SECONDS", "60"))
PARTS = 5  # tests that share the time
SEED = os.environ.get("CLOZIFY_FUZZ_SEED", "")
STATUSES = (0, 1, 2, 130)
JUNK = [None, True, -1, 0, 1e308, 10**30, "", "x", "\x00", "é" * 50, [], {}, [[]], {"a": 1}, "[" * 2000]
PIECES = [
    '"',
    "'",
    ",",
    ";",
    "\n",
    "\r\n",
    "\t",
    "{",
    "}",
    "[",
    "]",
    "=",
    "||",
    "{mask}",
    "{text}",
    "\x00",
    "é",
    "\ud83d",
    "null",
]


def mutate(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """The content of a file with one random damage."""
    size = len(content)
    start, stop = sorted(rng.randrange(size + 1) for _ in range(2))
    piece = rng.choice(PIECES).encode("utf-8", "surrogatepass") * rng.choice([1, 1, 2, 1000])
    damages = [
        lambda: content[:start],
        lambda: content[:start] + content[stop:],
        lambda: content[:start] + piece + content[start:],
        lambda: content[:start] + rng.randbytes(min(stop - start, 64)) + content[stop:],
        lambda: content[:stop] + content[start:],
        lambda: bytes(byte ^ (rng.randrange(256) if rng.random() < 0.02 else 0) for byte in content),
        lambda: b"",
        lambda: json.dumps(rng.choice(JUNK)).encode(),
        lambda: b"[" * 100_000,
        lambda: rng.choice(others) if others else b"",
        lambda: _mutate_json(content, rng),
        lambda: _mutate_json(content, rng),
    ]
    return rng.choice(damages)()


def _mutate_json(content: bytes, rng: random.Random) -> bytes:
    """JSON with one value replaced by another, or removed; other content loses a random line."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        lines = content.splitlines(keepends=True)
        return b"".join(line for index, line in enumerate(lines) if index != rng.randrange(len(lines)))
    nodes, stack = [], [document]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
        nodes += [(node, key) for key in keys]
        stack += [node[key] for key in keys]
    if nodes:
        node, key = rng.choice(nodes)
        if rng.random() < 0.3:
            del node[key]
        else:
            node[key] = rng.choice(JUNK)
    return json.dumps(document).encode()


class Fuzzer:
    """Counts cases, notes findings, and knows when the time is up."""

    def __init__(self, part: str) -> None:
        self.seed = f"{SEED or random.SystemRandom().randrange(10**9)}"
        self.part, self.cases, self.findings = part, 0, {}
        self.end = time.monotonic() + SECONDS / PARTS

    def rounds(self):
        """Yield a random generator for each case, at least one, until the time is up."""
        while self.cases == 0 or time.monotonic() < self.end:
            self.cases += 1
            yield random.Random(f"{self.seed} {self.part} {self.cases}")

    def check(self, outcome, description: str, limit: float) -> None:
        """Note a traceback, a hang, or another status than those documented."""
        last = (outcome.err.strip().splitlines() or [""])[-1]
        if outcome.status is None:
            problem = f"no end after {limit:.0f} s"
        elif outcome.status not in STATUSES:
            problem = f"status {outcome.status}"
        elif "Traceback (most recent call last)" in outcome.err or "Aborted" in outcome.err:
            frames = [line.strip() for line in outcome.err.splitlines() if "/clozify/" in line]
            problem = f"{last[:200]} at {(frames or ['?'])[-1]}"
        elif outcome.status == 2 and not (outcome.err + outcome.out).strip():
            problem = "status 2 without a message"
        else:
            return
        self.findings.setdefault(problem, f"case {self.cases}: {description}")

    def report(self) -> None:
        """Print the seed and the number of cases; fail where something was found."""
        print(f"\n{self.part}: {self.cases} cases, CLOZIFY_FUZZ_SEED={self.seed}")
        lines = [f"{problem}\n    {case}" for problem, case in self.findings.items()]
        assert not lines, f"{self.part}, CLOZIFY_FUZZ_SEED={self.seed}, {self.cases} cases:\n" + "\n".join(lines)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = ForkServer(tmp_path_factory.mktemp("fork-server"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def base(server, tiny_folder, tmp_path_factory):
    """A folder with a task, data in several formats, a run by two methods, and one whose result is the ensemble."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "task.toml").write_text(TASK)
    words = ["a fine game", "a slow tool", "mail for all", "fonts and more"]
    frame = pd.DataFrame(
        [(n, 1 + n % 2, f"{words[n % 4]} number {n}") for n in range(30)], columns=["id", "label", "text"]
    )
    frame[:6].to_csv(folder / "labeled.csv", index=False)
    frame[["text"]][6:20].to_csv(folder / "unlabeled.csv", index=False)
    rows = frame[20:]
    rows.to_csv(folder / "test.csv", index=False)
    rows.to_csv(folder / "test.tsv", index=False, sep="\t")
    rows.to_json(folder / "test.jsonl", orient="records", lines=True)
    rows.to_parquet(folder / "test.parquet")
    (folder / "test.csv.gz").write_bytes(gzip.compress((folder / "test.csv").read_bytes()))
    for source, method in (("run", "pet"), ("run", "supervised"), ("ensemble", "pet")):
        outcome = server.run(*train_command(folder, source, folder / source, tiny_folder("bert"), method))
        assert outcome.status == 0, outcome.err
    return folder


def train_command(folder, source, output, model, method="pet"):
    settings = [word for setting in [*SETTINGS, "repetitions=1"] for word in ("--set", setting)]
    names = ("labeled", "unlabeled", "test") if source == "run" else ("labeled", "test")
    files = [word for name in names for word in (f"--{name}", folder / f"{name}.csv")]
    options = ["--model", model, "--output", output, "--quiet", "--method", method]
    return ["train", folder / "task.toml", *files, *options, *settings]


def time_limit(server, words) -> float:
    """10 seconds, or more on a machine where the undamaged command takes over a second."""
    outcome = server.run(*words)
    assert outcome.status == 0, outcome.err
    return max(10.0, 10 * outcome.seconds)


def test_damaged_run_folders_end_in_a_sentence(server, base, tiny_folder, tmp_path):
    def commands(source, run):
        data = ["--data", base / "test.csv"]
        by_method = ["--method", "supervised"] if source == "run" else []
        return {
            "predict": ["predict", run, *data],
            "evaluate": ["evaluate", run, *data, "--json"],
            "report": ["report", run, "--output", tmp_path / "report.html"],
            "suggest": ["suggest", run, "--output", tmp_path / "to-label.csv"],
            "evaluate a method": ["evaluate", run, *data, *by_method],
            "report a method": ["report", run, "--output", tmp_path / "report.html", *by_method],
            "train": train_command(base, source, run, tiny_folder("bert")),
            "export": ["export", run, "--output", tmp_path / "onnx", *data, "--quiet"],
        }

    shutil.copytree(base / "run", tmp_path / "whole")
    limits = {name: time_limit(server, words) for name, words in commands("run", tmp_path / "whole").items()}
    files = {
        source: sorted(path.relative_to(base / source) for path in (base / source).rglob("*") if path.is_file())
        for source in ("run", "ensemble")
    }
    others = [(base / "run" / path).read_bytes() for path in files["run"]]
    fuzzer = Fuzzer("run folders")
    for rng in fuzzer.rounds():
        source = rng.choice(["run", "run", "ensemble"])
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(base / source, tmp_path / "run")
        path = rng.choice(files[source])
        damaged = None if rng.random() < 0.15 else mutate((base / source / path).read_bytes(), rng, others)
        (tmp_path / "run" / path).unlink()
        if damaged is not None:
            (tmp_path / "run" / path).write_bytes(damaged)
        name = rng.choice([name for name in limits if name != "export" or rng.random() < 0.2])
        outcome = server.run(*commands(source, tmp_path / "run")[name], timeout=limits[name])
        change = "removed" if damaged is None else f"begins {damaged[:40]!r}, {len(damaged)} bytes"
        fuzzer.check(outcome, f"{name}, {path} {change}", limits[name])
        if name == "predict" and outcome.status == 0 and "NaN" in outcome.out:
            fuzzer.findings.setdefault("predictions are not numbers", f"{path} {change}")
    fuzzer.report()


def test_damaged_data_files_end_in_a_sentence(server, base, tiny_folder, tmp_path):
    names = [f"test.{suffix}" for suffix in ("csv", "tsv", "jsonl", "parquet", "csv.gz")]
    others = [(base / name).read_bytes() for name in names]

    def commands(data):
        return [
            ["predict", base / "run", "--data", data],
            ["predict", base / "run", "--data", data, "--output", tmp_path / "out.jsonl"],
            ["evaluate", base / "run", "--data", data],
            ["zero-shot", base / "task.toml", "--data", data, "--model", tiny_folder("bert")],
        ]

    limit = max(time_limit(server, words) for words in commands(base / "test.csv"))
    fuzzer = Fuzzer("data files")
    for rng in fuzzer.rounds():
        name = rng.choice(names)
        damaged = mutate((base / name).read_bytes(), rng, others)
        if name.endswith(".gz") and rng.random() < 0.7:
            damaged = gzip.compress(mutate((base / "test.csv").read_bytes(), rng, others))
        (tmp_path / name).write_bytes(damaged)
        words = rng.choice(commands(tmp_path / name))
        outcome = server.run(*words, timeout=limit)
        fuzzer.check(outcome, f"{words[0]}, {name} of {len(damaged)} bytes: {damaged[:200]!r}", limit)
    fuzzer.report()


def test_damaged_task_files_end_in_a_sentence(server, base, tiny_folder, tmp_path):
    def commands(task):
        model = ["--model", tiny_folder("bert")]
        return [["check", task, *model], ["zero-shot", task, "--data", base / "test.csv", *model]]

    limit = max(time_limit(server, words) for words in commands(base / "task.toml"))
    fuzzer = Fuzzer("task files")
    for rng in fuzzer.rounds():
        damaged = mutate(TASK.encode(), rng, [(base / "test.csv").read_bytes()])
        if rng.random() < 0.5:
            damaged = mutate(damaged, rng, [])
        (tmp_path / "task.toml").write_bytes(damaged)
        words = rng.choice(commands(tmp_path / "task.toml"))
        outcome = server.run(*words, timeout=limit)
        fuzzer.check(outcome, f"{words[0]}, {damaged[:300]!r}", limit)
    fuzzer.report()


@pytest.fixture(scope="module")
def http_server(tiny_folder, tmp_path_factory):
    folder = save_classifier(tiny_folder("bert"), TASK, tmp_path_factory.mktemp("classifier"))
    with running(ServedModel(folder), Limits(max_texts=8, max_waiting=64, timeout=2)) as started:
        yield started


def test_damaged_requests_are_answered_without_a_server_error(http_server):
    """HTTP with any damage: a response with JSON, or a closed connection, and the server lives on."""
    body = b'{"texts": ["a fine game", "a slow tool"]}'
    lines = [b"POST /predict HTTP/1.1", b"Host: localhost", b"Content-Type: application/json"]
    request = b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"Connection: close", b"", body])
    fuzzer = Fuzzer("requests")
    for rng in fuzzer.rounds():
        damaged = mutate(request, rng, [b"GET /metrics HTTP/1.1\r\n\r\n"])
        if rng.random() < 0.5:  # valid HTTP with a damaged body
            content = mutate(body, rng, [])
            head = b"\r\n".join([*lines, b"Content-Length: %d" % len(content), b"Connection: close", b"", b""])
            damaged = head + content
        began, answer = time.monotonic(), b""
        with socket.create_connection(("127.0.0.1", http_server.port), timeout=10) as raw:
            try:
                raw.sendall(damaged)
                raw.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: raw.recv(65_536), b""))
            except TimeoutError:
                fuzzer.findings.setdefault("no answer after 10 s", f"{damaged[:300]!r}")
            except OSError:  # the server has closed the connection
                pass
        status = answer[9:12].decode("latin-1")
        if status.startswith("5") and status not in ("503", "504"):
            fuzzer.findings.setdefault(f"status {status}", f"{damaged[:300]!r}")
        if status.startswith("4") and b'{"error": "' not in answer:
            fuzzer.findings.setdefault(f"status {status} without a JSON error", f"{damaged[:300]!r}: {answer[:200]!r}")
        assert time.monotonic() - began < 30
    assert post(http_server.port, path="/health")[0] == 200
    fuzzer.report()


def test_generated_requests_are_answered_as_described(http_server):
    """Bodies generated from the OpenAPI description, valid and invalid ones."""
    operation = schemathesis.openapi.from_url(f"{http_server.url}/openapi.json")["/predict"]["POST"]
    fuzzer = Fuzzer("generated requests")
    for rng in fuzzer.rounds():
        mode = rng.choice(list(GenerationMode))

        @hypothesis.seed(rng.randrange(2**32))
        @hypothesis.settings(
            max_examples=10, derandomize=False, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            case.call_and_validate()

        check()
    fuzzer.report()
