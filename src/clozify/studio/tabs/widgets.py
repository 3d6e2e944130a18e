"""Streamlit helpers that the tabs share: inputs that show the project's state, lists of them, escaped labels.

Several windows may show one project. An input writes its value to the project when its window's user changes it, and
shows the project's value otherwise, so that no window writes back an old value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import streamlit as st

from clozify.studio.project import Project


def show_value(key: str, value: object, store: Callable[[Any], None]) -> dict[str, Any]:
    """The arguments of an input that shows `value` and calls `store` with what the user enters."""
    if key not in st.session_state or st.session_state[key] != value:  # else what is being typed would be replaced
        st.session_state[key] = value
    return {"key": key, "on_change": lambda: store(st.session_state[key])}


def escape_markdown(text: str) -> str:
    """Text that Streamlit shows literally where it expects Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~$<>:^])", r"\\\1", text)


def add_button(text: str, project: Project, entries: list[Any], entry: object) -> None:
    """A button that appends an entry to a list of inputs."""

    def add() -> None:
        with project.lock:
            entries.append(entry)
            project.version += 1

    st.button(text, on_click=add)


def remove_button(text: str, key: str, project: Project, entries: list[Any], index: int) -> None:
    """A button that removes an entry from a list of inputs."""

    def remove(version: int) -> None:
        with project.lock:
            if version == project.version:  # else another window has changed the list
                del entries[index]
                project.version += 1

    st.button("\u00d7", key=key, help=text, on_click=remove, args=(project.version,))
