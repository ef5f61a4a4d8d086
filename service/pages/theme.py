"""Dark, light, or as the system has it: chosen by a cookie, so that it needs no script."""

from __future__ import annotations

from enum import StrEnum

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse

router = APIRouter(include_in_schema=False)
_COOKIE = "theme"
_YEAR_S = 365 * 86_400


class Theme(StrEnum):
    """What may be chosen; AUTO is what the system prefers."""

    AUTO = "auto"
    LIGHT = "light"
    DARK = "dark"


def theme_of(request: Request) -> Theme:
    """What this browser chose."""
    try:
        return Theme(request.cookies.get(_COOKIE, ""))
    except ValueError:
        return Theme.AUTO


@router.post("/theme")
def choose(request: Request, theme: Theme, back: str = "/") -> RedirectResponse:
    """Remember a choice and go back to the page it was made on."""
    # Only to a page of this service: `//host` and `/\host` are other hosts to a browser.
    local = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable()
    answer = RedirectResponse(back if local else "/", 303)
    if theme is Theme.AUTO:
        answer.delete_cookie(_COOKIE, samesite="lax", httponly=True)
    else:
        answer.set_cookie(
            _COOKIE,
            theme.value,
            max_age=_YEAR_S,
            samesite="lax",
            httponly=True,
            secure=request.url.scheme == "https",
        )
    return answer
