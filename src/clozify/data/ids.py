"""Ids as numbers or text, which JSON, CSV and a page can hold whatever the id column's type is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozify.data.rows import Rows


def plain_ids(column: Any) -> Any:
    """An Arrow array of ids as numbers, truth values or text; its type depends on the column's type alone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_floating(column.type):
        return pc.if_else(pc.is_finite(column), column, None)  # JSON has no NaN
    if any(is_plain(column.type) for is_plain in (types.is_integer, types.is_boolean, types.is_string, types.is_null)):
        return column
    return pa.array([None if value is None else _to_text(value) for value in column.to_pylist()], pa.string())


def _to_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (dict, list)) else str(value)


def row_name(rows: Rows, index: int) -> str:
    """What messages call a row: its id where the data has ids, else its number in the file, from 1."""
    if rows.has_ids:
        return f"row '{rows.ids(index, index + 1)[0]}'"
    return f"row {rows.row_numbers(index, index + 1)[0] + 1:,}"
