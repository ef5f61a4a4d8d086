"""What of all that was measured is not to be believed, for the API and the pages."""

from __future__ import annotations

from fastapi import Request
from sqlmodel import Session

from service.reading.doubted import Doubts


def doubts(request: Request, session: Session) -> Doubts:
    """See `service.reading.doubted.find`; as it was found a moment ago."""
    found: Doubts = request.app.state.doubts(session, None)
    return found
