"""The server: a port, a process, signals; behind `clozify serve`.

In: a folder and options. Out: a process that answers until SIGTERM or Ctrl-C, then answers what it has accepted and
ends with status 0.
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
from clozify.serving.app import Service, make_app
from clozify.serving.model import Held
from clozify.serving.requests import Limits

TOKEN_VARIABLE = "CLOZIFY_TOKEN"
LINGER = 0.3  # seconds in which requests that were on their way when a stop was asked for still come in
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 2048


class JsonErrors(H11Protocol):
    """HTTP/1.1, with JSON for what is no HTTP at all, and without patience for connections that say nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request only so long."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong as every other error does."""
        body = json.dumps({"error": f"{msg.rstrip('.')}; send HTTP/1.1 with headers below 64 KiB."}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        with suppress(h11.LocalProtocolError):  # in the middle of another answer
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """Stops without losing a request."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop in order, with status 0; asked a second time by Ctrl-C, at once."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was sent before the stop, also over connections that were not taken on or read from yet."""
        self.service.draining = True  # answers now ask clients to close their connections
        await asyncio.sleep(LINGER)  # clients learn of it
        late = [connection for listening in sockets or [] for connection in _waiting(listening)]
        for server in self.servers:
            server.close()
        for connection in late:  # closing the port would have cut them off
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        await asyncio.sleep(LINGER)  # what they send is read
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        return JsonErrors(self.config, self.server_state, self.lifespan.state)


def _waiting(listening: socket.socket) -> Iterator[socket.socket]:
    """The connections that the system has made and nobody has taken on yet."""
    with suppress(BlockingIOError):
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            yield connection


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # as asyncio does for its own: else the second packet of an answer waits 40 ms for the receipt of the first
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServingError(
            f"The server cannot listen at {host} port {port}: {reason}; name another --port (0 is any free one) or "
            "--host."
        ) from None


def read_token(file: Path | None) -> str | None:
    """The token from a file, else from the variable CLOZIFY_TOKEN, else none."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ServingError(f"The token file '{file}' cannot be read: {error}.") from None
        where = f"file '{file}'"
    elif TOKEN_VARIABLE in os.environ:
        token, where = os.environ[TOKEN_VARIABLE].strip(), f"variable {TOKEN_VARIABLE}"
    else:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ServingError(f"The {where} holds no usable token; put one line of ASCII letters and digits into it.")
    return token


def make_server(service: Service) -> Server:
    """A server for a service, not yet listening."""
    options: dict[str, Any] = {"http": JsonErrors, "ws": "none", "log_level": "error", "server_header": False}
    config = uvicorn.Config(make_app(service), backlog=BACKLOG, h11_max_incomplete_event_size=65_536, **options)
    return Server(config, service)


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    token_file: Path | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Answer requests until a signal says to stop."""
    token = read_token(token_file)
    listening = open_socket(host, port)  # before the model is loaded: what is wrong is told at once
    try:
        service = Service(Held(folder), limits or Limits(), token)
        server = make_server(service)
        if host not in LOOPBACK and token is None:
            say("note: everybody who reaches this address may ask; set a token with --token-file.")
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        say(
            f"{service.task.name}, {service.held.kind}, answers at {address} (see {address}/docs); stop it with Ctrl-C."
        )
        server.run([listening])
    finally:
        listening.close()
    say("stopped; everything that was accepted has been answered.")
