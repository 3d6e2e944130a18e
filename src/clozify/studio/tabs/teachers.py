"""The part of the tab "Task" about teachers besides the patterns: their weights, and the button to ask an LLM."""

from __future__ import annotations

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.preview import Preview
from clozify.studio.project import Project

DEFAULT_BUDGET = "100requests"  # of a click


def draw_teachers(project: Project, preview: Preview, truth: NDArray[np.int16] | None) -> None:
    """Draw what teachers count for, and what asking the others would cost; nothing where patterns are alone."""
    if problems := preview.problems.get("teachers"):
        st.html(render.problem(problems))
    if preview.teachers:
        st.html(render.teachers(preview, truth))
        weights = "The weights are estimated from how teachers agree on these rows, as by clozify zero-shot."
        st.html(render.note([weights, *preview.notes]))
    if preview.unasked:
        _draw_unasked(project, preview)


def _draw_unasked(project: Project, preview: Preview) -> None:
    """Draw what LLMs cost, a budget and the button that asks them."""
    kept = "Answers are kept: none is paid for twice."
    st.html(render.note([*(teacher.sentence for teacher in preview.unasked), kept]))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        budget = st.text_input("Budget of a click: 100requests, 20000tokens or 0.50", DEFAULT_BUDGET, key="llm budget")
        is_asked = st.button("Ask about these rows", key="ask llm")
    if is_asked:
        st.session_state["llm problems"] = []
        try:
            with st.spinner("Asking ...", show_time=True):
                project.ask_llms(preview.unasked, budget)
        except ClozifyError as error:
            st.session_state["llm problems"] = error.problems
        st.rerun()
    if st.session_state.get("llm problems"):
        st.html(render.problem(st.session_state["llm problems"]))
