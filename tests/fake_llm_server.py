"""A server on loopback that speaks OpenAI's chat protocol, answers from the text, and fails on demand."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any, dict[str, str]]  # status, content (text is sent as it is), headers


def last_text(body: dict[str, Any]) -> str:
    """The row in a request with the default prompt."""
    return body["messages"][0]["content"].split("Text:\n")[-1].split("\n\nAnswer with")[0]


def error(status: int, message: str, **headers: str) -> Reply:
    return status, {"error": {"message": message, "type": "fake", "param": None, "code": None}}, headers


class FakeLLM:
    """A context manager; `faults` are replies to the first requests, `answer` gives the text of all others.

    `logprobs` is what the server does with requests for log-probabilities: "give", "ignore" or "refuse".
    """

    def __init__(self, answer: Callable[[dict[str, Any]], str], logprobs: str = "refuse", delay: float = 0.0) -> None:
        self.answer, self.logprobs, self.delay = answer, logprobs, delay
        self.faults: list[Reply | float] = []  # a number is a delay in seconds before an ordinary answer
        self.top: Callable[[dict[str, Any]], dict[str, float]] = lambda body: {}
        self.requests: list[dict[str, Any]] = []  # bodies, as they come
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeLLM:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, content, headers = fake.reply(
                    self.path, body, {name.lower(): value for name, value in self.headers.items()}
                )
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                try:
                    self.send_response(status)
                    for name, value in {"Content-Type": "application/json", **headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # a client that has stopped waiting
                    pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def reply(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
            fault = self.faults.pop(0) if self.faults else None
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if isinstance(fault, tuple):
                return fault
            time.sleep(self.delay if fault is None else fault)
            return self._reply(path, body)
        finally:
            with self._lock:
                self.at_once -= 1

    def _reply(self, path: str, body: dict[str, Any]) -> Reply:
        if path != "/v1/chat/completions":
            return error(404, "no such address")
        if body.get("logprobs") and self.logprobs == "refuse":
            return error(400, "the field 'logprobs' is not supported")
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": self.answer(body)},
        }
        if body.get("logprobs") and self.logprobs == "give":
            top = [{"token": token, "logprob": math.log(p)} for token, p in self.top(body).items()]
            choice["message"]["content"] = top[0]["token"]
            choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        tokens = sum(len(message["content"]) // 4 + 8 for message in body["messages"])
        usage = {"prompt_tokens": tokens, "completion_tokens": 2, "total_tokens": tokens + 2}
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
        return 200, {**completion, "choices": [choice]}, {}
