"""HTML for the studio's page. All text is escaped here, because rows may contain anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from clozify.inference.explain import Explanation
from clozify.report.format import percent
from clozify.report.highlight import TextPiece, explained_texts
from clozify.report.selective import Selective
from clozify.report.svg import lines_image
from clozify.runs.explanations import ExplainedPart, ExplainedRow
from clozify.studio.finished_runs import Verdict
from clozify.studio.preview import Preview, TypedWord
from clozify.studio.preview_teachers import TeacherAnswers
from clozify.studio.run_numbers import RunNumbers

MAX_CHARACTERS, MAX_TABLE_CHARACTERS = 300, 110  # of a row's text

STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding-top: 2.5rem; padding-bottom: 4rem }
.cz-problem, .cz-note, .cz-success { padding: .45rem .7rem; border-radius: .4rem; font-size: .9rem;
  overflow-wrap: anywhere }
.cz-problem { background: rgba(220, 60, 50, .14); border-left: 3px solid rgb(220, 60, 50) }
.cz-note { background: rgba(128, 128, 128, .12) }
.cz-success { background: rgba(30, 150, 80, .14); border-left: 3px solid rgb(30, 150, 80) }
.cz-hint { font-size: .85rem; opacity: .75; overflow-wrap: anywhere }
.cz-problem p, .cz-note p, .cz-success p, .cz-hint p { margin: .1rem 0; font-size: inherit }
.cz-scroll { overflow-x: auto; max-width: 100% }
.cz-scroll table { border-collapse: collapse; font-size: .88rem; width: 100% }
.cz-scroll th, .cz-scroll td { text-align: left; vertical-align: top; padding: .35rem .5rem; border: 0;
  border-bottom: 1px solid rgba(128, 128, 128, .25) }
.cz-scroll th { font-weight: 600; white-space: nowrap }
.cz-text { min-width: 13rem; overflow-wrap: anywhere }
.cz-answer { white-space: nowrap }
.cz-small { display: block; color: light-dark(#5c5c5c, #b4b4b4); font-size: .8rem; font-weight: 400 }
.cz-differs { background: rgba(230, 160, 20, .22) }
.cz-right { color: light-dark(#0b7236, #5fd08c) } .cz-wrong { color: light-dark(#b3261e, #ff8f86) }
.cz-centre { text-align: center !important }
.cz-chip { display: inline-block; padding: .05rem .45rem; margin: .1rem .2rem .1rem 0; border-radius: .8rem;
  font-size: .85rem; background: rgba(128, 128, 128, .16); overflow-wrap: anywhere }
.cz-unusable { background: rgba(220, 60, 50, .16) }
.cz-bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .25rem .6rem; align-items: center;
  font-size: .95rem; max-width: 40rem }
.cz-bar { height: .7rem; border-radius: .35rem; background: rgba(70, 120, 220, .75); min-width: 2px }
.cz-plot { display: grid; grid-template: 12rem auto auto / auto 1fr; gap: .2rem .5rem; max-width: 34rem;
  margin: .6rem 0; font-size: .8rem; font-variant-numeric: tabular-nums }
.cz-plot img { width: 100%; height: 100%; min-width: 0 }
.cz-y { display: flex; flex-direction: column; justify-content: space-between; text-align: end; line-height: 1;
  margin: -.4rem 0 }
.cz-x { grid-column: 2; display: flex; justify-content: space-between }
.cz-keys { grid-column: 1 / -1; display: flex; flex-wrap: wrap; gap: .2rem 1.5rem }
.cz-keys span::before { content: ""; display: inline-block; width: 1.5rem; vertical-align: middle; margin-right: .4rem;
  border-top: 2.5px solid #3d84c6 }
.cz-keys span + span::before { border-top: 2.5px dashed #858585 }
.cz-told { margin: .3rem 0; padding-left: 1.2rem; font-size: .92rem }
.cz-n { text-align: right !important; white-space: nowrap }
.cz-result td, .cz-result th { font-weight: 600 }
.cz-explained p { margin: .3rem 0 } .cz-explained { line-height: 1.9; overflow-wrap: anywhere; max-width: 48rem }
.cz-explained mark { color: inherit; background: color-mix(in srgb, var(--tone) calc(var(--v) * 1%), transparent);
  border-radius: 2px; text-decoration: underline; text-decoration-color: var(--tone); text-underline-offset: 3px;
  padding: 0 .1em }
.cz-explained mark.for { --tone: #4a90d9 } .cz-explained mark.against { --tone: #d9822b; text-decoration-style: wavy }
.cz-explained mark.s1 { --v: 15 } .cz-explained mark.s2 { --v: 32 } .cz-explained mark.s3 { --v: 55 }
.cz-log { font-family: monospace; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 16rem;
  overflow-y: auto; padding: .5rem .7rem; border-radius: .4rem; background: rgba(128, 128, 128, .12) }
</style>"""


def problem(messages: Iterable[str]) -> str:
    """A red box with a paragraph for each message."""
    return _box("cz-problem", messages, ' role="alert"')


def note(messages: Iterable[str]) -> str:
    """A grey box."""
    return _box("cz-note", messages)


def hint(messages: Iterable[str]) -> str:
    """Small grey text below an input that is yet to be filled in."""
    return _box("cz-hint", messages)


def success(messages: Iterable[str]) -> str:
    """A green box."""
    return _box("cz-success", messages)


def _box(css_class: str, messages: Iterable[str], attributes: str = "") -> str:
    paragraphs = "".join(f"<p>{escape(message)}</p>" for message in messages)
    return f'<div class="{css_class}"{attributes}>{paragraphs}</div>'


def label_words(words: Sequence[TypedWord]) -> str:
    """A label's words with the model's tokens; a word that it cannot use is red."""
    return "".join(
        f'<span class="cz-chip{"" if word.is_usable else " cz-unusable"}">{escape(_with_tokens(word))}</span>'
        for word in words
    )


def _with_tokens(word: TypedWord) -> str:
    """`card arrival = card + arrival`; a word that is one token is its token."""
    tokens = " + ".join(word.tokens) or "no token"
    return tokens if word.is_usable and tokens == word.word else f"{word.word} = {tokens}"


def top_words(words: Sequence[str]) -> str:
    """The words that the model itself predicts at the mask."""
    chips = "".join(f'<span class="cz-chip">{escape(word)}</span>' for word in words)
    return f"The model's own words: {chips}"


def row_text(text: str, limit: int = MAX_CHARACTERS) -> str:
    """A row's text, shortened."""
    return escape(text if len(text) <= limit else text[:limit].rstrip() + " ...")


def answers(preview: Preview, texts: Sequence[str], truth: NDArray[np.int16] | None) -> str:
    """A table with each row's label by all together, by each pattern and by each other teacher.

    `truth` has the label indices, if known. All rules share a column.
    """
    if preview.probabilities is None or preview.ensemble is None:
        return ""
    others = [teacher for teacher in preview.teachers[1:] if teacher.kind != "rule"]
    rules = [teacher for teacher in preview.teachers[1:] if teacher.kind == "rule"]
    header = f"<th>row</th><th>{_whole(preview)}</th>" + "".join(f"<th>pattern {i + 1}</th>" for i in preview.patterns)
    header += "".join(f"<th>{escape(teacher.name)}</th>" for teacher in others) + ("<th>rules</th>" if rules else "")
    lines = []
    for row, text in enumerate(texts):
        predicted, true = int(preview.ensemble[row].argmax()), -1 if truth is None else int(truth[row])
        css_class = "" if true < 0 else " cz-right" if true == predicted else " cz-wrong"
        is_wrong = true not in (-1, predicted)
        correction = f'<span class="cz-small">label: {escape(preview.labels[true])}</span>' if is_wrong else ""
        cells = [f'<td class="cz-answer{css_class}"><b>{_answer(preview, preview.ensemble[row])}</b>{correction}</td>']
        for probabilities in preview.probabilities[:, row]:
            differs = " cz-differs" if int(probabilities.argmax()) != predicted else ""
            cells.append(f'<td class="cz-answer{differs}">{_answer(preview, probabilities)}</td>')
        cells += [_vote_cell(preview, teacher, row, predicted) for teacher in others]
        cells += [_rules_cell(preview, rules, row, predicted)] if rules else []
        lines.append(f'<tr><td class="cz-text">{row_text(text, MAX_TABLE_CHARACTERS)}</td>{"".join(cells)}</tr>')
    return f'<div class="cz-scroll" id="answers"><table><tr>{header}</tr>{"".join(lines)}</table></div>'


def _whole(preview: Preview) -> str:
    """The name of all that vote."""
    return "all teachers" if preview.teachers else "all patterns"


def _vote_cell(preview: Preview, teacher: TeacherAnswers, row: int, predicted: int) -> str:
    """A teacher's vote on a row."""
    if (vote := int(teacher.votes[row])) < 0:
        return '<td class="cz-answer">no vote</td>'
    differs = " cz-differs" if vote != predicted else ""
    return f'<td class="cz-answer{differs}">{_answer(preview, teacher.probabilities[row])}</td>'


def _rules_cell(preview: Preview, rules: Sequence[TeacherAnswers], row: int, predicted: int) -> str:
    """The votes of all rules on a row, each with the rule's name."""
    votes = [(int(rule.votes[row]), rule.name) for rule in rules]
    cast = [(vote, name) for vote, name in votes if vote >= 0]
    differs = " cz-differs" if any(vote != predicted for vote, _ in cast) else ""
    names = "".join(
        f'<div>{escape(preview.labels[vote])}<span class="cz-small">{escape(name)}</span></div>' for vote, name in cast
    )
    return f'<td class="cz-answer{differs}">{names or "no vote"}</td>'


def teachers(preview: Preview, truth: NDArray[np.int16] | None) -> str:
    """A table with each teacher's votes, weight and accuracy; nothing where patterns are alone."""
    if not preview.teachers:
        return ""
    labeled = truth is not None and bool((truth >= 0).any())
    header = "<th>teacher</th><th>kind</th><th>votes</th><th>weight</th><th>estimated accuracy</th>"
    header += "<th>right on labelled rows</th>" if labeled else ""
    lines = []
    for teacher in preview.teachers:
        votes = teacher.votes
        cells = [
            escape(teacher.kind),
            f"{int((votes >= 0).sum())} of {len(votes)}",
            f"{teacher.weight.weight:.2f}",
            f"{percent(teacher.weight.accuracy)}%",
        ]
        if labeled and truth is not None:
            accuracy = teacher.accuracy(truth)
            cells.append("" if accuracy is None else f"{percent(accuracy)}%")
        lines.append(f"<tr><th>{escape(teacher.name)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<div class="cz-scroll" id="teachers"><table><tr>{header}</tr>{"".join(lines)}</table></div>'


def _answer(preview: Preview, probabilities: NDArray[np.float64]) -> str:
    index = int(probabilities.argmax())
    return f'{escape(preview.labels[index])}<span class="cz-small">{percent(float(probabilities[index]))}%</span>'


def agreement(preview: Preview, accuracy: tuple[list[float], float] | None, labeled: int = 0) -> str:
    """A table with the agreement of each two patterns and, if labels are known, the accuracies on `labeled` rows."""
    if preview.probabilities is None:
        return ""
    names = [f"pattern {index + 1}" for index in preview.patterns]
    header = "<th></th>" + "".join(f'<th class="cz-centre">{name}</th>' for name in names)
    rows = "1 row" if labeled == 1 else f"{labeled} rows"
    header += f'<th>accuracy<span class="cz-small">on {rows}</span></th>' if accuracy else ""
    lines = []
    for index, (name, fractions) in enumerate(zip(names, preview.agreement(), strict=True)):
        cells = [
            '<td class="cz-centre">·</td>' if other == index else _agreement_cell(fraction)
            for other, fraction in enumerate(fractions)
        ]
        cells += [f"<td>{percent(accuracy[0][index])}%</td>"] if accuracy else []
        lines.append(f"<tr><th>{name}</th>{''.join(cells)}</tr>")
    if accuracy:
        whole = f'<th>{_whole(preview)}</th><td colspan="{len(names)}"></td><td>{percent(accuracy[1])}%</td>'
        lines.append(f"<tr>{whole}</tr>")
    return f'<div class="cz-scroll" id="agreement"><table><tr>{header}</tr>{"".join(lines)}</table></div>'


def _agreement_cell(fraction: float) -> str:
    style = f"background: rgba(70, 120, 220, {0.4 * fraction:.2f})"
    return f'<td class="cz-centre" style="{style}">{100 * fraction:.0f}%</td>'


def bars(probabilities: Sequence[tuple[str, float]]) -> str:
    """A bar for each label's probability."""
    lines = "".join(
        f'<span>{escape(label)}</span><span class="cz-bar" style="width: {100 * probability:.1f}%"></span>'
        f"<span>{percent(probability)}%</span>"
        for label, probability in probabilities
    )
    return f'<div class="cz-bars" id="classified">{lines}</div>'


def scores(numbers: RunNumbers) -> str:
    """A table of the scores on the test rows; accuracies have their 95% intervals, micro-F1 its exact match."""
    if not numbers.scores:
        return ""
    second = "95% interval" if numbers.metric == "accuracy" else "exact match"
    cells = "".join(f'<th class="cz-n">{name}</th>' for name in (numbers.metric, second, "macro-F1"))
    header = f"<tr><th>on {numbers.test_rows:,} test rows</th>{cells}</tr>"
    lines = []
    for score in numbers.scores:
        second = percent(score.exact_match) if score.interval is None else " to ".join(map(percent, score.interval))
        first, third = (
            _with_spread(score.accuracy, score.accuracy_std),
            _with_spread(score.macro_f1, score.macro_f1_std),
        )
        css_class = ' class="cz-result"' if score.result else ""
        cells = "".join(f'<td class="cz-n">{value}</td>' for value in (first, second, third))
        lines.append(f"<tr{css_class}><td>{escape(score.name)}</td>{cells}</tr>")
    return f'<div class="cz-scroll" id="scores"><table>{header}{"".join(lines)}</table></div>'


def _with_spread(value: float, std: float | None) -> str:
    return percent(value) + (f" \u00b1{percent(std)}" if std else "")


def risk_coverage(selective: Selective) -> str:
    """The report's drawing of risk against coverage, and its points in words."""
    highest = selective.highest
    middle = percent(highest / 2, 1 if highest < 0.2 else 0)
    image = lines_image([curve.points for curve in selective.curves], highest, selective.description)
    keys = "".join(f"<span>risk on {curve.rows:,} {escape(curve.name)}</span>" for curve in selective.curves)
    sentences = "".join(f"<li>{escape(point.sentence)}</li>" for point in selective.told.answered)
    return (
        f'<div id="risk"><div class="cz-plot"><div class="cz-y"><span>{percent(highest, 0)}%</span>'
        f'<span>{middle}%</span><span>0</span></div><img src="{image}" alt="{escape(selective.description)}">'
        f'<div class="cz-x"><span>0</span><span>coverage</span><span>100%</span></div><div class="cz-keys">{keys}</div>'
        f'</div><ul class="cz-told">{sentences}</ul>{hint([selective.source])}</div>'
    )


def verdict(decided: Verdict) -> str:
    """What an option says about a text, with the threshold below it in small letters."""
    css_class = {True: "cz-success", False: "cz-problem", None: "cz-note"}[decided.positive]
    details = "".join(f'<span class="cz-small">{escape(line)}</span>' for line in decided.details)
    return f'<div class="{css_class} cz-verdict"><p>{escape(decided.text)}</p>{details}</div>'


def explanation(explained: Explanation) -> str:
    """A row's texts with the words that moved a label, and the words with the largest effects."""
    parts = [
        ExplainedPart(field=word.field, start=word.start, end=word.end, effect=word.effect)
        for word in explained.words
        if word.effect
    ]
    row = ExplainedRow(row=0, label=explained.label, parts=parts)
    shown = explained_texts(row, list(explained.texts), list(explained.texts.values()))
    texts = "".join(f"<p>{''.join(map(_piece, pieces))}</p>" for pieces in shown.texts)
    effects = ", ".join(f"{escape(word)} {effect:+.2f}" for word, effect in shown.strongest) or "no word"
    meaning = "A number is what the word adds to the label's log-odds; words with a wavy line speak against the label."
    return (
        f'<div class="cz-explained" id="explained">{texts}'
        f"<p>For or against <b>{escape(explained.label)}</b>: {effects}.</p>{hint([meaning])}</div>"
    )


def _piece(piece: TextPiece) -> str:
    if piece.effect is None:
        return escape(piece.text)
    kind = "for" if piece.effect > 0 else "against"
    return f'<mark class="{kind} s{piece.strength}">{escape(piece.text)}</mark>'


def log(lines: Sequence[str]) -> str:
    """A run's log, newest line first."""
    return f'<div class="cz-log" id="log">{escape(chr(10).join(reversed(lines)))}</div>'
