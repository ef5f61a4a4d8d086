"""Rows of the database as fields of what the API writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel


def taken(row: object, model: type[BaseModel], but: Collection[str] = ()) -> dict[str, Any]:
    """What a row has under the names of a model's fields; `but` those that it has not."""
    return {name: getattr(row, name) for name in model.model_fields if name not in but}
