"""Streamlit helpers that the tabs share: widget keys, lists of inputs that grow and shrink, escaped labels."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from clozify.studio.project import Project


def reset_widgets(project: Project) -> None:
    """Give the draft's inputs new keys, because the draft was replaced; Streamlit would show their old values."""
    st.session_state["version"] = project.version
    st.session_state["patterns"] = list(range(len(project.draft.patterns)))
    st.session_state["labels"] = list(range(len(project.draft.words)))
    st.session_state["next id"] = 1000


def widget_key(name: str, suffix: int | str = "") -> str:
    """A widget's key for the current version of the draft."""
    return f"{name} {st.session_state['version']} {suffix}"


def escape_markdown(text: str) -> str:
    """Text that Streamlit shows literally where it expects Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~$<>:^])", r"\\\1", text)


def add_button(text: str, entries: list[Any], ids: list[int], entry: object) -> None:
    """A button that appends an entry to a list of inputs; `ids` are the inputs' ids."""

    def add() -> None:
        entries.append(entry)
        ids.append(st.session_state["next id"])
        st.session_state["next id"] += 1

    st.button(text, on_click=add)


def remove_button(text: str, key: str, entries: list[Any], ids: list[int], index: int) -> None:
    """A button that removes an entry from a list of inputs."""

    def remove() -> None:
        del entries[index], ids[index]

    st.button("\u00d7", key=key, help=text, on_click=remove)
