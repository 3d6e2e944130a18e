"""The studio's page: its title and four tabs, drawn by Streamlit from a project."""

from __future__ import annotations

import streamlit as st

from clozify.studio import render
from clozify.studio.project import Project
from clozify.studio.tabs.classify import draw_classify_tab
from clozify.studio.tabs.labels import draw_labels_tab
from clozify.studio.tabs.run import draw_run_tab
from clozify.studio.tabs.task import draw_task_tab


def draw_page(project: Project) -> None:
    """Draw the whole page from the project's current state."""
    st.set_page_config(page_title="clozify studio", layout="wide")
    st.html(render.STYLE)
    st.title("clozify studio", anchor=False)
    st.html(render.note([f"Project folder: {project.folder}. Model: {project.model_name}."]))
    notices = st.container()
    task_tab, labels_tab, run_tab, classify_tab = st.tabs(["1 Task", "2 Labels", "3 Run", "4 Try"])
    with task_tab:
        preview = draw_task_tab(project)
    with labels_tab:
        draw_labels_tab(project, preview)
    with run_tab:
        draw_run_tab(project, preview)
    with classify_tab:
        draw_classify_tab(project)
    if project.notices:  # the tabs may have added one
        with notices:
            st.html(render.problem(project.notices))
            st.button("I have read this", on_click=project.notices.clear)
