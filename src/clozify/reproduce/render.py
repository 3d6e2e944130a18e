"""A filled exhibit for people and programs: Markdown, a page of HTML that needs nothing else, and JSON.

In: a `Filled` exhibit, and of a figure its SVG. Out: text. Each place shows ours, then the paper's value and the
difference; a place that was not run says so.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from typing import Any

from clozify.reproduce.paper import Value
from clozify.reproduce.results import Filled, Place

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


def number(value: Value | str, places: int = 1) -> str:
    """`87.5 ±0.1`, as the paper writes it."""
    if isinstance(value, str):
        return value
    std = "" if value.std is None else f" ±{value.std:.{places}f}"
    return f"{value.mean:.{places}f}{std}"


def shown(place: Place, spread: bool = True) -> str:
    """A place in one line: `87.3 ±0.2 (87.5 ±0.0; -0.2)`, or without the spread of both."""
    if not spread:
        place = replace(place, ours=_bare(place.ours), paper=_bare(place.paper))
    if place.ours is None and place.paper is None and not place.why:
        return ""
    ours = number(place.ours) if place.ours is not None else NOT_RUN if place.why else "quoted"
    if place.paper is None:
        return ours
    between = "; paper: " if isinstance(place.paper, str) else ""
    if between:
        return f"{ours}{between}{place.paper}"
    difference = "" if place.difference is None else f"; {place.difference:+.1f}"
    return f"{ours} ({number(place.paper)}{difference})"


def _bare(value: Value | str | None) -> Value | str | None:
    return Value(value.mean) if isinstance(value, Value) else value


def title(filled: Filled) -> str:
    """`Table 1`."""
    return re.sub(r"(\d)", r" \1", filled.exhibit.name).capitalize()


def explained(filled: Filled) -> str:
    """How a place is to be read."""
    if _in_words(filled):
        return "Our words, then the paper's where it has them."
    return f"Each place: our {filled.exhibit.metric} in percent, then the paper's value and the difference."


def _in_words(filled: Filled) -> bool:
    return any(isinstance(value, str) for row in filled.places for place in row for value in (place.ours, place.paper))


def markdown(filled: Filled, image: str | None = None) -> str:
    """A page of Markdown."""
    exhibit = filled.exhibit
    grouped = any(row.group for row in exhibit.rows)
    heads = [*(exhibit.heads if grouped else exhibit.heads[1:]), *exhibit.columns]
    lines = [f"# {title(filled)}", "", f"{exhibit.caption}.".replace("|", "\\|"), ""]
    if image is not None:
        lines += [f"![{title(filled)}]({image})", ""]
    lines += [
        explained(filled),
        "",
        _line(heads),
        _line(["---"] * (2 if grouped else 1) + ["---:"] * len(exhibit.columns)),
    ]
    for row, places in zip(exhibit.rows, filled.places, strict=True):
        names = [row.group, row.name] if grouped else [row.name]
        lines.append(_line([*names, *map(shown, places)]))
    lines += ["", *(f"- {note}".replace("|", "\\|") for note in filled.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def html(filled: Filled, svg: str | None = None) -> str:
    """A page of HTML with its style, and of a figure its drawing."""
    exhibit = filled.exhibit
    grouped = any(row.group for row in exhibit.rows)
    heads = [*(exhibit.heads if grouped else exhibit.heads[1:]), *exhibit.columns]
    bodies: dict[str, list[str]] = {}
    for row, places in zip(exhibit.rows, filled.places, strict=True):
        first = row.group not in bodies
        of_group = bodies.setdefault(row.group, [])
        count = sum(other.group == row.group for other in exhibit.rows)
        group = (
            f'<th class="name" scope="rowgroup" rowspan="{count}">{escape(row.group)}</th>' if grouped and first else ""
        )
        cells = "".join(_html_place(place) for place in places)
        of_group.append(f'<tr>{group}<th class="name" scope="row">{escape(row.name)}</th>{cells}</tr>')
    body = "\n".join("\n".join(['<tbody class="group">', *rows, "</tbody>"]) for rows in bodies.values())
    drawing = f"<figure>{svg[svg.index('<svg') :]}</figure>" if svg is not None else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in filled.notes)
    kinds = ["name"] * (len(heads) - len(exhibit.columns)) + ["words" if _in_words(filled) else ""] * len(
        exhibit.columns
    )
    head = "".join(f'<th scope="col" class="{k}">{escape(name)}</th>' for k, name in zip(kinds, heads, strict=True))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title(filled)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title(filled)}</h1>\n"
        f"<p>{escape(exhibit.caption)}.</p>\n{drawing}\n<p>{escape(explained(filled))}</p>\n"
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>'
        f"\n{body}\n</table></div>\n<ul>{notes}</ul>\n</body>\n</html>\n"
    )


def _html_place(place: Place) -> str:
    if place.ours is None and place.paper is None and not place.why:
        return "<td></td>"
    kind = ' class="words"' if isinstance(place.paper, str) or isinstance(place.ours, str) else ""
    if place.ours is None:
        ours = f'<span class="none">{NOT_RUN if place.why else "quoted"}</span><br>'
    else:
        value, _, std = number(place.ours).partition(" ±") if isinstance(place.ours, Value) else (place.ours, "", "")
        spread = f' <span class="std">±{std}</span>' if std else ""
        ours = f'<span class="ours">{escape(value)}{spread}</span>'
    if place.paper is None:
        return f"<td{kind}>{ours}</td>"
    sign = ""
    if place.difference is not None:
        way = "up" if round(place.difference, 1) > 0 else "down" if round(place.difference, 1) < 0 else "same"
        sign = f' <span class="{way}">{place.difference:+.1f}</span>'
    said = f' title="{escape(place.why)}"' if place.why else ""
    return f'<td{kind}{said}>{ours}<span class="paper">paper {escape(number(place.paper))}{sign}</span></td>'


def plain(filled: Filled) -> dict[str, Any]:
    """The exhibit for programs."""
    exhibit = filled.exhibit
    rows = []
    for row, places in zip(exhibit.rows, filled.places, strict=True):
        for column, place in zip(exhibit.columns, places, strict=True):
            if place.ours is None and place.paper is None and not place.why:
                continue
            rows.append(
                {"group": row.group, "row": row.name, "column": column}
                | _numbers("", place.ours)
                | _numbers("paper_", place.paper)
                | {"difference": place.difference, "not_run": place.why or None}
            )
    return {"name": exhibit.name, "caption": exhibit.caption, "places": rows, "notes": list(filled.notes)}


def _numbers(before: str, value: Value | str | None) -> dict[str, Any]:
    if isinstance(value, Value):
        return {f"{before}value": value.mean, f"{before}std": value.std}
    return {f"{before}value": value}
