"""The folder for what is kept between commands that have no run's folder."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder `clozify` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clozify"
