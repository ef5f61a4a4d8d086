"""Tokens of the API: made and shown once, kept as a digest, checked, revoked."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import delete, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from runner.errors import InputError
from service.tables import ApiToken
from service.tables.columns import now

PREFIX = "rw_"
"""By which people, and scanners of leaked secrets, know one."""
SECRET_BYTES = 32
NAME_CHARACTERS = 80
USED_EVERY = timedelta(minutes=1)
"""How exact `last_used_at` is: not each request shall write."""
_LONGEST = 200  # of what is looked up at all


class Scope(StrEnum):
    """What a token allows."""

    RUN = "run"
    """Start and cancel runs, import results."""
    APPROVE = "approve"
    """Let a fork's commit run."""
    ADMIN = "admin"
    """Everything."""


def create(session: Session, name: str, scopes: Iterable[str]) -> str:
    """A new token. It is shown this once: only its digest is kept.

    A revoked token leaves its name to a new one. Raises InputError for a name that is empty, too
    long or taken, and for scopes that there are not.
    """
    name = name.strip()
    if not name or not name.isprintable() or len(name) > NAME_CHARACTERS:
        raise InputError(
            f"token name: must be 1 to {NAME_CHARACTERS} printable characters, got {name[:100]!r}"
        )
    allowed = _scopes(scopes)
    revoked = delete(ApiToken).where(
        col(ApiToken.name) == name, col(ApiToken.revoked_at).is_not(None)
    )
    session.connection().execute(revoked)
    plain = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    row = {"name": name, "digest": digest(plain), "scopes": [str(one) for one in allowed]}
    made = session.connection().execute(
        insert(ApiToken)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(col(ApiToken.id)),
        [row],
    )
    if made.first() is None:
        raise InputError(f"token name {name!r} is taken: choose another, or revoke that one first")
    return plain


def verify(session: Session, plain: str) -> ApiToken | None:
    """The token that this is, None where it is none, or revoked.

    It is looked up by its digest: how long that takes tells nothing about any token.
    """
    if not plain.startswith(PREFIX) or len(plain) > _LONGEST:
        return None
    token = session.exec(
        select(ApiToken).where(ApiToken.digest == digest(plain), col(ApiToken.revoked_at).is_(None))
    ).first()
    if token is not None:
        _note_use(session, token)
    return token


def allows(token: ApiToken, scope: Scope) -> bool:
    """Whether a token has a scope; `admin` has every one."""
    return scope in token.scopes or Scope.ADMIN in token.scopes


def revoke(session: Session, name: str) -> None:
    """End a token, for good. Raises InputError where there is none of that name in use."""
    token = session.exec(select(ApiToken).where(ApiToken.name == name).with_for_update()).first()
    if token is None or token.revoked_at is not None:
        live = [one.name for one in listed(session) if one.revoked_at is None]
        what = "was revoked already" if token is not None else "is not there"
        raise InputError(f"token {name!r} {what}; in use: {', '.join(live) or 'none'}")
    token.revoked_at = now()
    session.add(token)
    session.flush()


def listed(session: Session) -> Sequence[ApiToken]:
    """All tokens, also revoked ones, by name."""
    return session.exec(select(ApiToken).order_by(ApiToken.name)).all()


def digest(plain: str) -> str:
    """What is kept of a token. It is random enough that no slow hash is called for."""
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def _scopes(given: Iterable[str]) -> list[Scope]:
    known = ", ".join(Scope)
    wanted = set()
    for scope in given:
        if scope not in set(Scope):
            raise InputError(f"token scope: unknown {scope!r}; known: {known}")
        wanted.add(Scope(scope))
    if not wanted:
        raise InputError(f"a token needs a scope, one or more of {known}")
    return [scope for scope in Scope if scope in wanted]


def _note_use(session: Session, token: ApiToken) -> None:
    moment = now()
    if token.last_used_at is not None and token.last_used_at > moment - USED_EVERY:
        return
    # A request that is busy for long may have the row locked: others do not wait for that.
    free = select(ApiToken.id).where(ApiToken.id == token.id).with_for_update(skip_locked=True)
    session.connection().execute(
        update(ApiToken)
        .where(col(ApiToken.id).in_(free))
        .values(last_used_at=moment)
        .execution_options(synchronize_session=False)
    )
    session.expire(token, ["last_used_at"])
