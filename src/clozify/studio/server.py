"""Serves the studio's page with Streamlit, on this machine only and protected by a key.

The address is http://127.0.0.1:PORT/?key=...; the key is new at every start. `AccessMiddleware` also refuses a wrong
Host header (DNS rebinding) and requests from other sites' pages, and its content security policy keeps the page from
loading anything from another host. Streamlit's settings are in `.streamlit/config.toml`.
"""

from __future__ import annotations

import secrets
import signal
import socket
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext, suppress
from html import escape
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from clozify.errors import ClozifyError, RunError
from clozify.studio.project import Project

HOSTS = ("127.0.0.1", "localhost")
REDIRECT_FILE = "open-studio.html"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_project: Project | None = None  # Streamlit runs its script without arguments


def current_project() -> Project:
    """The project that this process serves."""
    assert _project is not None
    return _project


class AccessMiddleware:
    """Passes on requests from the page itself that carry the key as a cookie; answers others with status 403.

    A request with the key in its address is redirected to `/` and gets the cookie.
    """

    def __init__(self, app: App, key: str, port: int) -> None:
        self.app = app
        self.key = key
        self.cookie = f"clozify-studio-{port}"  # cookies of all ports of a host share one namespace
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
            (b"referrer-policy", b"no-referrer"),  # or links would send the key to other sites
            (b"x-content-type-options", b"nosniff"),
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        key = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("key", [""])[0]
        if not self._is_same_origin(headers):
            await self._refuse(scope, receive, send, "This page can be opened from this machine only.")
        elif scope["type"] == "http" and secrets.compare_digest(key.encode(), self.key.encode()):
            cookie = f"{self.cookie}={self.key}; HttpOnly; SameSite=Lax; Path=/"
            await _respond(send, 303, b"", [(b"location", b"/"), (b"set-cookie", cookie.encode()), *self.headers])
        elif not self._has_cookie(headers):
            await self._refuse(scope, receive, send, "Open the address that clozify studio printed, with its key.")
        else:
            await self.app(scope, receive, self._with_headers(send))

    def _is_same_origin(self, headers: dict[str, str]) -> bool:
        """Whether the Host is this machine and the Origin, if any, is this page."""
        origin = headers.get("origin")
        return headers.get("host") in self.hosts and (
            origin is None or origin.removeprefix("http://") == headers.get("host")
        )

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        return cookie is not None and secrets.compare_digest(cookie.value.encode(), self.key.encode())

    async def _refuse(self, scope: Message, receive: Receive, send: Send, reason: str) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        await _respond(send, 403, f"{reason}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                names = {name for name, _ in headers}
                message["headers"] = headers + [(name, value) for name, value in self.headers if name not in names]
            await send(message)

        return send_with_headers


async def _respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def create_app(project: Project, key: str, port: int) -> App:
    """The studio as an ASGI application."""
    global _project
    try:
        import streamlit as st
    except ImportError:
        raise ClozifyError("The studio needs Streamlit; install it with: pip install 'clozify[studio]'.") from None
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Route

    async def report(request: Request) -> Response:
        run = project.run(int(request.path_params["number"]))
        if run is None or run.report is None:
            return PlainTextResponse("There is no report.", status_code=404)
        # in a sandbox, a report's scripts can reach neither the studio nor another host
        policy = "sandbox allow-scripts; default-src data: 'unsafe-inline'; frame-ancestors 'self'"
        return FileResponse(run.report, media_type="text/html", headers={"content-security-policy": policy})

    _project = project
    app: App = st.App(
        Path(__file__).with_name("streamlit_app.py"),
        routes=[Route("/report/{number:int}", report)],
        middleware=[Middleware(AccessMiddleware, key=key, port=port)],
    )
    return app


def serve(project: Project, port: int = 0, on_ready: Callable[[str], None] = print, browser: bool = False) -> None:
    """Serve until stopped; calls `on_ready` with the page's address, key included, once it can be opened.

    With `browser`, the page is opened in a browser too.
    """
    try:
        with socket.socket() as listening:
            _serve(project, listening, port, on_ready, browser)
    finally:
        project.close()


def _serve(
    project: Project, listening: socket.socket, port: int, on_ready: Callable[[str], None], browser: bool
) -> None:
    key = secrets.token_urlsafe(24)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listening.bind((HOSTS[0], port))
    except OSError as error:
        raise RunError(f"Port {port} cannot be used ({error.strerror}); name another, or 0 for any.") from None
    port = listening.getsockname()[1]
    app = create_app(project, key, port)
    import uvicorn

    _ = project.previewer  # loads the model, so that a wrong name fails now
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
    signal.signal(signal.SIGTERM, _exit)
    listening.listen()  # from here on a browser waits instead of being refused
    address = f"http://{HOSTS[0]}:{port}/?key={key}"
    on_ready(address)
    with redirect_file(project.folder, address) if browser else nullcontext() as path:
        if path is not None:
            webbrowser.open(path.as_uri())
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listening])  # raises the signal that stopped it


@contextmanager
def redirect_file(folder: Path, address: str) -> Iterator[Path]:
    """A page that leads to the address and that only this user can read; it is removed at the end.

    A browser's command line can be seen by every user of the machine, so it gets this file and not the key.
    """
    path = folder / REDIRECT_FILE
    path.unlink(missing_ok=True)  # of a studio that was killed
    path.touch(0o600, exist_ok=False)
    try:
        path.write_text(
            f'<!doctype html><meta charset="utf-8"><title>clozify studio</title><meta http-equiv="refresh" '
            f'content="0; url={escape(address)}"><p><a href="{escape(address)}">Open the studio</a></p>\n',
            encoding="utf-8",
        )
        yield path
    finally:
        path.unlink(missing_ok=True)


def _exit(*_: object) -> None:
    """Exit through `finally`, which stops the training run."""
    raise SystemExit(128 + signal.SIGTERM)
