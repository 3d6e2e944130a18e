"""The server as clients meet it: right answers, refusals that name the fix, limits that hold, a stop without loss."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clozify.data.in_memory import make_rows
from clozify.errors import ClozifyError
from clozify.inference.finished_run import FinishedRun
from clozify.serving.app import is_loopback
from clozify.serving.model import ServedModel
from clozify.serving.requests import Limits
from clozify.serving.server import open_socket, read_token
from tests.integration.conftest import TASK
from tests.integration.serving import JSON, Slow, post, running, save_classifier

TWO_FIELDS = TASK.replace('["text"]', '["title", "text"]\noptional = ["title"]')
LIMITS = Limits(max_texts=8, max_body=4_000, max_waiting=64, timeout=20)


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    return save_classifier(tiny_folder("bert"), TASK, tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def server(folder):
    with running(ServedModel(folder), LIMITS) as results:
        yield results


def expected(folder, **columns):
    """What `clozify predict` says of the same texts."""
    finished = FinishedRun(folder)
    return finished.probabilities(make_rows(columns, finished.task, "the test"))


def shares(answer):
    return [list(results["probabilities"].values()) for results in answer["predictions"]]


TEXTS = ["a fine game", "", "slow\n  tool ", "the [MASK] of it", "日本語 ✨", "nul \0 byte", "utility for data. " * 20]


def test_answers_are_those_of_predict(server, folder):
    """The server has its own way from text to scores; a step left out would show in nothing but the numbers."""
    right = expected(folder, text=TEXTS)
    status, answer, _ = post(server.port, {"texts": TEXTS})
    assert status == 200
    for results, probabilities in zip(shares(answer), right.tolist(), strict=True):
        assert results == pytest.approx(probabilities, abs=1e-5)
    assert [results["label"] for results in answer["predictions"]] == [str(1 + p.argmax()) for p in right]
    assert len({round(share, 4) for share, _ in shares(answer)}) > 3  # not the same for every text
    one = post(server.port, {"text": TEXTS[0]})[1]
    row = post(server.port, {"rows": [{"text": TEXTS[0]}]})[1]
    assert shares(one)[0] == pytest.approx(right[0].tolist(), abs=1e-5)
    assert one == row


def test_rows_of_several_fields_are_answered_by_field(tiny_folder, tmp_path):
    folder = save_classifier(tiny_folder("bert"), TWO_FIELDS, tmp_path)
    with running(ServedModel(folder)) as server:
        rows = [{"title": "Mail", "text": "a fine game"}, {"text": "slow tool"}]
        results = post(server.port, {"rows": rows})[1]
        right = expected(folder, title=["Mail", ""], text=["a fine game", "slow tool"])
        assert shares(results)[0] == pytest.approx(right[0].tolist(), abs=1e-5)
        assert shares(results)[1] == pytest.approx(right[1].tolist(), abs=1e-5)
        assert post(server.port, {"text": "a"})[0] == 422
        status, answer, _ = post(server.port, {"rows": [{"titel": "Mail", "text": "x"}]})
        assert status == 422
        assert "did you mean 'title'" in answer["error"]


def test_an_ensemble_is_served_too(run, files):
    run(unlabeled=None)
    with running(ServedModel(files / "run")) as server:
        results = post(server.port, {"texts": TEXTS[:3]})[1]
        assert post(server.port, path="/health")[1]["model"] == "an ensemble of 4 members trained by PET"
    for one, right in zip(shares(results), expected(files / "run", text=TEXTS[:3]).tolist(), strict=True):
        assert one == pytest.approx(right, abs=1e-5)


def test_many_clients_at_once_each_get_their_own_answer(server, folder):
    texts = [f"{word} number {n}" for n in range(40) for word in ("game", "mail", "font")]
    right = expected(folder, text=texts).tolist()
    with ThreadPoolExecutor(24) as pool:
        results = list(pool.map(lambda text: shares(post(server.port, {"text": text})[1])[0], texts))
    assert all(one == pytest.approx(other, abs=1e-5) for one, other in zip(results, right, strict=True))
    metrics = post(server.port, path="/metrics")[1]
    batches = float(metrics.split("\nclozify_batch_rows_count ")[1].split()[0])
    assert batches < float(metrics.split("\nclozify_texts_total ")[1].split()[0])  # some shared one
    assert "clozify_waiting_requests 0.0" in metrics


BAD = {
    "not JSON": (b"text=hello", 400, "not JSON"),
    "nothing": (b"", 400, "not JSON"),
    "cut off": (b'{"text": "a', 400, "not JSON"),
    "not UTF-8": (b'{"text": "\xff\xfe"}', 400, "not JSON"),
    "a lone surrogate": (b'{"text": "\\ud800"}', 400, "not JSON"),
    "deep nesting": (b"[" * 3_000, 400, "recursion"),
    "a list": (b'["a"]', 422, "is a list, not an object"),
    "no entry": (b"{}", 422, "no key"),
    "a misspelt entry": (b'{"txt": "a"}', 422, "did you mean 'text'"),
    "two entries": (b'{"text": "a", "texts": ["a"]}', 422, "exactly one"),
    "a number": (b'{"text": 1}', 422, "'text' is a number"),
    "not a number": (b'{"text": NaN}', 422, "'text' is a number"),
    "null": (b'{"texts": ["a", null]}', 422, "'texts[1]' is null"),
    "no texts": (b'{"texts": []}', 422, "1 to 8"),
    "too many texts": (json.dumps({"texts": ["a"] * 9}).encode(), 422, "1 to 8"),
    "a text for a list": (b'{"texts": "abc"}', 422, "not a list"),
    "a text for a row": (b'{"rows": ["abc"]}', 422, "'rows[0]' is text"),
    "a row without its field": (b'{"rows": [{}]}', 422, "lacks the field 'text'"),
    "too large": (json.dumps({"text": "a" * 5_000}).encode(), 413, "4,000 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_with_a_sentence(server, name):
    body, status, words = BAD[name]
    results, answer, headers = post(server.port, body)
    assert results == status
    assert set(answer) == {"error"}
    assert words in answer["error"]
    assert headers["content-type"] == "application/json"


def test_other_addresses_methods_and_types_are_refused_in_json(server):
    assert post(server.port, path="/nothing")[0] == 404
    status, answer, headers = post(server.port, path="/predict")
    assert (status, headers["allow"]) == (405, "POST")
    assert "use POST" in answer["error"]
    status, answer, _ = post(server.port, b"text=a", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 415
    assert "application/json" in answer["error"]
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"rubbish\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]


@pytest.mark.parametrize("path", ["/metrics/", "/predict/", "/health/", "/docs/", "//"])
def test_no_path_is_redirected(server, path):
    """A redirect would go to whatever Host the client sent."""
    for body in (None, {"text": "a"}):
        status, answer, headers = post(server.port, body, path)
        assert status == 404
        assert set(answer) == {"error"}
        assert "location" not in headers


@pytest.mark.parametrize("kind", ["", "text/plain", "application/jsonp"])
def test_a_body_must_be_declared_as_json(server, kind):
    """A web page of another site can send any other type without asking first."""
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        header = f"Content-Type: {kind}\r\n" if kind else ""
        request = (
            f"POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}Content-Length: 13\r\n\r\n"
        )
        raw.sendall(request.encode() + b'{"text": "a"}')
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 415")
    assert "Content-Type: application/json" in json.loads(answer.split(b"\r\n\r\n")[1])["error"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:80",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "[::2]",
        "[",
        "10.0.0.1",
        "evil.com@localhost",
        "localhost/evil",
        "localhost:x",
    ],
)
def test_on_a_loopback_address_another_host_is_refused(server, host):
    """A web page can give its own name the address 127.0.0.1, and then read the answers."""
    for path in ("/predict", "/health", "/metrics", "/docs", "/openapi.json"):
        status, answer, _ = post(
            server.port, {"text": "a"} if path == "/predict" else None, path, headers={"Host": host}
        )
        assert status == 421
        assert f"'{host}' is not this machine" in answer["error"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9999", "[::1]", "[::1]:80"])
def test_this_machine_s_names_are_accepted_with_any_port(server, host):
    assert post(server.port, path="/health", headers={"Host": host})[0] == 200


def test_only_a_loopback_address_limits_the_host():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "example.com")] == [
        *[True] * 4,
        *[False] * 2,
    ]


def test_a_body_of_unknown_length_is_stopped_at_the_limit(server):
    """A limit on Content-Length alone lets a chunked body fill the memory."""
    sent = []

    def pieces():
        for _ in range(200):
            sent.append(1)
            yield b" " * 1_000

    status, answer, _ = post(server.port, pieces())
    assert status == 413
    assert "4,000 bytes" in answer["error"]


def test_a_full_queue_answers_429_and_recovers():
    model = Slow(TASK)
    with running(model, Limits(max_waiting=3, timeout=20)) as server, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(post, server.port, {"text": f"{1 + n % 2}"}) for n in range(3)]
        while "clozify_waiting_requests 3.0" not in post(server.port, path="/metrics")[1]:
            time.sleep(0.01)
        status, answer, headers = post(server.port, {"text": "1"})
        assert (status, headers["retry-after"]) == (429, "1")
        assert "try again" in answer["error"]
        model.gate.set()
        assert [job.result()[1]["predictions"][0]["label"] for job in waiting] == ["1", "2", "1"]
        assert post(server.port, {"text": "2"})[0] == 200


def test_a_request_that_takes_too_long_is_told_so_and_its_work_is_dropped():
    model = Slow(TASK)
    with running(model, Limits(timeout=0.3)) as server:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda n: post(server.port, {"texts": ["1"] * 20}), range(4)))
        assert [status for status, _, _ in results] == [504] * 4
        assert "0.3 seconds" in results[0][1]["error"]
        model.gate.set()
        assert post(server.port, {"text": "2"})[1]["predictions"][0]["label"] == "2"
        assert len(model.scored) <= 8 + 1  # one batch was under way


def test_a_body_that_never_ends_is_given_up():
    with (
        running(Slow(TASK), Limits(timeout=0.3)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw,
    ):
        raw.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_model_that_fails_is_a_500_in_json_and_the_server_lives_on(folder, monkeypatch):
    model = ServedModel(folder)
    with running(model) as server:
        monkeypatch.setattr(server.service.batcher, "_score", lambda texts: 1 / 0)
        status, answer, _ = post(server.port, {"text": "a"})
        assert status == 500
        assert "ZeroDivision" not in answer["error"]
        monkeypatch.setattr(server.service.batcher, "_score", model.scores)
        assert post(server.port, {"text": "a"})[0] == 200


def test_a_token_guards_predictions_and_metrics_but_not_health(folder):
    with running(ServedModel(folder), token="s3cret") as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            assert post(server.port, {"text": "a"}, headers=headers)[0] == 401
            assert post(server.port, path="/metrics", headers=headers)[0] == 401
        assert post(server.port, {"text": "a"})[2]["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer s3cret"}
        assert post(server.port, {"text": "a"}, headers=right)[0] == 200
        assert post(server.port, path="/metrics", headers=right)[0] == 200
        assert post(server.port, path="/health")[0] == 200


def test_the_documentation_needs_no_network(server):
    """A page that fetches its scripts from elsewhere is blank behind a firewall."""
    status, page, _ = post(server.port, path="/docs")
    assert status == 200
    assert not [word for word in ("<script", "https://", "src=", "@import") if word in page]
    described = post(server.port, path="/openapi.json")[1]
    assert set(described["paths"]) == {"/predict", "/health", "/metrics", "/docs"}


def test_a_stopping_server_answers_what_it_accepted_and_closes_connections():
    model = Slow(TASK)
    with ThreadPoolExecutor(4) as pool:
        with running(model) as server:
            waiting = [pool.submit(post, server.port, {"text": f"{1 + n % 2}"}) for n in range(4)]
            while "clozify_waiting_requests 4.0" not in post(server.port, path="/metrics")[1]:
                time.sleep(0.01)
            server.stop()
            assert post(server.port, path="/health")[1]["status"] == "stopping"
            model.gate.set()
        answers = [job.result() for job in waiting]
    assert [answer["predictions"][0]["label"] for _, answer, _ in answers] == ["1", "2", "1", "2"]
    assert {headers["connection"] for _, _, headers in answers} == {"close"}


@pytest.fixture
def process(folder):
    """The command itself; yields the process and its port."""
    command = [sys.executable, "-m", "clozify", "serve", str(folder), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        line = started.stdout.readline()
        yield started, int(line.split("127.0.0.1:")[1].split()[0].rstrip("/docs);"))
        if started.poll() is None:
            started.kill()


@pytest.mark.slow
def test_a_stop_answers_all_that_was_accepted_and_ends_with_status_0(process):
    """A server that just dies loses the requests it has taken, and its clients cannot know which."""
    started, port = process
    answers, messages = [], []

    def client(number):
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while True:
            try:
                kept.request("POST", "/predict", json.dumps({"texts": [f"game {number}"] * 8}), JSON)
            except ConnectionRefusedError:  # it no longer listens: nothing was accepted
                return
            answer = kept.getresponse()  # a connection that breaks off raises here
            answers.append((answer.status, len(json.loads(answer.read())["predictions"])))
            if answer.getheader("connection") == "close":
                messages.append(number)
                return
            if number % 2:
                kept.close()  # every other client takes a new connection each time

    with ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(client, number) for number in range(16)]
        while len(answers) < 32:
            time.sleep(0.01)
        started.send_signal(signal.SIGTERM)
        for one in clients:
            one.result()
    assert started.wait(20) == 0
    assert messages
    assert set(answers) == {(200, 8)}
    assert "have been answered" in started.stdout.read()


def test_what_keeps_a_server_from_starting_is_one_sentence(tmp_path, monkeypatch):
    with open_socket("127.0.0.1", 0) as taken, pytest.raises(ClozifyError, match="name another --port"):
        open_socket("127.0.0.1", taken.getsockname()[1])
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ClozifyError, match="no usable token"):
        read_token(tmp_path / "token")
    (tmp_path / "token").write_text("abc\n")
    assert read_token(tmp_path / "token") == "abc"
    monkeypatch.setenv("CLOZIFY_TOKEN", "def")
    assert read_token(None) == "def"
    with pytest.raises(ClozifyError, match="holds no run"):
        ServedModel(tmp_path)


def test_a_library_that_is_missing_is_named_with_its_extra(folder, monkeypatch, capsys):
    from clozify import cli

    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setattr(sys, "argv", ["clozify", "serve", str(folder)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "pip install 'clozify[serve]'" in capsys.readouterr().err


def test_an_answer_does_not_wait_for_the_receipt_of_its_first_packet():
    """Otherwise every answer on a kept connection takes 40 ms longer, however fast the model is."""
    with open_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
