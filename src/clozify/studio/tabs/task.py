"""The tab "Task": rows, columns, patterns and label words on the left, the model's answers on the right."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from clozify.data.readers import FORMATS
from clozify.data.rows import NO_LABEL
from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.preview import MAX_LENGTH, Preview
from clozify.studio.project import Project
from clozify.studio.run_inputs import TASK_FILE
from clozify.studio.tabs.teachers import draw_teachers
from clozify.studio.tabs.widgets import add_button, remove_button, shared_input

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
        if project.draft.is_empty and not project.data.source and st.button("Load the sample"):
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

    def store_fields(fields: list[str]) -> None:
        draft.fields = fields

    def store_label_column(chosen: str) -> None:
        draft.label = chosen if chosen != NO_COLUMN else _unused_name(columns)
        project.version += int(project.name_labels())

    shown = [name for name in draft.fields if name in columns]
    state = shared_input(f"fields {project.version}", shown, _if_current(project, store_fields))
    st.multiselect("Columns for the patterns", columns, default=shown, **state)
    slots["fields"] = st.empty()
    if draft.label not in columns:
        draft.label = _unused_name(columns)
    chosen, choices = draft.label if draft.label in columns else NO_COLUMN, [NO_COLUMN, *columns]
    state = shared_input(f"label column {project.version}", chosen, _if_current(project, store_label_column))
    st.selectbox("Column with labels, if there is one", choices, index=choices.index(chosen), **state)
    slots["label column"] = st.empty()

    def store_multilabel(several: bool) -> None:
        draft.multilabel = several
        project.version += 1

    state = shared_input(f"several labels {project.version}", draft.multilabel, _if_current(project, store_multilabel))
    st.checkbox("A row may have several labels, or none", draft.multilabel, **state)


def _if_current(project: Project, store: Callable[[Any], None]) -> Callable[[Any], None]:
    """`store`, unless another window has replaced the draft since this input was drawn."""
    version = project.version

    def store_if_current(value: Any) -> None:
        with project.lock:
            if project.version == version:
                store(value)

    return store_if_current


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
    for index, pattern in enumerate(draft.patterns):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            store = _if_current(project, partial(draft.patterns.__setitem__, index))
            state = shared_input(f"pattern {project.version} {index}", pattern, store)
            st.text_input(f"Pattern {index + 1}", pattern, live=True, **state)
            if len(draft.patterns) > 1:
                key = f"remove pattern {project.version} {index}"
                remove_button(f"Remove pattern {index + 1}", key, project, draft.patterns, index)
        slots[f"pattern {index}"] = st.empty()
    add_button("Add a pattern", project, draft.patterns, "")


def _draw_words(project: Project, slots: Slots) -> None:
    draft = project.draft
    st.subheader("Labels and their words", anchor=False)
    for index in range(len(draft.words)):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            _draw_word_input(project, index, 0, f"Label {index + 1}", "label")
            _draw_word_input(project, index, 1, f"Words {index + 1}", "word, or several: word, word")
            if len(draft.words) > 2:
                key = f"remove label {project.version} {index}"
                remove_button(f"Remove label {index + 1}", key, project, draft.words, index)
        slots[f"label {index}"] = st.empty()
    slots["labels"] = st.empty()
    slots["task"] = st.empty()
    add_button("Add a label", project, draft.words, ("", ""))


def _draw_word_input(project: Project, index: int, part: int, label: str, placeholder: str) -> None:
    """Draw the input of a label's name (part 0) or of its words (part 1)."""
    words = project.draft.words

    def store(value: str) -> None:
        name, text = words[index]
        words[index] = (value, text) if part == 0 else (name, value)

    text = words[index][part]
    state = shared_input(f"{label} {project.version}", text, _if_current(project, store))
    st.text_input(label, text, live=True, placeholder=placeholder, label_visibility="collapsed", **state)


def _draw_feedback(project: Project, preview: Preview, key: str) -> None:
    """Draw the problems of a form field, a pattern's most likely words and a label's tokens."""
    field, _, index = key.partition(" ")
    if key in preview.problems:
        is_hint = key in project.draft.empty_inputs()
        if not is_hint:
            st.html(render.problem(preview.problems[key]))
        elif key != "labels":  # the label without a name has a hint itself
            st.html(render.hint(preview.problems[key]))
    if field == "pattern" and preview.top_words.get(int(index)):
        st.html(render.top_words(preview.top_words[int(index)]))
    if field == "label" and index.isdigit():
        name, _ = project.draft.words[int(index)]
        if preview.words.get(name.strip()):
            st.html(render.label_words(preview.words[name.strip()]))


def _draw_answers(project: Project, preview: Preview) -> None:
    st.subheader("The model's answers", anchor=False)
    data, draft = project.data, project.draft
    if not data.source:
        st.html(render.note(["Load a file or the sample to see the model's answers on its rows."]))
        return
    if "fields" in preview.problems:
        st.html(render.note(["Answers appear once there are columns for the patterns."]))
        return
    texts = data.texts(draft, data.shown)
    if preview.probabilities is None:
        st.html(render.note(["Answers appear once there is a pattern and every label has a word."]))
        for text in texts[:5]:
            st.html(f"<p>{render.row_text(text)}</p>")
        return
    unknown = "label column" in preview.problems or draft.multilabel
    truth = None if unknown else data.label_indices(draft, data.shown)
    accuracy, labeled = (None, 0) if truth is None else (preview.accuracy(truth), int((truth != NO_LABEL).sum()))
    st.html(render.agreement(preview, accuracy, labeled))
    calibrated = "calibrated on these rows; " if preview.calibrated else ""
    explanation = (
        f"Above: how often two patterns give the same label on these rows. Below: the labels before any training, "
        f"{calibrated}an answer that differs from that of all together is marked. Rows are cut at {MAX_LENGTH} tokens."
    )
    st.html(render.note([explanation]))
    draw_teachers(project, preview, truth)
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
