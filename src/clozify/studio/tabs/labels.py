"""The tab "Labels": the rows on display, each with a menu for its label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from clozify.data.label_matrix import is_labeled, join_labels
from clozify.errors import ClozifyError, quoted
from clozify.report.format import percent
from clozify.studio import render
from clozify.studio.label_help import MAX_AUDITED, DoubtfulLabel, DoubtfulLabels
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
    _draw_next_labels(project)
    _draw_doubtful_labels(project)
    _draw_rows(project, data.shown, "row")
    with st.container(horizontal=True):
        if len(data) > len(data.shown):
            st.button("Show other rows", key="other rows to label", on_click=data.show_other_rows)
        path = project.folder / LABELED_FILE
        if path.is_file():
            st.download_button(
                f"Download {LABELED_FILE}", path.read_bytes(), LABELED_FILE, "text/csv", on_click="ignore"
            )


def _draw_rows(project: Project, rows: Sequence[int], kind: str, remarks: Mapping[int, str] | None = None) -> None:
    """Draw rows with a menu each for the label; `kind` tells a row's menu from that of the same row elsewhere."""
    data, draft = project.data, project.draft
    texts, labels = data.texts(draft, list(rows)), data.label_indices(draft, list(rows))
    for row, text, label_index in zip(rows, texts, labels, strict=True):
        with st.container(border=True):
            left, right = st.columns([4, 1], vertical_alignment="center")  # one below the other on a narrow page
            remark = f'<span class="cz-small">{escape(remarks[row])}</span>' if remarks else ""
            left.html((render.row_text(text) or "(no text)") + remark)
            if draft.multilabel:
                _draw_label_set(right, project, row, label_index, kind)
                continue
            label = None if label_index < 0 else draft.labels[label_index]
            right.selectbox(
                f"Label of {kind} {row + 1}",
                draft.labels,
                index=None if label is None else draft.labels.index(label),
                placeholder="label",
                label_visibility="collapsed",
                **shared_input(
                    f"label of {kind} {data.loads} {row}", label, partial(_set_label, project, data.loads, row)
                ),
            )


def _draw_next_labels(project: Project) -> None:
    """Draw what the next labels will probably bring, and the rows to label next, by the last finished run."""
    run = next((run for run in reversed(project.runs) if run.state == "done"), None)
    if run is None:
        return
    with st.expander("What to label next", expanded=project.label_help.next_labels(project.draft) is not None):
        st.html(render.hint([f"Chosen by run {run.number}, as clozify suggest does."]))
        if st.button("Suggest rows to label"):
            with st.spinner("Choosing rows ...", show_time=False):
                _try(lambda: project.label_help.suggest(project.draft, run), "suggestion problems")
        if problems := st.session_state.get("suggestion problems"):
            st.html(render.problem(problems))
        next_labels = project.label_help.next_labels(project.draft)
        if next_labels is None:
            return
        st.html(render.success(next_labels.sentences))
        if next_labels.notes:
            st.html(render.note(next_labels.notes))
        remarks = {row.row: f"predicted so far by run {next_labels.run}: {row.prediction}" for row in next_labels.rows}
        _draw_rows(project, list(remarks), "suggested row", remarks)


def _draw_doubtful_labels(project: Project) -> None:
    """Draw the labelled rows whose label is probably wrong, to correct them."""
    data, draft = project.data, project.draft
    if draft.multilabel or not data.labeled(draft):
        return
    with st.expander("Labels that may be wrong", expanded=project.label_help.doubtful(draft) is not None):
        st.html(
            render.hint(
                [
                    f"At most {MAX_AUDITED} labelled rows are compared with what models say that were fitted without "
                    "them, as clozify audit does."
                ]
            )
        )
        if st.button("Look for wrong labels"):
            with st.spinner("Comparing labels; this may take half a minute ...", show_time=False):
                _try(lambda: project.label_help.find_doubtful(draft), "audit problems")
        if problems := st.session_state.get("audit problems"):
            st.html(render.problem(problems))
        doubtful = project.label_help.doubtful(draft)
        if doubtful is None:
            return
        st.html(render.note([_summary(doubtful), *doubtful.notes]))
        remarks = {row.row: _doubt(row) for row in doubtful.rows}
        _draw_rows(project, list(remarks), "doubtful row", remarks)


def _summary(doubtful: DoubtfulLabels) -> str:
    """How many labels may be wrong, and what to do."""
    if not doubtful.total:
        return f"None of {doubtful.searched:,} labelled rows seems to have a wrong label."
    listed = f", of which the first {len(doubtful.rows):,} are listed" if len(doubtful.rows) < doubtful.total else ""
    return (
        f"{doubtful.total:,} of {doubtful.searched:,} labelled rows may have a wrong label{listed}: look at them, the "
        "first ones first; the last ones are often right, but hard to decide."
    )


def _doubt(row: DoubtfulLabel) -> str:
    """Why a label may be wrong."""
    return (
        f"labelled {row.label} ({percent(row.label_probability, 0)}%); likelier: {row.suggestion} "
        f"({percent(row.probability, 0)}%)"
    )


def _try(action: Callable[[], object], problems: str) -> None:
    """Run an action and keep its problems for the page."""
    try:
        action()
        st.session_state[problems] = []
    except ClozifyError as error:
        st.session_state[problems] = error.problems
    st.rerun()


def _draw_label_set(column: Any, project: Project, row: int, has_label: NDArray[np.int16], kind: str) -> None:
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
        f"Labels of {kind} {row + 1}",
        [NONE, *draft.labels],
        default=chosen,
        placeholder="labels",
        label_visibility="collapsed",
        **shared_input(f"labels of {kind} {data.loads} {row}", chosen, store),
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
