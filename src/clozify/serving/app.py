"""The application: what is answered at which address.

In: a held model, limits and perhaps a token. Out: an ASGI application whose every error is a JSON sentence. Requests
are counted before their bodies are read, so that memory is bounded by the limits, however many come.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozify import __version__
from clozify.metrics import softmax
from clozify.serving.batching import Batcher
from clozify.serving.docs_page import page
from clozify.serving.metrics import Measures
from clozify.serving.model import Held
from clozify.serving.requests import Limits, RequestError, RequestForm

STATUSES = {
    400: "The body is not JSON.",
    401: "The bearer token is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "The JSON is not what this task needs.",
    429: "Too many requests are waiting; try again soon.",
    500: "The model failed on this request.",
    503: "The server cannot answer now.",
    504: "The answer was not ready in time.",
}
ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
PATHS = ("/predict", "/health", "/metrics", "/docs", "/openapi.json")
OPEN_PAGE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


class Service:
    """What the addresses share."""

    def __init__(self, held: Held, limits: Limits, token: str | None = None) -> None:
        self.held, self.limits, self.task = held, limits, held.task
        self.form = RequestForm(held.task, limits)
        self.measures = Measures()
        self.batcher = Batcher(held.scores, len(self.task.labels), held.rows_at_once, self.measures.batch_rows.observe)
        self.draining = False  # the server is about to stop
        self._token = None if token is None else token.encode()
        self._waiting = 0

    @property
    def protected(self) -> bool:
        """Whether a token is asked for."""
        return self._token is not None

    def check_token(self, request: Request) -> None:
        """Refuse who does not know the token."""
        if self._token is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            raise RequestError(
                401,
                "The token is missing or wrong; send the header 'Authorization: Bearer TOKEN'.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def predict(self, request: Request) -> Response:
        """Read, queue, wait, answer; all of it within the time and the room there is."""
        self.check_token(request)
        if self._waiting >= self.limits.max_waiting:
            raise RequestError(
                429,
                f"{self._waiting:,} requests are waiting, which is the most this server takes; try again in a moment.",
                {"Retry-After": "1"},
            )
        began = time.monotonic()
        self._waiting += 1
        self.measures.waiting.set(self._waiting)
        try:
            texts = self.form.texts(await self._body(request))
            scores = await self._scores(texts, began)
        finally:
            self._waiting -= 1
            self.measures.waiting.set(self._waiting)
        self.measures.texts.inc(len(scores))
        self.measures.seconds.observe(time.monotonic() - began)
        return as_json(200, self._answer(softmax(scores)))

    async def _body(self, request: Request) -> bytes:
        most = self.limits.max_body
        said = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if said != "application/json":
            raise RequestError(
                415, f"The body is said to be '{said[:60]}'; send JSON, with 'Content-Type: application/json'."
            )
        too_large = RequestError(413, f"The body is larger than {most:,} bytes; send fewer or shorter texts a request.")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except ClientDisconnect:
            raise RequestError(400, "The connection ended before the body did.") from None
        except TimeoutError:
            raise RequestError(
                408, f"The body did not arrive within {self.limits.timeout:g} seconds; send it faster."
            ) from None
        return bytes(body)

    async def _scores(self, texts: dict[str, list[str]], began: float) -> NDArray[np.float64]:
        if not self.batcher.alive:
            raise RequestError(503, "The model has stopped answering; start the server again.")
        job = self.batcher.submit(texts)
        try:
            async with asyncio.timeout(self.limits.timeout - (time.monotonic() - began)):
                return await job.future
        except TimeoutError:
            raise RequestError(
                504,
                f"The answer was not ready within {self.limits.timeout:g} seconds; send fewer texts a request, or try "
                "again when less is asked for.",
            ) from None
        finally:
            job.dropped = not job.future.done() or job.future.cancelled()

    def _answer(self, probabilities: NDArray[np.float64]) -> dict[str, Any]:
        labels = self.task.labels
        return {
            "predictions": [
                {
                    "label": labels[int(shares.argmax())],
                    "probabilities": dict(zip(labels, np.round(shares, 6).tolist(), strict=True)),
                }
                for shares in probabilities
            ]
        }

    def health(self) -> Response:
        """Whether it answers, and what."""
        well = self.batcher.alive and not self.draining
        status = "ok" if well else "stopping" if self.draining else "the model has stopped answering"
        known = {"task": self.task.name, "fields": self.task.fields, "labels": self.task.labels}
        return as_json(200 if well else 503, {"status": status, "model": self.held.kind, **known})


def as_json(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(json.dumps(content, ensure_ascii=False), status, headers, "application/json")


def make_app(service: Service) -> ASGIApp:
    """The application for a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.close)

    app = FastAPI(
        title=f"clozify: {service.task.name}",
        version=__version__,
        docs_url=None,  # its page fetches scripts from elsewhere; ours needs no network
        redoc_url=None,
        lifespan=lifespan,
    )

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        return await service.predict(request)

    @app.get("/health")
    async def health() -> Response:
        return service.health()

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.check_token(request)
        return Response(service.measures.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/docs")
    async def docs() -> Response:
        text = page(service.task, service.form, service.limits, service.protected, STATUSES)
        return Response(text, media_type="text/html", headers=OPEN_PAGE)

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        return as_json(error.status, {"error": error.sentence}, error.headers)

    @app.exception_handler(HTTPException)
    async def no_such_address(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:100]
        sentence = f"There is nothing at {path}; see /docs for what there is."
        if error.status_code == 405:
            right = (error.headers or {}).get("Allow", "another method")
            sentence = f"{path} does not answer {request.method}; use {right}. See /docs for what there is."
        return as_json(error.status_code, {"error": sentence}, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, __: Exception) -> Response:
        return as_json(500, {"error": "The model failed on this request; the server's log says why."})

    described = describe(service, app)
    app.openapi = lambda: described  # type: ignore[method-assign]
    return Watched(app, service)


class Watched:
    """Counts answers by address and status; while the server stops, each asks the client to close its connection."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.service.measures.requests.labels(path, message["status"]).inc()
                if self.service.draining:
                    message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        await self.app(scope, receive, watched)


def describe(service: Service, app: FastAPI) -> dict[str, Any]:
    """The server's OpenAPI description: FastAPI's, with this task's requests and answers."""
    content = get_openapi(title=app.title, version=app.version, routes=app.routes)
    labels = service.task.labels
    share = {"type": "number", "minimum": 0, "maximum": 1}
    prediction = {
        "type": "object",
        "properties": {
            "label": {"type": "string", "enum": labels},
            "probabilities": {
                "type": "object",
                "properties": dict.fromkeys(labels, share),
                "required": labels,
                "additionalProperties": False,
            },
        },
        "required": ["label", "probabilities"],
    }
    answer = {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": prediction}},
        "required": ["predictions"],
    }

    def of(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"content": {kind: {"schema": schema}}}

    def errors(*statuses: int) -> dict[str, Any]:
        return {str(s): {"description": STATUSES[s], **of("application/json", ERROR)} for s in statuses}

    told = {"description": "The answer."}
    locked = [401] if service.protected else []
    paths = content["paths"]
    paths["/predict"]["post"] |= {
        "summary": "Classify one text or many",
        "requestBody": {"required": True, **of("application/json", service.form.schema())},
        "responses": {
            "200": told | of("application/json", answer),
            **errors(*[status for status in STATUSES if status != 401 or service.protected]),
        },
    }
    known = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    paths["/health"]["get"] |= {
        "summary": "Whether it answers",
        "responses": {
            "200": told | of("application/json", known),
            "503": {"description": STATUSES[503], **of("application/json", known)},
        },
    }
    paths["/metrics"]["get"] |= {
        "summary": "Numbers for Prometheus",
        "responses": {"200": told | of("text/plain", {"type": "string"}), **errors(*locked)},
    }
    paths["/docs"]["get"] |= {
        "summary": "This interface, for people",
        "responses": {"200": told | of("text/html", {"type": "string"})},
    }
    if service.protected:
        content.setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for path, method in (("/predict", "post"), ("/metrics", "get")):
            paths[path][method]["security"] = [{"bearer": []}]
    return content
