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


def shared_input(name: str, value: object, store: Callable[[Any], None]) -> dict[str, Any]:
    """The key and callback of an input that shows the project's `value` and gives `store` what the user enters.

    Once the project has another value than this window's input, the key changes: a new input with the new value is
    drawn. To set the old input's value by `st.session_state` is not safe, because a browser that misses one of several
    quick updates keeps the old value and sends it back.
    """
    shown = st.session_state.setdefault(f"shown {name}", {"value": value, "number": 0})
    if shown["value"] != value:
        shown.update(value=value, number=shown["number"] + 1)
    key = f"{name} #{shown['number']}"

    def on_change() -> None:
        shown["value"] = st.session_state[key]
        store(shown["value"])

    return {"key": key, "on_change": on_change}


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
