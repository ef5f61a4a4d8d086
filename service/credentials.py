"""Logins of the database for single processes: each its own, with no right that it does not need.

A login is a role of PostgreSQL that is a member of one of two groups: `racewatch_worker`, which may
read and write what builds and trials need, and `racewatch_service`, which may read and write every
row. None of them may change the schema. Ending a login ends its sessions at once, and no other.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import URL, make_url

from runner.errors import InfrastructureError, InputError
from service.database import sqlalchemy_url
from service.postgres import libpq
from service.schema import shown

WORKER_WRITES = (
    *("bisection_events", "bisections", "branch_commits", "builds", "cells", "claim_cells"),
    *("claims", "commit_builds", "commits"),
    *("environments", "measurements", "run_cells", "runs", "trial_evidence", "trials", "workers"),
)
"""What a worker reads, adds and changes."""
WORKER_READS = ("alembic_version", "heads")
WORKER_COLUMNS = {"pulls": ("subject", "head_sha", "fork")}
"""What a worker reads of tables that are else none of its business: whose a commit is."""
WORKER_NEVER = (*("approvals", "deliveries", "outbox", "pull_comments", "pulls", "tokens"),)
"""What comes from GitHub, goes to it, or lets people in: no worker's business."""
QUEUE = "procrastinate_%"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_PASSWORD_BYTES = 24


class Kind(StrEnum):
    """Whose login it is."""

    WORKER = "worker"
    SERVICE = "service"

    @property
    def group(self) -> str:
        """The role that holds the rights."""
        return f"racewatch_{self}"

    def role(self, name: str) -> str:
        """The role of a login. Raises InputError for a name that is none."""
        if not _NAME.fullmatch(name):
            raise InputError(
                f"credential {name!r}: a name has up to 40 small letters, digits, - and _, and "
                "begins with a letter or digit"
            )
        return f"{self.group}_{name}"


@dataclass(frozen=True)
class Login:
    """A login that there is. sessions: connections that it has open."""

    kind: Kind
    name: str
    sessions: int


def create(url: str, name: str, kind: Kind = Kind.WORKER, host: str = "") -> str:
    """Make a login; the URL to reach the database with it, which is not to be had again.

    url: of a role that may make others. host: `name` or `name:port` where other hosts reach the
    database, else as in `url`. Raises InputError where it is there already.
    """
    _at(url, host)
    with _connected(url) as connection:
        _grant(connection)
        if _exists(connection, kind.role(name)):
            raise InputError(
                f"credential {name} is there already: choose another name, or revoke it first"
            )
        return _make(connection, url, name, kind, host)


def renew(url: str, name: str, kind: Kind = Kind.WORKER, host: str = "") -> str:
    """Make a login anew: whoever had it before is shut out. The URL with its new password."""
    _at(url, host)
    with _connected(url) as connection:
        _grant(connection)
        _remove(connection, kind.role(name))
        return _make(connection, url, name, kind, host)


def works(url: str) -> bool:
    """Whether the database takes this login. Raises InfrastructureError where none answers."""
    try:
        with psycopg.connect(libpq(url), connect_timeout=10):
            return True
    except psycopg.OperationalError as error:
        # libpq says which error it was in prose only: PostgreSQL's own reasons begin with FATAL.
        if re.search(r"FATAL:\s+(password authentication failed|role .* )", str(error)):
            return False
        raise _unreachable(url, error) from error


def refresh(url: str) -> None:
    """Give the groups their rights on the tables that there are now: those of an upgrade have none.

    Nothing to do on a server where no login was ever made.
    """
    with _connected(url) as connection:
        if any(_exists(connection, kind.group) for kind in Kind):
            _grant(connection)


def listed(url: str) -> list[Login]:
    """All logins, by kind and name."""
    with _connected(url) as connection:
        rows = connection.execute(
            "SELECT r.rolname, (SELECT count(*) FROM pg_stat_activity WHERE usename = r.rolname) "
            "FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member "
            "JOIN pg_roles g ON g.oid = m.roleid WHERE g.rolname = ANY(%s)",
            [[kind.group for kind in Kind]],
        ).fetchall()
    found = {
        Login(kind, role.removeprefix(f"{kind.group}_"), sessions)
        for role, sessions in rows
        for kind in Kind
        if role.startswith(f"{kind.group}_")
    }
    return sorted(found, key=lambda login: (login.kind, login.name))


def revoke(url: str, name: str, kind: Kind = Kind.WORKER) -> None:
    """End a login and every session that it has. Raises InputError where there is none."""
    with _connected(url) as connection:
        if not _exists(connection, kind.role(name)):
            raise InputError(
                f"no credential {name}: `racewatch credential list` names those that there are"
            )
        _remove(connection, kind.role(name))


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    try:
        with psycopg.connect(
            libpq(url), connect_timeout=10, autocommit=True, application_name="racewatch credential"
        ) as connection:
            yield connection
    except psycopg.errors.InsufficientPrivilege as error:
        raise InputError(
            f"database {shown(url)}: {_first_line(error)}; credentials need the role that owns the "
            "database, with CREATEROLE and pg_signal_backend, or a superuser"
        ) from error
    except psycopg.OperationalError as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: psycopg.Error) -> InfrastructureError:
    return InfrastructureError(f"database {shown(url)}: {_first_line(error)}")


def _first_line(error: psycopg.Error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _grant(connection: Connection) -> None:
    """Make the groups, with exactly their rights. All at once, so that nobody misses one."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('racewatch credentials'))")
        tables = _tables(connection)
        if "workers" not in tables:
            raise InputError(
                "the database has no tables of Racewatch yet: run `racewatch db upgrade` first"
            )
        for kind in Kind:
            if not _exists(connection, kind.group):
                connection.execute(SQL("CREATE ROLE {} NOLOGIN").format(Identifier(kind.group)))
        queue = [name for name in tables if re.match(QUEUE.replace("%", ".*"), name)]
        worker, service = Kind.WORKER.group, Kind.SERVICE.group
        everything = "SELECT, INSERT, UPDATE, DELETE"
        for group in (worker, service):
            _run(connection, "REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}", "public", group)
            _run(connection, "GRANT USAGE ON SCHEMA {} TO {}", "public", group)
        for name in tables:
            rights = {
                **dict.fromkeys(WORKER_READS, "SELECT"),
                **dict.fromkeys(WORKER_WRITES, "SELECT, INSERT, UPDATE"),
                **dict.fromkeys(queue, everything),
                # A branch's commits are replaced when it was rewritten.
                "branch_commits": everything,
            }.get(name)
            if rights:
                _run(connection, f"GRANT {rights} ON TABLE {{}} TO {{}}", name, worker)
                for sequence in _sequences(connection, name):
                    _run(connection, "GRANT USAGE ON SEQUENCE {} TO {}", sequence, worker)
            if name in WORKER_COLUMNS:
                names = (*WORKER_COLUMNS[name], name, worker)
                marks = ", ".join(["{}"] * len(WORKER_COLUMNS[name]))
                _run(connection, f"GRANT SELECT ({marks}) ON TABLE {{}} TO {{}}", *names)
            read_only = name == "alembic_version"
            all_rights = "SELECT" if read_only else everything
            _run(connection, f"GRANT {all_rights} ON TABLE {{}} TO {{}}", name, service)
        _run(connection, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {} TO {}", "public", service)


def _run(connection: Connection, statement: str, *names: str) -> None:
    connection.execute(SQL(statement).format(*map(Identifier, names)))


def _tables(connection: Connection) -> list[str]:
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    ).fetchall()
    return [str(name) for (name,) in rows]


def _sequences(connection: Connection, table: str) -> list[str]:
    rows = connection.execute(
        "SELECT s.relname FROM pg_class s JOIN pg_depend d ON d.objid = s.oid "
        "JOIN pg_class t ON t.oid = d.refobjid "
        "WHERE s.relkind = 'S' AND t.relname = %s AND t.relnamespace = 'public'::regnamespace",
        [table],
    ).fetchall()
    return [str(name) for (name,) in rows]


def _exists(connection: Connection, role: str) -> bool:
    found = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    return found is not None


def _make(connection: Connection, url: str, name: str, kind: Kind, host: str) -> str:
    role, password = kind.role(name), secrets.token_urlsafe(_PASSWORD_BYTES)
    # What the server gets, and may log, is not the password but what it stores of it.
    stored = connection.pgconn.encrypt_password(
        password.encode(), role.encode(), b"scram-sha-256"
    ).decode()
    with connection.transaction():
        connection.execute(
            SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                Identifier(role), Literal(stored), Identifier(kind.group)
            )
        )
    made = _at(url, host).set(username=role, password=password)
    return made.render_as_string(hide_password=False).replace("+psycopg", "", 1)


def _at(url: str, host: str) -> URL:
    """The database's URL with another host, where one is given."""
    there = make_url(sqlalchemy_url(url))
    if not host:
        return there
    where, _, port = host.partition(":")
    if not where or (port and not port.isdigit()):
        raise InputError(f"--host: must be a name or name:port, got {host!r}")
    return there.set(host=where, port=int(port) if port else None)


def _remove(connection: Connection, role: str) -> None:
    """It may not come in again first, so that no session escapes."""
    if not _exists(connection, role):
        return
    _run(connection, "ALTER ROLE {} NOLOGIN", role)
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [role]
    )
    _run(connection, "DROP ROLE {}", role)
