"""The tab "Run": starts a training run, shows its progress and its report."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from clozify.errors import ClozifyError
from clozify.studio import render
from clozify.studio.preview import Preview
from clozify.studio.preview_teachers import describe_cost
from clozify.studio.project import Project
from clozify.studio.run_inputs import RunSettings
from clozify.studio.runs import StudioRun
from clozify.studio.tabs.widgets import shared_input

METHODS = {"pet": "PET", "ipet": "iPET", "supervised": "supervised training, as a baseline"}
RECIPES = {"auto": "auto: chosen for this machine", "paper": "paper: needs a GPU", "original-code": "original-code"}
REFRESH_SECONDS = 1.0
NO_NUMBERS = (
    "How good the result is cannot be said: there were no test rows, and an estimate takes ten labelled rows of one "
    "label each."
)


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
    method = left.selectbox("Method", list(METHODS), format_func=lambda name: METHODS[name])
    recipe = right.selectbox("Recipe", list(RECIPES), format_func=lambda name: RECIPES[name])
    labeled = len(project.data.labeled(project.draft))
    examples = _draw_number(left, "Labelled rows to use", labeled, 0, " (0: all)")
    file = right.text_input(
        "A file with unlabelled rows, if not those of this file", placeholder="unlabelled.csv", key="unlabeled file"
    )
    problems: list[str] = []
    try:
        available = len(project.inputs.unlabeled(examples, file.strip()))
    except ClozifyError as error:
        problems, available = error.problems, 0
    unlabeled = _draw_number(left, "Unlabelled rows to use", available, 600)
    test = right.text_input("A file with labelled test rows, if there is one", placeholder="test.csv", key="test file")
    with st.expander("More settings"):
        recipe_settings = st.text_input("Recipe settings", placeholder="repetitions=2 distill.max_steps=500")
    budget = _draw_budget(project, (examples or labeled) + unlabeled) if method != "supervised" else ""
    st.html(render.note([_summary(method, examples or labeled, unlabeled, available)]))
    settings = RunSettings(method, recipe, unlabeled, examples, file, test, recipe_settings, budget)
    running = any(run.state == "running" for run in project.runs)
    if st.button("Start the run", type="primary", disabled=running or bool(problems)):
        _try(lambda: project.start(settings))
    if problems := problems or st.session_state.get("start problems", []):
        st.html(render.problem(problems))


def _draw_budget(project: Project, rows: int) -> str:
    """An input for the budget of the task's LLMs, with what they cost; nothing where it has none."""
    if not (costs := project.llm_costs(rows)):
        return ""
    sentences = [f"{name} is asked {cost.requests:,} times at most: {describe_cost(cost)}." for name, cost in costs]
    st.html(render.note([*sentences, "Test rows cost as much a row, unless the rows or the budget are limited."]))
    label = "Budget of the LLM: 500requests, 200000tokens or 1.50; empty for no limit"
    return st.text_input(label, key="run budget")


def _draw_number(column: DeltaGenerator, label: str, largest: int, default: int, remark: str = "") -> int:
    """A number input whose value stays when the largest number changes."""
    key = f"number {label}"
    value = min(st.session_state.get(f"chosen {key}", default), largest)

    def store(number: int) -> None:
        st.session_state[f"chosen {key}"] = number

    label = f"{label}, of {largest:,}{remark}"
    return int(column.number_input(label, 0, largest, value, step=1, **shared_input(key, value, store)))


def _summary(method: str, labeled: int, unlabeled: int, available: int) -> str:
    """What a run with so many rows does."""
    if method == "supervised":
        return f"Rows for training: {labeled:,} labelled. This method uses no unlabelled rows."
    rows = f"Rows for training: {labeled:,} labelled, {unlabeled:,} unlabelled."
    if unlabeled:
        return rows
    missing = "" if available else " Every row has a label: use fewer labelled rows, or name a file."
    if method == "ipet":
        return f"iPET needs unlabelled rows.{missing}"
    return f"{rows} Without unlabelled rows, the ensemble of the patterns is the classifier.{missing}"


def _try(action: Callable[[], object]) -> None:
    try:
        action()
        st.session_state["start problems"] = []
    except ClozifyError as error:
        st.session_state["start problems"] = error.problems
    st.rerun()


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
        if run.process is not None:
            st.button("Stop the run", on_click=run.stop)
    if state == "failed":
        st.html(render.problem(run.problems()))
    if state == "stopped":
        st.html(render.note(["The run was stopped; it can go on where it was, with the labels as they are now."]))
    if state in ("failed", "stopped") and run.arguments and st.button("Resume the run"):
        _try(lambda: project.resume(run))
    if state == "done":
        _draw_numbers(project, run)
    if log_lines:
        st.html(render.log(log_lines))
    if run.report is not None and state == "done":
        st.link_button("Open the report in its own page", f"/report/{run.number}")
        st.iframe(f"/report/{run.number}", height=900)


def _draw_numbers(project: Project, run: StudioRun) -> None:
    """Draw the estimated accuracy, the scores on test rows, and risk against coverage."""
    try:
        numbers = project.finished.numbers(run)
    except (ClozifyError, OSError) as error:
        st.html(render.note([f"The run's numbers cannot be shown: {' '.join(str(error).split())}"]))
        return
    if numbers.estimate is not None:
        st.html(render.success([numbers.estimate]))
    if numbers.scores:
        st.html(render.scores(numbers))
    elif numbers.estimate is None:
        st.html(render.note([NO_NUMBERS]))
    if numbers.selective is not None:
        with st.expander("Risk and coverage: how many answers are wrong if only the surest are given", expanded=True):
            st.html(render.risk_coverage(numbers.selective))
    if numbers.warnings:
        st.html(render.note(numbers.warnings))
