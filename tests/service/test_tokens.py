"""Tokens: shown once, kept as a digest, and good until they are revoked."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlmodel import select

from runner.errors import InputError
from service import tokens
from service.database import Database
from service.tables import ApiToken
from service.tables.columns import now
from service.tokens import Scope


def test_a_token_is_known_again_by_its_text_alone(db: Database) -> None:
    with db.session() as session:
        plain = tokens.create(session, "ci", ["run"])
    assert re.fullmatch(r"rw_[A-Za-z0-9_-]{43}", plain)
    with db.session() as session:
        found = tokens.verify(session, plain)
        assert found is not None
        assert (found.name, found.scopes) == ("ci", ["run"])


def test_only_a_digest_is_kept(db: Database) -> None:
    with db.session() as session:
        plain = tokens.create(session, "ci", ["run"])
    with db.session() as session:
        row = session.connection().execute(text("SELECT tokens::text FROM tokens")).scalar_one()
    assert plain not in row
    assert hashlib.sha256(plain.encode()).hexdigest() in row


@pytest.mark.parametrize(
    "wrong", ["", "rw_", "rw_nothing", "Bearer", "rw_\x00", "rw_\udc80ü", "rw_" + "x" * 10**6]
)
def test_what_is_no_token_is_none(db: Database, wrong: str) -> None:
    with db.session() as session:
        plain = tokens.create(session, "ci", ["run"])
        assert tokens.verify(session, wrong) is None
        assert tokens.verify(session, plain[:-1]) is None
        assert tokens.verify(session, plain + "x") is None
        assert tokens.verify(session, plain.upper()) is None


def test_a_revoked_token_is_none(db: Database) -> None:
    with db.session() as session:
        plain = tokens.create(session, "ci", ["run"])
        other = tokens.create(session, "other", ["run"])
        tokens.revoke(session, "ci")
    with db.session() as session:
        assert tokens.verify(session, plain) is None
        assert tokens.verify(session, other) is not None
        assert [(t.name, t.revoked_at is None) for t in tokens.listed(session)] == [
            ("ci", False),
            ("other", True),
        ]


def test_revoking_what_is_not_in_use_names_what_is(db: Database) -> None:
    with db.session() as session:
        tokens.create(session, "ci", ["run"])
        tokens.create(session, "old", ["run"])
        tokens.revoke(session, "old")
        with pytest.raises(InputError, match="token 'old' was revoked already; in use: ci"):
            tokens.revoke(session, "old")
        with pytest.raises(InputError, match="token 'cl' is not there; in use: ci"):
            tokens.revoke(session, "cl")


def test_a_name_in_use_is_taken_and_a_revoked_one_is_free(db: Database) -> None:
    with db.session() as session:
        first = tokens.create(session, "ci", ["run"])
        with pytest.raises(InputError, match="token name 'ci' is taken"):
            tokens.create(session, " ci ", ["admin"])
        tokens.revoke(session, "ci")
        second = tokens.create(session, "ci", ["approve"])
    with db.session() as session:
        assert tokens.verify(session, first) is None
        found = tokens.verify(session, second)
        assert found is not None
        assert found.scopes == ["approve"]


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "nul\x00", "x" * 81])
def test_a_name_must_be_one_that_can_be_shown(db: Database, name: str) -> None:
    with db.session() as session, pytest.raises(InputError, match="token name: must be 1 to 80"):
        tokens.create(session, name, ["run"])


def test_scopes_are_the_known_ones(db: Database) -> None:
    with db.session() as session:
        with pytest.raises(InputError, match=r"unknown 'root'; known: run, approve, admin"):
            tokens.create(session, "ci", ["run", "root"])
        with pytest.raises(InputError, match="needs a scope"):
            tokens.create(session, "ci", [])
        tokens.create(session, "ci", ["approve", "run", "run"])
        assert session.exec(select(ApiToken)).one().scopes == ["run", "approve"]


@pytest.mark.parametrize(
    ("has", "may"),
    [
        ("run", {Scope.RUN}),
        ("approve", {Scope.APPROVE}),
        ("admin", {Scope.RUN, Scope.APPROVE, Scope.ADMIN}),
    ],
)
def test_admin_implies_all_and_the_others_only_themselves(
    db: Database, has: str, may: set[Scope]
) -> None:
    with db.session() as session:
        token = tokens.verify(session, tokens.create(session, "ci", [has]))
        assert token is not None
        assert {scope for scope in Scope if tokens.allows(token, scope)} == may


def test_use_is_noted_once_a_minute(db: Database) -> None:
    with db.session() as session:
        plain = tokens.create(session, "ci", ["run"])
    with db.session() as session:
        first = tokens.verify(session, plain)
        assert first is not None
        assert first.last_used_at is not None
        assert now() - first.last_used_at < timedelta(minutes=1)
    with db.session() as session:
        again = tokens.verify(session, plain)
        assert again is not None
        assert again.last_used_at == first.last_used_at
        again.last_used_at = now() - timedelta(minutes=2)
        session.add(again)
    with db.session() as session:
        later = tokens.verify(session, plain)
        assert later is not None
        assert later.last_used_at is not None
        assert now() - later.last_used_at < timedelta(minutes=1)


def test_nobody_waits_for_a_request_that_takes_long(db: Database) -> None:
    with db.session() as session:
        plain = tokens.create(session, "ci", ["run"])
    with db.session() as busy, db.session() as session:
        assert tokens.verify(busy, plain) is not None  # holds the row until it ends
        session.connection().execute(text("SET LOCAL lock_timeout = '1s'"))
        assert tokens.verify(session, plain) is not None
