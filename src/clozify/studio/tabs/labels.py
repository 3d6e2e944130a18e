"""The tab "Labels": the rows on display, each with a menu for its label."""

from __future__ import annotations

import streamlit as st

from clozify.studio import render
from clozify.studio.preview import Preview
from clozify.studio.project import LABELED_FILE, Project
from clozify.studio.tabs.widgets import widget_key


def draw_labels_tab(project: Project, preview: Preview) -> None:
    """Draw the tab."""
    data, draft = project.data, project.draft
    if not data.source or len(draft.labels) < 2:
        st.html(render.note(["Load rows and name the labels first, in the tab Task."]))
        return
    if "label column" in preview.problems:
        st.html(render.problem(preview.problems["label column"]))
        return
    counts = ", ".join(f"{name} {count:,}" for name, count in data.label_counts(draft).items())
    st.html(render.note([f"Label a few rows of each label to begin with. Labelled rows: {counts}."]))
    texts, labels = data.texts(draft, data.shown), data.label_indices(draft, data.shown)
    for row, text, label_index in zip(data.shown, texts, labels, strict=True):
        key = widget_key("row label", f"{data.source} {row} {'/'.join(draft.labels)}")
        with st.container(horizontal=True, vertical_alignment="center", border=True):
            st.html(f"<div style='min-width: 14rem'>{render.row_text(text)}</div>")
            st.selectbox(
                f"Label of row {row + 1}",
                draft.labels,
                index=None if label_index < 0 else int(label_index),
                placeholder="label",
                key=key,
                label_visibility="collapsed",
                width=220,
                on_change=_set_label,
                args=(project, row, key),
            )
    with st.container(horizontal=True):
        if len(data) > len(data.shown):
            st.button("Show other rows", key="other rows to label", on_click=data.show_other_rows)
        path = project.folder / LABELED_FILE
        if path.is_file():
            st.download_button(
                f"Download {LABELED_FILE}", path.read_bytes(), LABELED_FILE, "text/csv", on_click="ignore"
            )


def _set_label(project: Project, row: int, key: str) -> None:
    project.set_label(row, st.session_state[key])
