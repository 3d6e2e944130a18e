"""The server of the page: Streamlit on this machine alone, behind a door that asks for a key.

In: a session. Out: a page at http://127.0.0.1:PORT/?key=... Nobody else may drive it: the key is new every time, the
Host must be this machine's (a name that is made to point here is not enough), a request from another site's page is
refused, and the page itself may load nothing from elsewhere. Streamlit's own settings are in `.streamlit/config.toml`.
"""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from clozify.errors import ClozifyError, RunError
from clozify.studio.session import Session

HOSTS = ("127.0.0.1", "localhost")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_current: Session | None = None


def current() -> Session:
    """The session that this process serves."""
    assert _current is not None
    return _current


class Guard:
    """Lets in who knows the key and comes from the page itself; everybody else gets a sentence and status 403."""

    def __init__(self, app: App, key: str, port: int) -> None:
        self.app = app
        self.key = key
        self.cookie = f"clozify-studio-{port}"  # browsers keep cookies by host, whatever the port
        self.hosts = {f"{host}:{port}" for host in HOSTS}
        policy = {
            "default-src": "'self' data: blob: 'unsafe-inline' 'unsafe-eval'",
            "connect-src": "'self' " + " ".join(f"ws://{host}" for host in sorted(self.hosts)),
            "frame-ancestors": "'self'",
            "form-action": "'self'",
            "base-uri": "'self'",
        }
        self.headers = [
            (b"content-security-policy", "; ".join(f"{name} {value}" for name, value in policy.items()).encode()),
            (b"referrer-policy", b"no-referrer"),  # the key in the address stays here
            (b"x-content-type-options", b"nosniff"),
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("key", [""])[0]
        if not self._from_here(headers):
            await self._refuse(scope, receive, send, "This page answers this machine's own browser only.")
        elif scope["type"] == "http" and secrets.compare_digest(given.encode(), self.key.encode()):
            cookie = f"{self.cookie}={self.key}; HttpOnly; SameSite=Lax; Path=/"
            await _answer(send, 303, b"", [(b"location", b"/"), (b"set-cookie", cookie.encode()), *self.headers])
        elif not self._knows_key(headers):
            await self._refuse(scope, receive, send, "Open the address that clozify studio printed, with its key.")
        else:
            await self.app(scope, receive, self._with_headers(send))

    def _from_here(self, headers: dict[str, str]) -> bool:
        """Whether the request names this machine and, where a page sent it, that page is ours."""
        origin = headers.get("origin")
        return headers.get("host") in self.hosts and (
            origin is None or origin.removeprefix("http://") == headers.get("host")
        )

    def _knows_key(self, headers: dict[str, str]) -> bool:
        found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        return found is not None and secrets.compare_digest(found.value.encode(), self.key.encode())

    async def _refuse(self, scope: Message, receive: Receive, send: Send, why: str) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why})
            return
        await _answer(send, 403, f"{why}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])

    def _with_headers(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", []))
                named = {name for name, _ in own}
                message["headers"] = own + [(name, value) for name, value in self.headers if name not in named]
            await send(message)

        return sending


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def make_app(session: Session, key: str, port: int) -> App:
    """The page as an ASGI application."""
    global _current
    try:
        import streamlit as st
    except ImportError:
        raise ClozifyError("The studio needs Streamlit; install it with: pip install 'clozify[studio]'.") from None
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Route

    async def report(request: Request) -> Response:
        run = session.run(int(request.path_params["number"]))
        if run is None or run.report is None:
            return PlainTextResponse("There is no report.", status_code=404)
        # in a sandbox: whatever a report holds, it cannot reach the page around it, or another host
        policy = "sandbox allow-scripts; default-src data: 'unsafe-inline'; frame-ancestors 'self'"
        return FileResponse(run.report, media_type="text/html", headers={"content-security-policy": policy})

    _current = session
    app: App = st.App(
        Path(__file__).with_name("page.py"),
        routes=[Route("/report/{number:int}", report)],
        middleware=[Middleware(Guard, key=key, port=port)],
    )
    return app


def serve(session: Session, port: int = 0, told: Callable[[str], None] = print) -> None:
    """Serve until stopped; `told` is given the address, with its key, once the page can be opened."""
    key = secrets.token_urlsafe(24)
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            door.bind((HOSTS[0], port))
        except OSError as error:
            raise RunError(f"Port {port} cannot be used ({error.strerror}); name another, or 0 for any.") from None
        port = door.getsockname()[1]
        app = make_app(session, key, port)
        import uvicorn

        _ = session.looker  # the model is loaded before anybody asks, and a wrong name is told now
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
        signal.signal(signal.SIGTERM, _leave)
        door.listen()  # whoever opens the address now waits, and is not turned away
        told(f"http://{HOSTS[0]}:{port}/?key={key}")
        try:
            server.run(sockets=[door])  # raises the signal that stopped it once more
        except KeyboardInterrupt:
            pass
        finally:
            session.close()


def _leave(*_: object) -> None:
    """End in an orderly way, so that a run does not go on without anybody to watch it."""
    raise SystemExit(128 + signal.SIGTERM)
