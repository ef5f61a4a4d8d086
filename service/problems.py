"""Errors as the service answers them: `application/problem+json`, RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"


class ProblemResponse(JSONResponse):
    """A response that says what went wrong."""

    media_type = MEDIA_TYPE


def problem(
    status: int,
    title: str = "",
    detail: str = "",
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> ProblemResponse:
    """An error. title: of its kind, by default HTTP's own phrase. detail: one clear sentence.

    more: further members, such as `errors`.
    """
    content: dict[str, Any] = {
        "type": "about:blank",
        "title": title or phrase(status),
        "status": status,
        "detail": detail,
        **more,
    }
    # A lone surrogate, as a request may hold one, has no UTF-8.
    content = {key: _encodable(value) for key, value in content.items()}
    return ProblemResponse(content, status_code=status, headers=dict(headers or {}))


def phrase(status: int) -> str:
    """HTTP's own phrase for a status, as RFC 9110 has it (Python before 3.13 has older ones)."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase


_PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return value
