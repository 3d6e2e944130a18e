"""Renders a filled table or figure as Markdown, as an HTML page without external resources, and as JSON.

A cell shows our value, then the paper's value and the difference.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from itertools import groupby
from typing import Any

from clozify.reproduce.paper import Value
from clozify.reproduce.results import CellValue, FilledTable

NOT_RUN = "not run"
STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #6b7076; --line: #d9dce0; --back: #ffffff; --head: #f4f5f7;
  --up: #1a7f37; --down: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e9eb; --soft: #9aa0a6; --line: #3a3e44; --back: #17191c;
  --head: #212429; --up: #57c278; --down: #f28b82; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; }
p, li { color: var(--soft); max-width: 60rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.2rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { background: var(--head); border-bottom: 2px solid var(--line); }
th.name, .words { text-align: left; }
td.words { white-space: normal; }
tbody.group tr:last-child > * { border-bottom-color: var(--soft); }
tbody th { font-weight: 500; vertical-align: top; }
.ours { font-weight: 600; display: block; }
.std, .paper, .none { color: var(--soft); font-weight: 400; font-size: .82em; }
.up { color: var(--up); } .down { color: var(--down); }
figure { margin: 1rem 0; padding: 1rem; background: #fff; border: 1px solid var(--line); border-radius: 6px;
  max-width: 56rem; }
figure svg { width: 100%; height: auto; display: block; }
"""


def format_value(value: Value | str) -> str:
    """`87.5 ±0.1`, as the paper writes it."""
    if isinstance(value, str):
        return value
    std = "" if value.std is None else f" ±{value.std:.1f}"
    return f"{value.mean:.1f}{std}"


def format_cell(cell: CellValue, with_std: bool = True) -> str:
    """A cell in one line: `87.3 ±0.2 (87.5 ±0.0; -0.2)`, or without the standard deviations."""
    if cell.empty:
        return ""
    if not with_std:
        cell = replace(cell, value=_without_std(cell.value), paper=_without_std(cell.paper))
    value = _format_own_value(cell)
    if cell.paper is None:
        return value
    if isinstance(cell.paper, str):
        return f"{value}; paper: {cell.paper}"
    difference = "" if cell.difference is None else f"; {cell.difference:+.1f}"
    return f"{value} ({format_value(cell.paper)}{difference})"


def _format_own_value(cell: CellValue) -> str:
    if cell.value is not None:
        return format_value(cell.value)
    return NOT_RUN if cell.not_run else "quoted"


def _without_std(value: Value | str | None) -> Value | str | None:
    return Value(value.mean) if isinstance(value, Value) else value


def title(table: FilledTable) -> str:
    """`Table 1`."""
    return re.sub(r"(\d)", r" \1", table.spec.name).capitalize()


def legend(table: FilledTable) -> str:
    """How to read a cell."""
    if table.has_words:
        return "Each cell: our words, then the paper's words, if any."
    return f"Each cell: our {table.spec.metric} in percent, then the paper's value and the difference."


def row_headers(table: FilledTable) -> list[str]:
    """The headers of the columns before the values: group and name, or name alone."""
    grouped = any(row.group for row in table.spec.rows)
    return list(table.spec.row_headers if grouped else table.spec.row_headers[1:])


def markdown(table: FilledTable, image: str | None = None) -> str:
    """A page of Markdown."""
    spec, headers = table.spec, row_headers(table)
    lines = [f"# {title(table)}", "", f"{spec.caption}.".replace("|", "\\|"), ""]
    if image is not None:
        lines += [f"![{title(table)}]({image})", ""]
    lines += [legend(table), "", _markdown_row([*headers, *spec.columns])]
    lines.append(_markdown_row(["---"] * len(headers) + ["---:"] * len(spec.columns)))
    for row, cells in zip(spec.rows, table.cells, strict=True):
        names = [row.group, row.name][-len(headers) :]
        lines.append(_markdown_row([*names, *map(format_cell, cells)]))
    lines += ["", *(f"- {note}".replace("|", "\\|") for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_row(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def html(table: FilledTable, svg: str | None = None) -> str:
    """A page of HTML with its style and, for a figure, its drawing."""
    spec, headers = table.spec, row_headers(table)
    css_class = "words" if table.has_words else ""
    header_cells = [f'<th scope="col" class="name">{escape(name)}</th>' for name in headers]
    header_cells += [f'<th scope="col" class="{css_class}">{escape(name)}</th>' for name in spec.columns]
    drawing = f"<figure>{svg[svg.index('<svg') :]}</figure>" if svg is not None else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title(table)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title(table)}</h1>\n"
        f"<p>{escape(spec.caption)}.</p>\n{drawing}\n<p>{escape(legend(table))}</p>\n"
        f'<div class="scroll"><table>\n<thead><tr>{"".join(header_cells)}</tr></thead>'
        f"\n{_html_body(table, grouped=len(headers) == 2)}\n</table></div>\n<ul>{notes}</ul>\n</body>\n</html>\n"
    )


def _html_body(table: FilledTable, grouped: bool) -> str:
    """A `tbody` for each group of rows."""
    bodies = []
    for group, members in groupby(zip(table.spec.rows, table.cells, strict=True), key=lambda line: line[0].group):
        lines = list(members)
        header = f'<th class="name" scope="rowgroup" rowspan="{len(lines)}">{escape(group)}</th>' if grouped else ""
        body = ['<tbody class="group">']
        for row, cells in lines:
            name = f'<th class="name" scope="row">{escape(row.name)}</th>'
            body.append(f"<tr>{header}{name}{''.join(map(_html_cell, cells))}</tr>")
            header = ""
        bodies.append("\n".join([*body, "</tbody>"]))
    return "\n".join(bodies)


def _html_cell(cell: CellValue) -> str:
    if cell.empty:
        return "<td></td>"
    css_class = ' class="words"' if isinstance(cell.paper, str) or isinstance(cell.value, str) else ""
    if cell.value is None:
        value = f'<span class="none">{_format_own_value(cell)}</span><br>'
    else:
        mean, _, std = (
            format_value(cell.value).partition(" ±") if isinstance(cell.value, Value) else (cell.value, "", "")
        )
        plus_minus = f' <span class="std">±{std}</span>' if std else ""
        value = f'<span class="ours">{escape(mean)}{plus_minus}</span>'
    if cell.paper is None:
        return f"<td{css_class}>{value}</td>"
    difference = ""
    if cell.difference is not None:
        rounded = round(cell.difference, 1)
        direction = "up" if rounded > 0 else "down" if rounded < 0 else "same"
        difference = f' <span class="{direction}">{cell.difference:+.1f}</span>'
    tooltip = f' title="{escape(cell.not_run)}"' if cell.not_run else ""
    paper = f'<span class="paper">paper {escape(format_value(cell.paper))}{difference}</span>'
    return f"<td{css_class}{tooltip}>{value}{paper}</td>"


def to_json(table: FilledTable) -> dict[str, Any]:
    """The table for programs."""
    spec = table.spec
    cells = [
        {"group": row.group, "row": row.name, "column": column}
        | _json_value("", cell.value)
        | _json_value("paper_", cell.paper)
        | {"difference": cell.difference, "not_run": cell.not_run or None}
        for row, row_cells in zip(spec.rows, table.cells, strict=True)
        for column, cell in zip(spec.columns, row_cells, strict=True)
        if not cell.empty
    ]
    return {"name": spec.name, "caption": spec.caption, "cells": cells, "notes": list(table.notes)}


def _json_value(prefix: str, value: Value | str | None) -> dict[str, Any]:
    if isinstance(value, Value):
        return {f"{prefix}value": value.mean, f"{prefix}std": value.std}
    return {f"{prefix}value": value}
