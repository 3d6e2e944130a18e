"""The tab "Try": classifies a text with a finished run, and says what the options of `clozify predict` make of it."""

from __future__ import annotations

import shlex

import streamlit as st

from clozify.errors import ClozifyError
from clozify.inference.abstaining import REJECTED, AbstainOptions
from clozify.studio import render
from clozify.studio.finished_runs import predict_command
from clozify.studio.project import Project
from clozify.studio.runs import StudioRun
from clozify.studio.tabs.widgets import escape_markdown

MAX_LABELS = 20  # the likeliest
ALWAYS = "every text"
THRESHOLDS = {  # what is answered -> option, default, its smallest and largest number
    "confidences of at least (--min-confidence)": ("min_confidence", 0.7, 0.01, 1.0),
    "as many as keep the risk of an error to (--max-risk)": ("max_risk", 0.1, 0.01, 0.99),
    "this fraction of the texts, the surest (--coverage)": ("coverage", 0.8, 0.01, 1.0),
}
NO_HELD_OUT = "Thresholds by risk or coverage and prediction sets take ten labelled rows or more, held out in turn."
LEVEL = 0.9  # of prediction sets


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
        options = _draw_options(project, run)
        with st.form("try", border=False):
            texts = {
                field: st.text_area(escape_markdown(field), key=f"try {number} {field}")
                for field in project.finished.fields(run)
            }
            if st.form_submit_button("Classify", type="primary"):
                st.session_state["tried"] = number, texts
                st.session_state["explained"] = None
        if st.session_state.get("tried", (None,))[0] == number:
            _draw_answer(project, run, st.session_state["tried"][1], options)
    except ClozifyError as error:
        st.html(render.problem(error.problems))


def _draw_options(project: Project, run: StudioRun) -> AbstainOptions:
    """Draw the inputs for which texts are answered; only those that the run has what they need for."""
    held_out, has_scope = project.finished.held_out_rows(run), project.finished.has_scope(run)
    left, middle, right = st.columns(3)
    names = [ALWAYS, *THRESHOLDS] if held_out else [ALWAYS, next(iter(THRESHOLDS))]
    chosen = left.selectbox("Answer", names, key=f"answer {bool(held_out)}")
    values: dict[str, float] = {}
    if chosen != ALWAYS:
        name, default, low, high = THRESHOLDS[chosen]
        number = left.number_input(name.replace("_", " "), low, high, default, step=0.05, key=f"threshold {name}")
        values[name] = number
    if held_out:
        has_set = middle.checkbox("Name all labels that may well be right (--sets)", value=True)
        if has_set:
            values["sets"] = middle.number_input("level of the prediction set", 0.5, 0.99, LEVEL, step=0.05)
    with right:
        rejected = _draw_rejected(has_scope)
    if not held_out:
        st.html(render.hint([NO_HELD_OUT]))
    return AbstainOptions(**values, reject_out_of_scope=rejected)


def _draw_rejected(has_scope: bool) -> float | None:
    """The fraction of texts of the task that may be rejected as out of scope; None: no text is."""
    if not has_scope:
        st.html(render.hint(["Out-of-scope scores need a classifier that was trained with unlabelled rows."]))
        return None
    if not st.checkbox("Reject texts out of scope (--reject-out-of-scope)", value=True):
        return None
    return float(st.number_input("fraction of texts of the task that may be rejected", 0.01, 0.5, REJECTED, step=0.01))


def _draw_answer(project: Project, run: StudioRun, texts: dict[str, str], options: AbstainOptions) -> None:
    """Draw a text's label, what the options say about it and, on demand, which words moved the label."""
    classified = project.finished.classify(run, texts, options)
    st.html(render.note([classified.confidence]))
    st.html(render.bars(classified.probabilities[:MAX_LABELS]))
    for decided in classified.verdicts:
        st.html(render.verdict(decided))
    if classified.problems:
        st.html(render.problem(classified.problems))
    if st.button("Which words moved the label?"):
        st.session_state["explained"] = run.number, texts
    if st.session_state.get("explained") == (run.number, texts):
        with st.spinner("Each word is left out in turn ...", show_time=False):
            explanations = project.finished.explain(run, texts)
        for explained in explanations.rows:
            st.html(render.explanation(explained))
        if explanations.warnings:
            st.html(render.note(explanations.warnings))
    st.caption("The same on the command line:")
    command = predict_command(run, texts, options)
    st.code(f"cd {shlex.quote(str(project.folder))}\n{command}", language="bash", wrap_lines=True)
