"""What changed, told to everyone who listens: PostgreSQL's NOTIFY, in the changing transaction."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import text
from sqlmodel import Session

CHANNEL = "racewatch"
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


def publish(session: Session, kind: str, **what: Any) -> None:
    """Tell listeners once this transaction commits, and not if it does not.

    kind: `run`, `trial`, `build`, `worker`, `delivery`. what: ids, as text or numbers; PostgreSQL
    allows 8,000 bytes.
    """
    payload = json.dumps({"kind": kind, **what}, default=str)
    session.connection().execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})
