"""The tab "Task": rows, columns, patterns and label words on the left, the model's answers on the right."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from clozify.data.readers import FORMATS
from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.preview import MAX_LENGTH, Preview
from clozify.studio.project import TASK_FILE, Project
from clozify.studio.tabs.widgets import add_button, remove_button, widget_key

NO_COLUMN = "(no column)"
Slots = dict[str, DeltaGenerator]  # form field -> the space below it for its problems


def draw_task_tab(project: Project) -> Preview:
    """Draw the tab; returns the model's answers, which other tabs use."""
    left, right = st.columns([4, 6], gap="large")
    with left:
        slots: Slots = {}
        _draw_data_source(project)
        if project.data.columns:
            _draw_columns(project, slots)
        _draw_patterns(project, slots)
        _draw_words(project, slots)
    with right, st.spinner("The model is computing ...", show_time=False):
        preview = project.preview()
    for key, slot in slots.items():
        with slot.container():
            _draw_feedback(project, preview, key)
    with right:
        _draw_answers(project, preview)
    with left:
        _draw_download(project)
    return preview


def _draw_data_source(project: Project) -> None:
    st.subheader("Rows", anchor=False)
    extensions = [*(extension[1:] for extension in FORMATS), "gz"]
    upload = st.file_uploader("A file with one text per row", type=extensions, key="upload")
    if upload is not None and st.session_state.get("uploaded") != upload.file_id:
        st.session_state["uploaded"] = upload.file_id
        _try_to_load(lambda: project.upload(upload.name, upload.getvalue()))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        path = st.text_input("or a file on this machine", key="path", placeholder="reviews.csv")
        if st.button("Load") and path.strip():
            _try_to_load(lambda: project.load(path.strip()))
        if st.button("Load the sample"):
            _try_to_load(project.load_sample)
    if st.session_state.get("load problems"):
        st.html(render.problem(st.session_state["load problems"]))
    data = project.data
    if data.source:
        st.html(render.success([f"{data.source}: {len(data):,} rows with the columns {', '.join(data.columns)}."]))


def _try_to_load(load: Callable[[], None]) -> None:
    try:
        load()
    except ClozifyError as error:
        st.session_state["load problems"] = error.problems
        return
    st.session_state["load problems"] = []
    st.rerun()  # the inputs below have changed


def _draw_columns(project: Project, slots: Slots) -> None:
    draft, columns = project.draft, project.data.columns
    draft.fields = st.multiselect(
        "Columns for the patterns",
        columns,
        default=[name for name in draft.fields if name in columns],
        key=widget_key("fields"),
    )
    slots["fields"] = st.empty()
    choices = [NO_COLUMN, *columns]
    index = choices.index(draft.label) if draft.label in columns else 0
    chosen = st.selectbox("Column with labels, if there is one", choices, index=index, key=widget_key("column"))
    label = chosen if chosen != NO_COLUMN else _unused_name(columns)
    if label != draft.label:
        draft.label = label
        if project.name_labels():
            project.version += 1
            st.rerun()
    slots["label column"] = st.empty()


def _unused_name(columns: list[str]) -> str:
    """A name for the label column that no column of the file has."""
    name = "label"
    while name in columns:
        name += "_"
    return name


def _draw_patterns(project: Project, slots: Slots) -> None:
    draft = project.draft
    st.subheader("Patterns", anchor=False)
    fields = " ".join("{" + name + "}" for name in draft.fields) or "{text}"
    st.html(
        render.note([f"A sentence with the row's text and {{mask}} for the label's word: It was {{mask}}. {fields}"])
    )
    ids: list[int] = st.session_state["patterns"]
    for index, widget_id in enumerate(ids):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            draft.patterns[index] = st.text_input(
                f"Pattern {index + 1}", draft.patterns[index], key=widget_key("pattern", widget_id), live=True
            )
            if len(ids) > 1:
                key = widget_key("remove pattern", widget_id)
                remove_button(f"Remove pattern {index + 1}", key, draft.patterns, ids, index)
        slots[f"pattern {index}"] = st.empty()
    add_button("Add a pattern", draft.patterns, ids, "")


def _draw_words(project: Project, slots: Slots) -> None:
    draft = project.draft
    st.subheader("Labels and their words", anchor=False)
    ids: list[int] = st.session_state["labels"]
    for index, widget_id in enumerate(ids):
        name, words = draft.words[index]
        with st.container(horizontal=True, vertical_alignment="bottom"):
            name = st.text_input(
                f"Label {index + 1}",
                name,
                key=widget_key("label", widget_id),
                live=True,
                placeholder="label",
                label_visibility="collapsed",
            )
            words = st.text_input(
                f"Words {index + 1}",
                words,
                key=widget_key("words", widget_id),
                live=True,
                placeholder="word, or several: word, word",
                label_visibility="collapsed",
            )
            if len(ids) > 2:
                key = widget_key("remove label", widget_id)
                remove_button(f"Remove label {index + 1}", key, draft.words, ids, index)
        draft.words[index] = (name, words)
        slots[f"label {index}"] = st.empty()
    slots["labels"] = st.empty()
    slots["task"] = st.empty()
    add_button("Add a label", draft.words, ids, ("", ""))


def _draw_feedback(project: Project, preview: Preview, key: str) -> None:
    """Draw the problems of a form field, a pattern's most likely words and a label's tokens."""
    field, _, index = key.partition(" ")
    if key in preview.problems:
        st.html(render.problem(preview.problems[key]))
    if field == "pattern" and preview.top_words.get(int(index)):
        st.html(render.top_words(preview.top_words[int(index)]))
    if field == "label" and index.isdigit():
        name, words = project.draft.words[int(index)]
        if preview.split_words.get(name.strip()):
            st.html(render.label_words(words, preview.split_words[name.strip()]))


def _draw_answers(project: Project, preview: Preview) -> None:
    st.subheader("The model's answers", anchor=False)
    data, draft = project.data, project.draft
    if not data.source:
        st.html(render.note(["Load a file or the sample to see the model's answers on its rows."]))
        return
    texts = data.texts(draft, data.shown)
    if preview.probabilities is None:
        st.html(render.note(["Answers appear once there is a pattern and every label has a word."]))
        for text in texts[:5]:
            st.html(f"<p>{render.row_text(text)}</p>")
        return
    truth = None if "label column" in preview.problems else data.label_indices(draft, data.shown)
    st.html(render.agreement(preview, None if truth is None else preview.accuracy(truth)))
    st.html(
        render.note(
            [
                "Above: how often two patterns give the same label on these rows. Below: the labels before any "
                "training; an answer that differs from that of all patterns together is marked. Rows are cut at "
                f"{MAX_LENGTH} tokens."
            ]
        )
    )
    st.html(render.answers(preview, texts, truth))
    if len(data) > len(data.shown):
        st.button("Show other rows", on_click=data.show_other_rows)


def _draw_download(project: Project) -> None:
    toml = project.toml()
    if toml is None:
        return
    st.download_button(f"Download {TASK_FILE}", toml, TASK_FILE, "application/toml", on_click="ignore")
    if project.data.source:
        st.caption("The same on the command line, for all rows:")
        command = f"cd {shlex.quote(str(project.folder))}\n{project.zero_shot_command()}"
        st.code(command, language="bash", wrap_lines=True)
