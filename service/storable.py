"""Text and JSON from outside as PostgreSQL takes them: no NUL, no lone surrogate, no NaN."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from service.rows import both_ends

_REFUSED = re.compile("[\x00\ud800-\udfff]")
_DEEPEST = 64


def text(value: str, characters: int | None = None) -> str:
    """Text with U+FFFD for what a text column refuses, cut off after so many characters."""
    return _REFUSED.sub("�", value if characters is None else value[:characters])


def log(value: str) -> str:
    """A log: both ends of a long one."""
    return text(both_ends(value))


def data(value: Any) -> Any:
    """JSON data for a JSONB column.

    Long texts are cut like logs. A number that JSON lacks becomes its name (`NaN`, `Infinity`), and
    what is no data at all, or is nested deeper than anyone means to, its text.
    """
    return _data(value, _DEEPEST)


def _data(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return log(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else log(hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else json.dumps(value)
    if depth and isinstance(value, Mapping):
        return {log(str(key)): _data(inner, depth - 1) for key, inner in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_data(inner, depth - 1) for inner in value]
    return log(_shown(value))


def _shown(value: Any) -> str:
    try:
        return str(value)
    except RecursionError:
        return f"nested too deeply: {type(value).__name__}"
