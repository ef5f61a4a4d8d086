"""Turns what was read into a page: templates, what every template may use, and the headers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

import dashboards
from runner.report import EMULATED
from service.database import Database
from service.pages import words
from service.pages.static import address
from service.pages.theme import theme_of
from service.reading.rate import Mark
from service.settings import ServiceSettings

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing from elsewhere, and no script or style in a page itself."""
_NAVIGATION = (
    ("/", "Grid"),
    ("/runs", "Runs"),
    ("/signatures", "Signatures"),
    ("/compare", "Compare"),
    ("/bisections", "Bisections"),
    ("/pulls", "Pull requests"),
    ("/workers", "Workers"),
)

_templates = Environment(
    loader=FileSystemLoader(Path(str(resources.files(dashboards) / "templates"))),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_templates.filters.update(
    ago=words.ago,
    exact=words.exact,
    machine=words.machine,
    duration=words.duration,
    milliseconds=words.milliseconds,
    number=words.number,
    percent=words.percent,
    chance=words.chance,
    sha=words.short_sha,
    words=words.words,
    state_class=words.state_class,
    counted=words.counted,
    sentence=words.sentence,
    p_value=words.p_value,
    points=words.points,
    pull_of=words.pull_of,
    without_pull=words.without_pull,
)
_templates.globals.update(
    static=address,
    interval=words.interval,
    navigation=_NAVIGATION,
    emulated_sentence=EMULATED,
    marks=tuple(Mark),
)


@lru_cache(maxsize=16)
def macro(template: str, name: str) -> Callable[..., str]:
    """A macro of a template, to call from Python; it gives HTML."""
    found: Callable[..., str] = getattr(_templates.get_template(template).module, name)
    return found


def opening(request: Request) -> None:
    """Note where in the order of changes a page begins, before it reads anything."""
    request.state.cursor = request.app.state.feed.cursor


def database(request: Request) -> Database:
    """The database that a page reads."""
    found: Database = request.app.state.database
    return found


def settings(request: Request) -> ServiceSettings:
    """How the service is configured."""
    found: ServiceSettings = request.app.state.settings
    return found


def page(request: Request, template: str, code: int = 200, **content: Any) -> HTMLResponse:
    """The template with that content, as a response.

    Templates know besides: `path`, `here` (path and query), `theme`, `cursor`, `github(subject)`
    (its address at GitHub, empty if none), `query(name=value, ...)` (this page's query with that
    changed; None and empty values are left out) and `query_without(name, ...)`.
    """

    def query(**changed: object) -> str:
        asked = {**dict(request.query_params), **changed}
        kept = {name: value for name, value in asked.items() if value not in (None, "")}
        return f"?{urlencode(kept)}" if kept else request.url.path

    def query_without(*names: str) -> str:
        return query(**dict.fromkeys(names))

    def github(subject: str) -> str:
        tracked = settings(request).subjects.get(subject)
        return f"https://github.com/{tracked.github}" if tracked and tracked.github else ""

    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = _templates.get_template(template).render(
        path=request.url.path,
        here=here,
        theme=theme_of(request),
        cursor=getattr(request.state, "cursor", ""),
        base_url=settings(request).link,
        query=query,
        query_without=query_without,
        github=github,
        **content,
    )
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-cache",
        "Vary": "Cookie",
    }
    return HTMLResponse(text, code, headers)
