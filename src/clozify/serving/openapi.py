"""The OpenAPI description of a server: FastAPI's, completed with the task's request and response schemas."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from clozify.config.task import Task
from clozify.inference.abstaining import REASONS, Abstainer
from clozify.serving.requests import RequestParser

STATUSES = {
    400: "The body is not JSON.",
    401: "The bearer token is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The content type is missing or not JSON.",
    421: "The Host is not this machine, and the server listens on a loopback address.",
    422: "The JSON does not fit this task.",
    429: "Too many requests are waiting; try again soon.",
    500: "The model failed on this request.",
    503: "The server cannot answer now.",
    504: "The answer was not ready in time.",
}
ERROR_SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
HEALTH_SCHEMA = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


def openapi_schema(
    app: FastAPI, parser: RequestParser, task: Task, protected: bool, local: bool, abstainer: Abstainer
) -> dict[str, Any]:
    """The OpenAPI document of `app` for one task's requests and labels.

    `protected`: a bearer token is required; `local`: the Host must be this machine; `abstainer`: which texts may have
    no prediction.
    """
    never = {status for status, possible in ((401, protected), (421, local)) if not possible}
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    paths = document["paths"]
    paths["/predict"]["post"] |= {
        "summary": "Classify one text or several",
        "requestBody": {"required": True, **_content("application/json", parser.schema())},
        "responses": {
            "200": _response("application/json", _predictions_schema(task, abstainer)),
            **_errors(*[status for status in STATUSES if status not in never]),
        },
    }
    paths["/health"]["get"] |= {
        "summary": "Whether the server answers",
        "responses": {
            "200": _response("application/json", HEALTH_SCHEMA),
            "503": _response("application/json", HEALTH_SCHEMA, STATUSES[503]),
        },
    }
    paths["/metrics"]["get"] |= {
        "summary": "Metrics for Prometheus",
        "responses": {"200": _response("text/plain", {"type": "string"}), **_errors(*[401] * protected)},
    }
    paths["/docs"]["get"] |= {
        "summary": "This documentation as a page",
        "responses": {"200": _response("text/html", {"type": "string"})},
    }
    if local:
        for path in ("/health", "/metrics", "/docs"):
            paths[path]["get"]["responses"] |= _errors(421)
    if protected:
        document.setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for path, method in (("/predict", "post"), ("/metrics", "get")):
            paths[path][method]["security"] = [{"bearer": []}]
    return document


def _predictions_schema(task: Task, abstainer: Abstainer) -> dict[str, Any]:
    def name(names: list[str]) -> dict[str, Any]:
        if abstainer.abstains:
            return {"type": ["string", "null"], "enum": [*names, None]}
        return {"type": "string", "enum": names}

    label = {"type": "string", "enum": task.labels}
    levels: dict[str, Any] = {"label": name(task.labels)}
    if task.multilabel:
        levels = {"labels": {"type": ["array", "null"] if abstainer.abstains else "array", "items": label}}
    probabilities = {"probabilities": _probabilities_schema(task.labels)}
    if task.label_groups is not None:
        levels["group"] = name(task.label_groups.names)
        probabilities["group_probabilities"] = _probabilities_schema(task.label_groups.names)
    if abstainer.abstains:
        levels["abstained"] = {"type": ["string", "null"], "enum": [*REASONS, None]}
    if abstainer.level is not None:
        levels["prediction_set"] = {"type": "array", "items": label, "minItems": 0 if task.multilabel else 1}
    if abstainer.scope is not None:
        levels["out_of_scope"] = {"type": "number"}
    prediction = {
        "type": "object",
        "properties": levels | probabilities,
        "required": [*levels, *probabilities],
    }
    return {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": prediction}},
        "required": ["predictions"],
    }


def _probabilities_schema(names: list[str]) -> dict[str, Any]:
    probability = {"type": "number", "minimum": 0, "maximum": 1}
    return {
        "type": "object",
        "properties": dict.fromkeys(names, probability),
        "required": names,
        "additionalProperties": False,
    }


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {media_type: {"schema": schema}}}


def _response(media_type: str, schema: dict[str, Any], description: str = "The answer.") -> dict[str, Any]:
    return {"description": description, **_content(media_type, schema)}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _response("application/json", ERROR_SCHEMA, STATUSES[status]) for status in statuses}
