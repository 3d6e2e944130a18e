"""What the page shows as HTML: plain text in, HTML out. Every text is escaped here, since rows may hold anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from clozify.report.format import percent
from clozify.studio.draft import split
from clozify.studio.preview import Look, Split

MOST, SHORT = 300, 110  # characters of a row that are shown: by itself, in a table

STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding-top: 2.5rem; padding-bottom: 4rem }
.cz-problem, .cz-note, .cz-good { padding: .45rem .7rem; border-radius: .4rem; font-size: .9rem;
  overflow-wrap: anywhere }
.cz-problem { background: rgba(220, 60, 50, .14); border-left: 3px solid rgb(220, 60, 50) }
.cz-note { background: rgba(128, 128, 128, .12) }
.cz-good { background: rgba(30, 150, 80, .14); border-left: 3px solid rgb(30, 150, 80) }
.cz-problem p, .cz-note p, .cz-good p { margin: .1rem 0 }
.cz-scroll { overflow-x: auto; max-width: 100% }
.cz-scroll table { border-collapse: collapse; font-size: .88rem; width: 100% }
.cz-scroll th, .cz-scroll td { text-align: left; vertical-align: top; padding: .35rem .5rem; border: 0;
  border-bottom: 1px solid rgba(128, 128, 128, .25) }
.cz-scroll th { font-weight: 600; white-space: nowrap }
.cz-text { min-width: 13rem; overflow-wrap: anywhere }
.cz-answer { white-space: nowrap }
.cz-share { display: block; opacity: .65; font-size: .8rem; font-weight: 400 }
.cz-odd { background: rgba(230, 160, 20, .22) }
.cz-right { color: rgb(30, 150, 80) } .cz-wrong { color: rgb(220, 60, 50) }
.cz-cell { text-align: center !important }
.cz-chip { display: inline-block; padding: .05rem .45rem; margin: .1rem .2rem .1rem 0; border-radius: .8rem;
  font-size: .85rem; background: rgba(128, 128, 128, .16); overflow-wrap: anywhere }
.cz-split { background: rgba(220, 60, 50, .16) }
.cz-bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .25rem .6rem; align-items: center;
  font-size: .95rem; max-width: 40rem }
.cz-bar { height: .7rem; border-radius: .35rem; background: rgba(70, 120, 220, .75); min-width: 2px }
.cz-log { font-family: monospace; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 16rem;
  overflow-y: auto; padding: .5rem .7rem; border-radius: .4rem; background: rgba(128, 128, 128, .12) }
</style>"""


def problem(sentences: Iterable[str]) -> str:
    """What is wrong, a line a sentence."""
    return _box("cz-problem", sentences, ' role="alert"')


def note(sentences: Iterable[str]) -> str:
    """What is worth knowing."""
    return _box("cz-note", sentences)


def good(sentences: Iterable[str]) -> str:
    """What went well."""
    return _box("cz-good", sentences)


def _box(kind: str, sentences: Iterable[str], more: str = "") -> str:
    return f'<div class="{kind}"{more}>' + "".join(f"<p>{escape(text)}</p>" for text in sentences) + "</div>"


def words(given: str, in_pieces: Sequence[Split]) -> str:
    """A label's words: each whole, or with the pieces that the model reads."""
    pieces = {found.word: found.pieces for found in in_pieces}
    return "".join(
        f'<span class="cz-chip cz-split">{escape(word)} = {escape(" + ".join(pieces[word]) or "nothing")}</span>'
        if word in pieces
        else f'<span class="cz-chip">{escape(word)}</span>'
        for word in split(given)
    )


def own_words(found: Sequence[str]) -> str:
    """What the model would say by itself in the mask's place."""
    return "The model would say: " + "".join(f'<span class="cz-chip">{escape(word)}</span>' for word in found)


def text(row: str, most: int = MOST) -> str:
    """A row, cut short."""
    return escape(row if len(row) <= most else row[:most].rstrip() + " ...")


def answers(look: Look, texts: Sequence[str], truth: NDArray[np.int16]) -> str:
    """A table: each row, what the patterns answer together and each by itself; an answer that differs is marked."""
    if look.probabilities is None or look.together is None:
        return ""
    head = "<th>row</th><th>together</th>" + "".join(f"<th>pattern {place + 1}</th>" for place in look.patterns)
    lines = []
    for row, shown in enumerate(texts):
        joint_loss, true = int(look.together[row].argmax()), int(truth[row])
        right = "" if true < 0 else " cz-right" if true == joint_loss else " cz-wrong"
        known = f'<span class="cz-share">is {escape(look.labels[true])}</span>' if true not in (-1, joint_loss) else ""
        cells = [f'<td class="cz-answer{right}"><b>{_answer(look, look.together[row])}</b>{known}</td>']
        for shares in look.probabilities[:, row]:
            odd = " cz-odd" if int(shares.argmax()) != joint_loss else ""
            cells.append(f'<td class="cz-answer{odd}">{_answer(look, shares)}</td>')
        lines.append(f'<tr><td class="cz-text">{text(shown, SHORT)}</td>{"".join(cells)}</tr>')
    return f'<div class="cz-scroll" id="answers"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _answer(look: Look, shares: NDArray[np.float64]) -> str:
    place = int(shares.argmax())
    return f'{escape(look.labels[place])}<span class="cz-share">{percent(float(shares[place]))}%</span>'


def agreement(look: Look, accuracy: tuple[list[float], float] | None) -> str:
    """How often two patterns answer alike and, where labels are known, how often each is right."""
    if look.probabilities is None:
        return ""
    shares = look.agreement()
    names = [f"pattern {place + 1}" for place in look.patterns]
    right = "<th>right</th>" if accuracy else ""
    head = "<th></th>" + "".join(f'<th class="cz-cell">{name}</th>' for name in names) + right
    lines = []
    for number, name in enumerate(names):
        cells = [
            f'<td class="cz-cell" style="background: rgba(70, 120, 220, {0.4 * share:.2f})">{100 * share:.0f}%</td>'
            if other != number
            else '<td class="cz-cell">·</td>'
            for other, share in enumerate(shares[number])
        ]
        known = f"<td>{percent(accuracy[0][number])}%</td>" if accuracy else ""
        lines.append(f"<tr><th>{name}</th>{''.join(cells)}{known}</tr>")
    if accuracy:
        lines.append(f'<tr><th>together</th><td colspan="{len(names)}"></td><td>{percent(accuracy[1])}%</td></tr>')
    return f'<div class="cz-scroll" id="agreement"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def bars(found: Sequence[tuple[str, float]]) -> str:
    """Labels and probabilities, a bar each."""
    lines = "".join(
        f'<span>{escape(label)}</span><span class="cz-bar" style="width: {100 * share:.1f}%"></span>'
        f"<span>{percent(share)}%</span>"
        for label, share in found
    )
    return f'<div class="cz-bars" id="classified">{lines}</div>'


def log(lines: Sequence[str]) -> str:
    """What a run has said, the newest first."""
    return f'<div class="cz-log" id="log">{escape(chr(10).join(reversed(lines)))}</div>'
