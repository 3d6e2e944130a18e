"""Reads TOML; what cannot be read is one sentence."""

from __future__ import annotations

import tomllib
from typing import Any

from clozify.errors import ClozifyError


def parse_toml(text: str, source: str, error_type: type[ClozifyError]) -> dict[str, Any]:
    """The content of TOML text; `source` starts the sentence of an `error_type`."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error_type(f"{source} is nested too deeply to be read; write it with fewer brackets.") from None
    except ValueError as error:  # also a number of thousands of digits
        raise error_type(f"{source} is not valid TOML: {str(error).split(';')[0].rstrip('.')}.") from None
