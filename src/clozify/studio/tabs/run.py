"""The tab "Run": starts a training run, shows its progress and its report."""

from __future__ import annotations

import shlex

import streamlit as st

from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.preview import Preview
from clozify.studio.project import Project, RunSettings
from clozify.studio.runs import StudioRun

METHODS = {"pet": "PET", "ipet": "iPET", "supervised": "supervised training, as a baseline"}
RECIPES = {"quick": "quick: minutes on a laptop", "paper": "paper: needs a GPU", "original-code": "original-code"}
REFRESH_SECONDS = 1.0


def draw_run_tab(project: Project, preview: Preview) -> None:
    """Draw the tab."""
    if preview.problems or preview.probabilities is None:
        st.html(render.note(["A run needs rows and a task without problems; see the tab Task."]))
    else:
        _draw_start_form(project)
    if project.runs:
        run = project.runs[-1]
        interval = REFRESH_SECONDS if run.state == "running" else None
        st.fragment(_draw_run, run_every=interval)(project, run)


def _draw_start_form(project: Project) -> None:
    left, right = st.columns(2)
    rows = max(1, len(project.data))
    method = left.selectbox("Method", list(METHODS), format_func=lambda name: METHODS[name])
    recipe = right.selectbox("Recipe", list(RECIPES), format_func=lambda name: RECIPES[name])
    unlabeled = left.number_input("Unlabelled rows to use", 1, rows, min(600, rows))
    test = right.text_input("A file with labelled test rows, if there is one", placeholder="test.csv")
    with st.expander("More settings"):
        examples = st.number_input("Labelled rows to use (0: all)", 0, None, 0)
        recipe_settings = st.text_input("Recipe settings", placeholder="repetitions=2 distill.max_steps=500")
    running = any(run.state == "running" for run in project.runs)
    if st.button("Start the run", type="primary", disabled=running):
        try:
            project.start(RunSettings(method, recipe, int(unlabeled), int(examples), test, recipe_settings))
            st.session_state["start problems"] = []
        except ClozifyError as error:
            st.session_state["start problems"] = error.problems
        st.rerun()
    if st.session_state.get("start problems"):
        st.html(render.problem(st.session_state["start problems"]))


def _draw_run(project: Project, run: StudioRun) -> None:
    """Draw a run's state and log; redraws the whole page when the state changes."""
    state, log_lines = run.state, run.log_lines()
    if st.session_state.get("state") != (run.number, state):
        st.session_state["state"] = (run.number, state)
        st.rerun()
    st.subheader(f"Run {run.number}: {state}", anchor=False)
    if run.command_line:
        st.code(f"cd {shlex.quote(str(project.folder))}\n{run.command_line}", language="bash", wrap_lines=True)
    if state == "running":
        trained = run.trained_models()
        if run.expected_models:
            progress = min(1.0, trained / run.expected_models)
            st.progress(progress, f"{trained} of {run.expected_models} models trained")
        st.button("Stop the run", on_click=run.stop)
    if state == "failed":
        st.html(render.problem(run.problems()))
    if state == "stopped":
        st.html(render.note(["The run was stopped; the same command resumes it."]))
    if log_lines:
        st.html(render.log(log_lines))
    if run.report is not None and state == "done":
        st.link_button("Open the report in its own page", f"/report/{run.number}")
        st.iframe(f"/report/{run.number}", height=900)
