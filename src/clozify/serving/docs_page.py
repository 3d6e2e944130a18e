"""The page at `/docs` of a server: HTML without scripts or external files."""

from __future__ import annotations

from html import escape

from clozify.config.task import Task
from clozify.serving.requests import Limits, RequestParser

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name} - clozify</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
pre {{ background: #f4f4f4; padding: .8rem; overflow-x: auto; }}
td, th {{ text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top; }}
</style></head><body>
<h1>{name}</h1>
<p>{description}</p>
<p>Fields: {fields}. Labels: {labels}.</p>
<h2>POST /predict</h2>
<pre>curl -s {auth}-H 'Content-Type: application/json' \\
  -d '{example}' \\
  http://HOST:PORT/predict</pre>
<p>The answer has one prediction for each text, in the same order:</p>
<pre>{answer}</pre>
{notes}
<h2>Limits</h2>
<p>A request may have {limits.max_texts:,} texts and {limits.max_body:,} bytes and takes at most {limits.timeout:g}
seconds. {limits.max_waiting:,} requests may wait at a time.</p>
<table>
<tr><th>status</th><th>meaning</th></tr>
{statuses}
</table>
<p>Every error is JSON: <code>{{"error": "what is wrong and what to send instead"}}</code>.</p>
<h2>Other addresses</h2>
<ul>
<li><a href="health">GET /health</a>: whether the server answers</li>
<li><a href="metrics">GET /metrics</a>: metrics for Prometheus</li>
<li><a href="openapi.json">GET /openapi.json</a>: this documentation as OpenAPI</li>
</ul>
</body></html>
"""


def docs_page(
    task: Task, parser: RequestParser, limits: Limits, protected: bool, statuses: dict[int, str], notes: list[str]
) -> str:
    """The HTML page for a task and its limits; `protected`: clients must send a token; `notes` are sentences."""
    first = task.labels[0]
    probabilities = ", ".join(f'"{label}": 0.{"9" if label == first else "0"}...' for label in task.labels[:3])
    return PAGE.format(
        name=escape(task.name),
        description=escape(task.description or ""),
        fields=escape(", ".join(task.fields)),
        labels=escape(", ".join(task.labels)),
        auth="-H 'Authorization: Bearer TOKEN' " if protected else "",
        example=escape(parser.example.split(" or ")[0]),
        answer=escape(f'{{"predictions": [{{"label": "{first}", "probabilities": {{{probabilities}}}}}]}}'),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in notes),
        limits=limits,
        statuses="\n".join(f"<tr><td>{status}</td><td>{escape(text)}</td></tr>" for status, text in statuses.items()),
    )
