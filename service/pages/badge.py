"""`/badge/{subject}/{branch}.svg`: a branch's newest rate in one cell, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.doubts import doubts
from service.api.errors import missing
from service.pages import asked
from service.pages.view import database, macro
from service.pages.words import interval, percent
from service.reading import badge
from service.reading.badge import Badge
from service.reading.grid import CLEAN_BELOW
from service.reading.rate import Mark

router = APIRouter()
_COLOURS = {
    Mark.RACES: "#b3261e",
    Mark.CLEAN: "#1f7a3d",
    Mark.UNDERSAMPLED: "#8a5a00",
    Mark.UNPROVEN: "#8a5a00",
}
_OTHER = "#5a5f68"
_CHARACTER = 6.6
"""Pixels of a character at this size, about; the text is stretched to what is taken for it."""
_HEADERS = {
    "Cache-Control": "no-cache, max-age=60",
    # Others show it on their pages.
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Content-Security-Policy": "default-src 'none'",
}


@dataclass(frozen=True)
class Part:
    """One of the two halves of a badge. x: its middle."""

    text: str
    colour: str
    left: int
    width: int

    @property
    def x(self) -> float:
        """Where its text is centred."""
        return self.left + self.width / 2

    @property
    def length(self) -> int:
        """Pixels of the text."""
        return self.width - 12


@router.get("/badge/{subject}/{branch:path}.svg")
def show(
    request: Request,
    subject: str,
    branch: str,
    cell: str = "",
    queue: str = "",
    clean_below: str = "",
) -> Response:
    """The badge as SVG, of the newest commit of the branch that was measured in the cell."""
    identity = asked.row("cell", cell) if cell else None
    bound = asked.bound("clean_below", clean_below, CLEAN_BELOW)
    name, head = asked.plain("subject", subject), asked.plain("branch", branch)
    device = asked.plain("queue", queue)
    with database(request).session() as session:
        found = badge.read(session, name, head, device, identity, bound, doubts(request, session))
    if found is None:
        raise missing("badge", f"{subject}/{branch} on {queue or 'any device'}, cell {cell or '-'}")
    svg = macro("badge.svg", "badge")(*parts(found), title(found))
    return Response(svg, media_type="image/svg+xml; charset=utf-8", headers=_HEADERS)


def parts(found: Badge) -> tuple[Part, Part]:
    """What it is of, and what it says: never a rate without its interval."""
    name = f"{found.cell.variant}, {found.cell.short}"
    left = _part(f"{'EMULATED ' if found.emulated else ''}{name}", "#3a3f47", 0)
    colour = _OTHER if found.rate is None else _COLOURS.get(found.rate.mark, _OTHER)
    return left, _part(_said(found), colour, left.width)


def _part(text: str, colour: str, left: int) -> Part:
    return Part(text, colour, left, round(len(text) * _CHARACTER) + 12)


def _said(found: Badge) -> str:
    rate = found.rate
    if rate is None or rate.rate is None:
        return rate.label if rate else "not measured"
    seen = f"{rate.k}/{rate.n}"
    if rate.mark is Mark.RACES:
        return f"races {percent(rate.rate)} ({interval(rate.low, rate.high)}), {seen}"
    if rate.mark is Mark.UNPROVEN:
        return f"{rate.label}: {seen} failed"
    if rate.mark is Mark.UNDERSAMPLED:
        return f"undersampled {seen}, {rate.needed} more"
    return f"{rate.label}, {seen}"


def title(found: Badge) -> str:
    """All of it in words."""
    what = f"{found.subject} {found.branch} {found.sha[:9]}".rstrip()
    return f"{what} on {found.queue}: {found.cell.full}: {_said(found)}"
