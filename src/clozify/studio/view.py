"""The page as Streamlit draws it: fields on the left, what the model answers on the right, then labels, runs, a try.

In: a session. Out: widgets. Nothing is worked out here; texts of rows go through `render`, which escapes them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from clozify.data.readers import FORMATS
from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.preview import MAX_LENGTH, Look
from clozify.studio.runs import Run
from clozify.studio.session import LABELED, TASK, Session

NO_COLUMN = "(no such column)"
METHODS = {"pet": "PET", "ipet": "iPET", "supervised": "supervised training, to compare with"}
RECIPES = {"quick": "quick: minutes, on a laptop", "paper": "paper: wants a GPU", "original-code": "original-code"}
SECONDS = 1.0  # between two looks at a run
Slots = dict[str, DeltaGenerator]


def show(session: Session) -> None:
    """The whole page, from the session as it stands."""
    st.set_page_config(page_title="clozify studio", layout="wide")
    st.html(render.STYLE)
    st.title("clozify studio", anchor=False)
    st.html(render.note([f"Everything is kept in {session.folder}; the model is {session.model_name}."]))
    if st.session_state.get("version") != session.version:
        st.session_state["version"] = session.version
        st.session_state["patterns"] = list(range(len(session.draft.patterns)))
        st.session_state["labels"] = list(range(len(session.draft.words)))
        st.session_state["next"] = 1000
    about_task, about_labels, about_runs, about_trying = st.tabs(["1 Task", "2 Labels", "3 Run", "4 Try"])
    with about_task:
        look = _show_task(session)
    with about_labels:
        _show_labels(session, look)
    with about_runs:
        _show_runs(session, look)
    with about_trying:
        _show_trying(session)


def plain(text: str) -> str:
    """A text as it is, where Streamlit would read Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~$<>:^])", r"\\\1", text)


def _key(what: str, number: int | str = "") -> str:
    """A widget's key; another draft has other widgets."""
    return f"{what} {st.session_state['version']} {number}"


# the task


def _show_task(session: Session) -> Look:
    left, right = st.columns([4, 6], gap="large")
    with left:
        slots: Slots = {}
        _rows(session)
        if session.columns:
            _columns(session, slots)
        _patterns(session, slots)
        _words(session, slots)
    with right, st.spinner("The model answers ...", show_time=False):
        look = session.look()
    for place, slot in slots.items():
        with slot.container():
            _beside(session, look, place)
    with right:
        _answers(session, look)
    with left:
        _take_away(session)
    return look


def _rows(session: Session) -> None:
    st.subheader("Rows", anchor=False)
    kinds = [*(ending[1:] for ending in FORMATS), "gz"]
    given = st.file_uploader("A file with a text in each row", type=kinds, key="upload")
    if given is not None and st.session_state.get("uploaded") != given.file_id:
        st.session_state["uploaded"] = given.file_id
        _try_to_load(lambda: session.upload(given.name, given.getvalue()))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input("or its name on this machine", key="path", placeholder="reviews.csv")
        if st.button("Load") and name.strip():
            _try_to_load(lambda: session.load(name.strip()))
        if st.button("Load the sample"):
            _try_to_load(session.load_sample)
    if st.session_state.get("load problems"):
        st.html(render.problem(st.session_state["load problems"]))
    if session.source:
        st.html(render.good([f"{session.source}: {len(session):,} rows with {', '.join(session.columns)}."]))


def _try_to_load(load: Callable[[], None]) -> None:
    try:
        load()
    except ClozifyError as error:
        st.session_state["load problems"] = error.problems
        return
    st.session_state["load problems"] = []
    st.rerun()  # the fields below are others now


def _columns(session: Session, slots: Slots) -> None:
    draft = session.draft
    draft.fields = st.multiselect(
        "Columns that a pattern may use",
        session.columns,
        default=[name for name in draft.fields if name in session.columns],
        key=_key("fields"),
    )
    slots["fields"] = st.empty()
    choices = [NO_COLUMN, *session.columns]
    place = choices.index(draft.label) if draft.label in session.columns else 0
    chosen = st.selectbox("Column that holds labels, where there is one", choices, index=place, key=_key("column"))
    label = chosen if chosen != NO_COLUMN else _free_name(session.columns)
    if label != draft.label:
        draft.label = label
        if session.take_labels():
            session.version += 1
            st.rerun()
    slots["label column"] = st.empty()


def _free_name(columns: list[str]) -> str:
    """A name for the column of labels that no column of the file has."""
    name = "label"
    while name in columns:
        name += "_"
    return name


def _patterns(session: Session, slots: Slots) -> None:
    draft = session.draft
    st.subheader("Patterns", anchor=False)
    fields = " ".join("{" + name + "}" for name in draft.fields) or "{text}"
    st.html(render.note([f"A sentence around a row, with {{mask}} where a word belongs: It was {{mask}}. {fields}"]))
    numbers: list[int] = st.session_state["patterns"]
    for place, number in enumerate(numbers):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            draft.patterns[place] = st.text_input(
                f"Pattern {place + 1}", draft.patterns[place], key=_key("pattern", number), live=True
            )
            if len(numbers) > 1:
                _remove_button(
                    f"Remove pattern {place + 1}", _key("no pattern", number), draft.patterns, numbers, place
                )
        slots[f"pattern {place}"] = st.empty()
    st.button("Add a pattern", on_click=_add, args=(draft.patterns, numbers, ""))


def _words(session: Session, slots: Slots) -> None:
    draft = session.draft
    st.subheader("Labels and their words", anchor=False)
    numbers: list[int] = st.session_state["labels"]
    for place, number in enumerate(numbers):
        name, words = draft.words[place]
        with st.container(horizontal=True, vertical_alignment="bottom"):
            name = st.text_input(
                f"Label {place + 1}",
                name,
                key=_key("label", number),
                live=True,
                placeholder="label",
                label_visibility="collapsed",
            )
            words = st.text_input(
                f"Words {place + 1}",
                words,
                key=_key("words", number),
                live=True,
                placeholder="its word or words",
                label_visibility="collapsed",
            )
            if len(numbers) > 2:
                _remove_button(f"Remove label {place + 1}", _key("no label", number), draft.words, numbers, place)
        draft.words[place] = (name, words)
        slots[f"label {place}"] = st.empty()
    slots["labels"] = st.empty()
    slots["task"] = st.empty()
    st.button("Add a label", on_click=_add, args=(draft.words, numbers, ("", "")))


def _remove_button(what: str, key: str, entries: list[Any], numbers: list[int], place: int) -> None:
    st.button("\u00d7", key=key, help=what, on_click=_remove, args=(entries, numbers, place))


def _remove(entries: list[Any], numbers: list[int], place: int) -> None:
    del entries[place], numbers[place]


def _add(entries: list[Any], numbers: list[int], entry: object) -> None:
    entries.append(entry)
    numbers.append(st.session_state["next"])
    st.session_state["next"] += 1


def _beside(session: Session, look: Look, place: str) -> None:
    """What there is to say beside a field."""
    kind, _, number = place.partition(" ")
    if place in look.problems:
        st.html(render.problem(look.problems[place]))
    if kind == "pattern" and look.own.get(int(number)):
        st.html(render.own_words(look.own[int(number)]))
    if kind == "label" and number.isdigit():
        name, words = session.draft.words[int(number)]
        if look.split.get(name.strip()):
            st.html(render.words(words, look.split[name.strip()]))


def _answers(session: Session, look: Look) -> None:
    st.subheader("What the model answers", anchor=False)
    if not session.source:
        st.html(render.note(["Load a file, or the sample, to see answers on its rows."]))
        return
    shown = session.shown
    if look.probabilities is None:
        st.html(render.note(["Answers appear once there is a pattern and every label has a word."]))
        for row in session.texts(shown)[:5]:
            st.html(f"<p>{render.text(row)}</p>")
        return
    known = "label column" not in look.problems
    truth = session.truth(shown) if known else session.nobody_knows(shown)
    st.html(render.agreement(look, look.accuracy(truth)))
    st.html(
        render.note(
            [
                "Above: on how many of these rows two patterns answer alike. Below: the answers before any training; "
                f"one that differs from the joint answer is marked. A row is read up to {MAX_LENGTH} tokens."
            ]
        )
    )
    st.html(render.answers(look, session.texts(shown), truth))
    if len(session) > len(shown):
        st.button("Other rows", on_click=session.more_rows)


def _take_away(session: Session) -> None:
    toml = session.toml()
    if toml is None:
        return
    st.download_button(f"Take {TASK} away", toml, TASK, "application/toml", on_click="ignore")
    if session.source:
        st.caption("The same on the command line, for all rows:")
        st.code(
            f"cd {shlex.quote(str(session.folder))}\n{session.zero_shot_command()}", language="bash", wrap_lines=True
        )


# labels


def _show_labels(session: Session, look: Look) -> None:
    if not session.source or len(session.draft.labels) < 2:
        st.html(render.note(["Load rows and name the labels first."]))
        return
    if "label column" in look.problems:
        st.html(render.problem(look.problems["label column"]))
        return
    counts = ", ".join(f"{name} {count:,}" for name, count in session.labeled().items())
    st.html(render.note([f"A few rows of each label are enough to begin with. So far: {counts}."]))
    shown, names = session.shown, session.draft.labels
    for row, text, place in zip(shown, session.texts(shown), session.truth(shown), strict=True):
        with st.container(horizontal=True, vertical_alignment="center", border=True):
            st.html(f"<div style='min-width: 14rem'>{render.text(text)}</div>")
            st.selectbox(
                f"Label of row {row + 1}",
                names,
                index=None if place < 0 else int(place),
                placeholder="label",
                key=_key("given", f"{session.source} {row} {'/'.join(names)}"),
                label_visibility="collapsed",
                width=220,
                on_change=_give,
                args=(session, row, _key("given", f"{session.source} {row} {'/'.join(names)}")),
            )
    with st.container(horizontal=True):
        if len(session) > len(shown):
            st.button("Other rows", key="other rows to label", on_click=session.more_rows)
        if (session.folder / LABELED).is_file():
            content = (session.folder / LABELED).read_bytes()
            st.download_button(f"Take {LABELED} away", content, LABELED, "text/csv", on_click="ignore")


def _give(session: Session, row: int, key: str) -> None:
    session.set_label(row, st.session_state[key])


# runs


def _show_runs(session: Session, look: Look) -> None:
    if look.problems or look.probabilities is None:
        st.html(render.note(["A run needs rows and a task without problems; see the first page."]))
    else:
        _start(session)
    if session.runs:
        run = session.runs[-1]
        every = SECONDS if run.state == "running" else None
        st.fragment(_watch, run_every=every)(session, run)


def _start(session: Session) -> None:
    left, right = st.columns(2)
    method = left.selectbox("Method", list(METHODS), format_func=lambda name: METHODS[name])
    recipe = right.selectbox("Recipe", list(RECIPES), format_func=lambda name: RECIPES[name])
    pile = left.number_input("Unlabelled rows to use", 1, max(1, len(session)), min(600, max(1, len(session))))
    test = right.text_input("A file with labelled rows to measure on, if there is one", placeholder="test.csv")
    with st.expander("More settings"):
        examples = st.number_input("Use so many of the labelled rows (0: all)", 0, None, 0)
        settings = st.text_input("Settings of the recipe", placeholder="repetitions=2 distill.max_steps=500")
    running = any(run.state == "running" for run in session.runs)
    if st.button("Start the run", type="primary", disabled=running):
        try:
            session.start(method, recipe, int(pile), int(examples), test, settings)
            st.session_state["start problems"] = []
        except ClozifyError as error:
            st.session_state["start problems"] = error.problems
        st.rerun()
    if st.session_state.get("start problems"):
        st.html(render.problem(st.session_state["start problems"]))


def _watch(session: Session, run: Run) -> None:
    """A run as it goes; when it has ended, the rest of the page is drawn anew."""
    state, lines = run.state, run.lines()
    if st.session_state.get("state") != (run.number, state):
        st.session_state["state"] = (run.number, state)
        st.rerun()
    st.subheader(f"Run {run.number}: {state}", anchor=False)
    if run.command_line:
        st.code(f"cd {shlex.quote(str(session.folder))}\n{run.command_line}", language="bash", wrap_lines=True)
    if state == "running":
        trained = run.trained()
        if run.expected:
            st.progress(min(1.0, trained / run.expected), f"{trained} of {run.expected} models trained")
        st.button("Stop the run", on_click=run.stop)
    if state == "failed":
        st.html(render.problem(run.problems()))
    if state == "stopped":
        st.html(render.note(["The run was stopped; given again, its command goes on where it was."]))
    if lines:
        st.html(render.log(lines))
    if run.report is not None and state == "done":
        st.link_button("Open the report by itself", f"/report/{run.number}")
        st.iframe(f"/report/{run.number}", height=900)


# a try


def _show_trying(session: Session) -> None:
    done = [run for run in reversed(session.runs) if run.state == "done"]
    if not done:
        st.html(render.note(["There is no finished run yet."]))
        return
    number = st.selectbox("Run", [run.number for run in done], key=f"run to try {len(done)}")
    run = session.run(number)
    assert run is not None
    try:
        with st.form("try", border=False):
            texts = {name: st.text_area(plain(name), key=f"try {number} {name}") for name in session.fields_of(run)}
            asked = st.form_submit_button("Classify", type="primary")
        if asked:
            st.html(render.bars(session.classify(run, texts)))
    except ClozifyError as error:
        st.html(render.problem(error.problems))
