"""The ASGI application of `clozify serve`: routes, limits, authentication and JSON errors.

A request counts against `Limits.max_waiting` before its body is read, so the limits bound the server's memory.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozify import __version__
from clozify.data.predictions import Answers
from clozify.inference.abstaining import REASONS
from clozify.serving.batching import Batcher
from clozify.serving.docs_page import docs_page
from clozify.serving.metrics import ServerMetrics
from clozify.serving.model import ServedModel
from clozify.serving.openapi import STATUSES, openapi_schema
from clozify.serving.requests import Limits, RequestError, RequestParser

PATHS = ("/predict", "/health", "/metrics", "/docs", "/openapi.json")
DOCS_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


class PredictionService:
    """The state and the handlers behind the routes: model, batcher, limits, token and metrics."""

    def __init__(self, model: ServedModel, limits: Limits, token: str | None = None, local: bool = False) -> None:
        self.model, self.limits, self.task = model, limits, model.task
        self.local = local  # listens on a loopback address, so that every Host must be one
        self.parser = RequestParser(model.task, limits)
        self.metrics = ServerMetrics()
        columns = len(self.task.labels) + (model.abstainer.scope is not None)
        self.batcher = Batcher(model.scores, columns, model.max_batch_rows, self._observe_batch)
        for reason in REASONS if model.abstainer.abstains else ():
            self.metrics.abstained.labels(reason)  # 0 until the first one
        self.draining = False  # the server is shutting down
        self._token = None if token is None else token.encode()
        self._waiting = 0  # requests that have no answer yet

    def _observe_batch(self, rows: int) -> None:
        self.metrics.batch_rows.observe(rows)

    @property
    def protected(self) -> bool:
        """Whether clients must send a token."""
        return self._token is not None

    def check_token(self, request: Request) -> None:
        """Raise a 401 `RequestError` unless the request carries the token."""
        if self._token is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            raise RequestError(
                401,
                "The token is missing or wrong; send the header 'Authorization: Bearer TOKEN'.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def predict(self, request: Request) -> Response:
        """Handle `POST /predict`: read the body, queue its texts, wait for the scores and answer."""
        self.check_token(request)
        if self._waiting >= self.limits.max_waiting:
            raise RequestError(
                429,
                f"{self._waiting:,} requests are waiting, the limit of this server; try again in a moment.",
                {"Retry-After": "1"},
            )
        began = time.monotonic()
        self._count_waiting(+1)
        try:
            texts = self.parser.texts(await self._read_body(request))
            scores = await self._score(texts, began)
        finally:
            self._count_waiting(-1)
        self.metrics.texts.inc(len(scores))
        self.metrics.seconds.observe(time.monotonic() - began)
        return json_response(200, self._predictions(scores))

    def _count_waiting(self, change: int) -> None:
        self._waiting += change
        self.metrics.waiting.set(self._waiting)

    async def _read_body(self, request: Request) -> bytes:
        limit = self.limits.max_body
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise RequestError(
                415, f"The content type is '{content_type[:60]}'; send JSON, with 'Content-Type: application/json'."
            )
        too_large = RequestError(413, f"The body is larger than {limit:,} bytes; send fewer or shorter texts.")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise too_large
        except ClientDisconnect:
            raise RequestError(400, "The connection was closed before the end of the body.") from None
        except TimeoutError:
            raise RequestError(
                408, f"The body did not arrive within {self.limits.timeout:g} seconds; send it faster."
            ) from None
        return bytes(body)

    async def _score(self, texts: dict[str, list[str]], began: float) -> NDArray[np.float64]:
        """Raw scores, (texts, labels), or a 504 `RequestError` when the time is up."""
        if not self.batcher.alive:
            raise RequestError(503, "The model no longer answers; restart the server.")
        job = self.batcher.submit(texts)
        try:
            async with asyncio.timeout(self.limits.timeout - (time.monotonic() - began)):
                return await job.future
        except TimeoutError:
            raise RequestError(
                504,
                f"The answer was not ready within {self.limits.timeout:g} seconds; send fewer texts per request, or "
                "try again later.",
            ) from None
        finally:
            job.dropped = not job.future.done() or job.future.cancelled()

    def _predictions(self, scores: NDArray[np.float64]) -> dict[str, Any]:
        """The answer to a request whose texts have these scores, (texts, labels), maybe with out-of-scope scores."""
        labels, groups, decision = self.task.labels, self.task.label_groups, self.model.decision
        out_of_scope = scores[:, len(labels)] if scores.shape[1] > len(labels) else None
        probabilities = decision.probabilities(scores[:, : len(labels)])
        answers = self.model.abstainer.answers(probabilities, out_of_scope)
        predicted = decision.predict(probabilities)
        key, names = ("labels", decision.name_lists) if decision.multilabel else ("label", decision.names)
        predictions: list[dict[str, Any]] = [
            {key: name, "probabilities": dict(zip(labels, row, strict=True))}
            for name, row in zip(answers.keep(names(predicted)), np.round(probabilities, 6).tolist(), strict=True)
        ]
        self._add_answers(predictions, answers)
        if groups is not None:
            sums = np.round(groups.sum_columns(probabilities), 6).tolist()
            names_of_groups = answers.keep([groups.by_label[index] for index in predicted])
            for prediction, group, row in zip(predictions, names_of_groups, sums, strict=True):
                prediction["group"] = group
                prediction["group_probabilities"] = dict(zip(groups.names, row, strict=True))
        return {"predictions": predictions}

    def _add_answers(self, predictions: list[dict[str, Any]], answers: Answers) -> None:
        """Add why texts have no prediction, their prediction sets and out-of-scope scores; count the former."""
        sets = None if answers.sets is None else self.model.decision.name_lists(answers.sets)
        scores = None if answers.out_of_scope is None else np.round(answers.out_of_scope, 6).tolist()
        columns = {"abstained": answers.abstained, "prediction_set": sets, "out_of_scope": scores}
        for name, values in columns.items():
            for prediction, value in zip(predictions, values if values is not None else (), strict=values is not None):
                prediction[name] = value
        for reason in answers.abstained or ():
            if reason is not None:
                self.metrics.abstained.labels(reason).inc()

    def health(self) -> Response:
        """Handle `GET /health`: 200 while the model answers, else 503; with the task's name, fields and labels."""
        healthy = self.batcher.alive and not self.draining
        status = "ok" if healthy else "stopping" if self.draining else "the model no longer answers"
        task: dict[str, Any] = {"task": self.task.name, "fields": self.task.fields, "labels": self.task.labels}
        if lines := self.model.abstainer.lines():
            task["abstaining"] = lines
        return json_response(200 if healthy else 503, {"status": status, "model": self.model.description, **task})


def json_response(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON response, without ASCII escapes."""
    return Response(json.dumps(content, ensure_ascii=False), status, headers, "application/json")


def create_app(service: PredictionService) -> ASGIApp:
    """The FastAPI application of a service, inside `RequestMetricsMiddleware`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.close)

    app = FastAPI(
        title=f"clozify: {service.task.name}",
        version=__version__,
        docs_url=None,  # FastAPI's page loads scripts from a CDN; `docs_page` needs no network
        redoc_url=None,
        redirect_slashes=False,  # redirects would go to the Host that the client sent
        lifespan=lifespan,
    )
    _add_routes(app, service)
    _add_error_handlers(app)
    schema = openapi_schema(
        app, service.parser, service.task, service.protected, service.local, service.model.abstainer
    )
    app.openapi = lambda: schema  # type: ignore[method-assign]
    return RequestMetricsMiddleware(LoopbackHostMiddleware(app) if service.local else app, service)


def _add_routes(app: FastAPI, service: PredictionService) -> None:
    @app.post("/predict")
    async def predict(request: Request) -> Response:
        return await service.predict(request)

    @app.get("/health")
    async def health() -> Response:
        return service.health()

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.check_token(request)
        return Response(service.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/docs")
    async def docs() -> Response:
        notes = service.model.abstainer.lines()
        text = docs_page(service.task, service.parser, service.limits, service.protected, STATUSES, notes)
        return Response(text, media_type="text/html", headers=DOCS_HEADERS)


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with JSON: `{"error": "one sentence"}`."""

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        return json_response(error.status, {"error": error.message}, error.headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:100]
        message = f"There is nothing at {path}; see /docs for the addresses."
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{path} does not answer {request.method}; use {allowed}. See /docs for the addresses."
        return json_response(error.status_code, {"error": message}, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def internal_error(_: Request, __: Exception) -> Response:
        return json_response(500, {"error": "The model failed on this request; see the server's log."})


HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class LoopbackHostMiddleware:
    """Refuses requests with another Host than this machine's: a web page could send them (DNS rebinding)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            match = HOST.fullmatch(host)
            if match is None or not is_loopback(match["name"].strip("[]")):
                message = f"The Host '{host[:60]}' is not this machine; send Host: localhost (a proxy must too)."
                await json_response(421, {"error": message})(scope, receive, send)
                return
        await self.app(scope, receive, send)


class RequestMetricsMiddleware:
    """Counts responses by path and status; while the server drains, adds `Connection: close` to each."""

    def __init__(self, app: ASGIApp, service: PredictionService) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.service.metrics.requests.labels(path, message["status"]).inc()
                if self.service.draining:
                    message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        await self.app(scope, receive, counted_send)
