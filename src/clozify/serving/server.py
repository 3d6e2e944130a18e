"""Runs the server of `clozify serve`: the socket, Uvicorn and a shutdown that loses no request.

On SIGTERM or Ctrl-C the server answers every request it has accepted and exits with status 0.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clozify.errors import ServingError
from clozify.serving.app import PredictionService, create_app, is_loopback
from clozify.serving.model import ServedModel
from clozify.serving.requests import Limits

TOKEN_VARIABLE = "CLOZIFY_TOKEN"
DRAIN_SECONDS = 0.3  # at shutdown, the time for requests already sent to arrive
BACKLOG = 2048


class JsonErrorProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 with JSON errors for malformed HTTP and a timeout for connections that send nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the keep-alive timeout at once, not only after a first request."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a JSON error, as the application does."""
        body = json.dumps({"error": f"{msg.rstrip('.')}; send HTTP/1.1 with headers below 64 KiB."}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        with suppress(h11.LocalProtocolError):  # another answer is being sent
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A Uvicorn server that answers every accepted request before it stops."""

    def __init__(self, config: uvicorn.Config, service: PredictionService) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Shut down gracefully on the first signal, at once on a second Ctrl-C; the exit status is 0."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer all requests sent before the signal, those on connections not accepted yet included."""
        self.service.draining = True  # answers now carry `Connection: close`
        await asyncio.sleep(DRAIN_SECONDS)  # clients close their connections
        pending = [connection for listening in sockets or [] for connection in _accept_pending(listening)]
        for server in self.servers:
            server.close()
        for connection in pending:  # after the listening socket is closed they would be reset
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, connection)
        await asyncio.sleep(DRAIN_SECONDS)  # read what they have sent
        await super().shutdown(sockets)

    def _make_protocol(self) -> asyncio.Protocol:
        return JsonErrorProtocol(self.config, self.server_state, self.lifespan.state)


def _accept_pending(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections in the socket's backlog."""
    with suppress(BlockingIOError):
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            yield connection


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # asyncio sets it on its own sockets only; without it the second packet of an answer waits 40 ms for an ACK
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServingError(
            f"The server cannot listen at {host} port {port}: {reason}; name another --port (0 for a free one) or "
            "--host."
        ) from None


def read_token(file: Path | None) -> str | None:
    """The token from a file, else from the environment variable CLOZIFY_TOKEN, else None."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ServingError(f"The token file '{file}' cannot be read: {error}.") from None
        source = f"file '{file}'"
    elif TOKEN_VARIABLE in os.environ:
        token, source = os.environ[TOKEN_VARIABLE].strip(), f"variable {TOKEN_VARIABLE}"
    else:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ServingError(f"The {source} holds no usable token; write one line of ASCII letters and digits.")
    return token


def make_server(service: PredictionService) -> Server:
    """A server for a service, not started yet."""
    options: dict[str, Any] = {"http": JsonErrorProtocol, "ws": "none", "log_level": "error", "server_header": False}
    config = uvicorn.Config(create_app(service), backlog=BACKLOG, h11_max_incomplete_event_size=65_536, **options)
    return Server(config, service)


def serve(
    load_model: Callable[[], ServedModel],
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    token_file: Path | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C."""
    token = read_token(token_file)
    listening = open_socket(host, port)  # before the model is loaded, so that a wrong port fails at once
    try:
        is_local = is_loopback(listening.getsockname()[0])
        service = PredictionService(load_model(), limits or Limits(), token, is_local)
        server = make_server(service)
        if not service.local and token is None:
            log("note: anyone who can reach this address can use the server; set a token with --token-file.")
        for note in service.model.notes:
            log(f"note: {note}")
        for line in service.model.abstainer.lines():
            log(line)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        log(
            f"{service.task.name}, {service.model.description}, answers at {address} (see {address}/docs); "
            "stop it with Ctrl-C."
        )
        server.run([listening])
    finally:
        listening.close()
    log("stopped; all accepted requests have been answered.")
