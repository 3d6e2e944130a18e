"""The tab "Try": classifies a text with a finished run."""

from __future__ import annotations

import streamlit as st

from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.project import Project
from clozify.studio.tabs.widgets import escape_markdown

MAX_LABELS = 20  # the likeliest


def draw_classify_tab(project: Project) -> None:
    """Draw the tab."""
    done = [run for run in reversed(project.runs) if run.state == "done"]
    if not done:
        st.html(render.note(["There is no finished run yet; start one in the tab Run."]))
        return
    number = st.selectbox("Run", [run.number for run in done], key=f"run to try {len(done)}")
    run = project.run(number)
    assert run is not None
    try:
        with st.form("try", border=False):
            texts = {
                field: st.text_area(escape_markdown(field), key=f"try {number} {field}")
                for field in project.classifier_fields(run)
            }
            submitted = st.form_submit_button("Classify", type="primary")
        if submitted:
            st.html(render.bars(project.classify(run, texts)[:MAX_LABELS]))
    except ClozifyError as error:
        st.html(render.problem(error.problems))
