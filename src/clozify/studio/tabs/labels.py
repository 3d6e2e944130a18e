"""The tab "Labels": the rows on display, each with a menu for its label."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from clozify.data.label_matrix import is_labeled, join_labels
from clozify.errors import ClozifyError, quoted
from clozify.studio import render
from clozify.studio.preview import Preview
from clozify.studio.project import Project
from clozify.studio.run_inputs import LABELED_FILE
from clozify.studio.tabs.widgets import shared_input

NONE = "(none of them)"


def draw_labels_tab(project: Project, preview: Preview) -> None:
    """Draw the tab."""
    data, draft = project.data, project.draft
    if not data.source or len(draft.labels) < 2 or "fields" in preview.problems:
        st.html(render.note(["Load rows and name the labels first, in the tab Task."]))
        return
    if "label column" in preview.problems:
        st.html(render.problem(preview.problems["label column"]))
        return
    _draw_counts(project)
    texts, labels = data.texts(draft, data.shown), data.label_indices(draft, data.shown)
    for row, text, label_index in zip(data.shown, texts, labels, strict=True):
        with st.container(border=True):
            left, right = st.columns([4, 1], vertical_alignment="center")  # one below the other on a narrow page
            left.html(render.row_text(text) or "(no text)")
            if draft.multilabel:
                _draw_label_set(right, project, row, label_index)
                continue
            label = None if label_index < 0 else draft.labels[label_index]
            right.selectbox(
                f"Label of row {row + 1}",
                draft.labels,
                index=None if label is None else draft.labels.index(label),
                placeholder="label",
                label_visibility="collapsed",
                **shared_input(
                    f"label of row {data.loads} {row}", label, partial(_set_label, project, data.loads, row)
                ),
            )
    with st.container(horizontal=True):
        if len(data) > len(data.shown):
            st.button("Show other rows", key="other rows to label", on_click=data.show_other_rows)
        path = project.folder / LABELED_FILE
        if path.is_file():
            st.download_button(
                f"Download {LABELED_FILE}", path.read_bytes(), LABELED_FILE, "text/csv", on_click="ignore"
            )


def _draw_label_set(column: Any, project: Project, row: int, has_label: NDArray[np.int16]) -> None:
    """Draw the menu of a row that may have several labels, or none of them."""
    data, draft = project.data, project.draft
    chosen = [name for name, has in zip(draft.labels, has_label, strict=True) if has == 1]
    if not chosen and is_labeled(has_label[None]).all():
        chosen = [NONE]

    def store(names: list[str]) -> None:
        if not names:
            label = None  # not labelled
        elif names[-1] == NONE:
            label = ""
        else:
            label = join_labels([name for name in names if name != NONE], draft.separator)
        _set_label(project, data.loads, row, label)

    column.multiselect(
        f"Labels of row {row + 1}",
        [NONE, *draft.labels],
        default=chosen,
        placeholder="labels",
        label_visibility="collapsed",
        **shared_input(f"labels of row {data.loads} {row}", chosen, store),
    )


def _draw_counts(project: Project) -> None:
    data, draft = project.data, project.draft
    counts = data.label_counts(draft)
    introduction = "" if all(counts.values()) else "Label a few rows of each label to begin with. "
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    messages = [f"{introduction}Labelled rows: {listed}."]
    if other := data.other_labels(draft):
        messages.append(f"Rows with the label {quoted(other)} do not count, because the task has no such label.")
    if unmatched := data.unmatched_labels():
        messages.append(f"{unmatched:,} labels belong to texts that are not in this file; they are kept.")
    st.html(render.note(messages))
    if problems := st.session_state.pop("label problems", None):
        st.html(render.problem(problems))


def _set_label(project: Project, loads: int, row: int, label: str | None) -> None:
    """Set a row's label, unless another window has loaded another file since the row was drawn."""
    try:
        with project.lock:
            if project.data.loads == loads:
                project.set_label(row, label)
    except ClozifyError as error:
        st.session_state["label problems"] = error.problems
