"""Logins of the database: what each may do, and that one can be ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url
from sqlmodel import select

from runner.errors import InfrastructureError, InputError
from service import bisection, credentials, schema
from service.credentials import QUEUE, WORKER_NEVER, WORKER_READS, WORKER_WRITES, Kind
from service.database import Database
from service.postgres import libpq
from service.queue import wake
from service.tables import ApiToken, Bisection, Pull, Run
from tests.service.reading import bisected
from tests.service.reading.bisected import Bisections, Truth


@pytest.fixture
def name(db: Database) -> str:
    """Roles are the whole server's, so that each test has its own."""
    return (make_url(db.url).database or "").replace("test_", "t-")


def tables(db: Database) -> set[str]:
    with psycopg.connect(libpq(db.url)) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {name for (name,) in rows}


def test_each_table_is_either_a_workers_business_or_not(db: Database) -> None:
    """A new table fails here until somebody decides."""
    ours = {table for table in tables(db) if not table.startswith(QUEUE.rstrip("%"))}
    assert ours == {*WORKER_READS, *WORKER_WRITES, *WORKER_NEVER}


def test_a_worker_may_do_what_builds_and_trials_need(db: Database, name: str) -> None:
    mine = Database(credentials.create(db.url, name))
    schema.require(mine.url)
    with mine.session() as session:
        session.exec(select(Run).with_for_update()).all()
        assert wake(session, "trials", "trial-emulated", lock="x", run="x")
    mine.close()


def test_a_worker_may_do_what_a_bisection_needs(db: Database, name: str) -> None:
    mine = Database(credentials.create(db.url, name))
    searched = bisected.path("te", 7)
    with db.session() as session:
        session.add(
            Pull(subject="te", number=1, title="t", author="a", head_sha="c" * 40, fork=False)
        )
        identity = Bisections(session).order("te", "sm90", "b" * 40, "c" * 40)
    with mine.session() as session:
        assert bisection.asked(session, identity, "range") == {"own": ["c" * 40]}
        them = Bisections(session)
        them.ranged(identity, searched)
        them.go(identity, Truth.of(searched, 3, 0.0, 1.0), most=6)
    with db.session() as session:
        assert len(bisection.events(session, session.get_one(Bisection, identity))) >= 2
    mine.close()


@pytest.mark.parametrize("table", WORKER_NEVER)
@pytest.mark.parametrize("statement", ["SELECT * FROM {}", "DELETE FROM {}"])
def test_a_worker_sees_nothing_of_github_and_no_tokens(
    db: Database, name: str, table: str, statement: str
) -> None:
    url = credentials.create(db.url, name)
    with psycopg.connect(libpq(url)) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(SQL(statement).format(Identifier(table)))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (x int)",
        "DROP TABLE runs",
        "ALTER TABLE runs ADD COLUMN x int",
        "UPDATE alembic_version SET version_num = 'x'",
        "CREATE ROLE another",
        "COPY runs TO PROGRAM 'cat'",
        "SELECT pg_read_file('/etc/passwd')",
    ],
)
def test_no_login_may_change_the_schema_or_touch_the_host(
    db: Database, name: str, kind: Kind, statement: str
) -> None:
    url = credentials.create(db.url, name, kind)
    with psycopg.connect(libpq(url)) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)  # type: ignore[call-overload]


def test_an_upgrade_by_command_gives_logins_their_rights_on_new_tables(
    db: Database, name: str
) -> None:
    worker, service = (credentials.create(db.url, name, kind) for kind in Kind)
    schema.downgrade(db.url, "base")
    command = [sys.executable, "-m", "service.cli", "db", "upgrade"]
    subprocess.run(command, check=True, env={"DATABASE_URL": db.url, "PATH": ""})
    for url, table in ((worker, "runs"), (service, "tokens")):
        with psycopg.connect(libpq(url)) as connection:
            connection.execute(SQL("SELECT * FROM {}").format(Identifier(table)))
    with psycopg.connect(libpq(worker)) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("SELECT * FROM tokens")


def test_a_worker_deletes_no_result(db: Database, name: str) -> None:
    url = credentials.create(db.url, name)
    with psycopg.connect(libpq(url)) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("DELETE FROM trials")


def test_the_service_reads_and_writes_every_row(db: Database, name: str) -> None:
    mine = Database(credentials.create(db.url, name, Kind.SERVICE))
    with mine.session() as session:
        session.add(ApiToken(name="n", digest="d", scopes=["run"]))
    with mine.session() as session:
        session.delete(session.exec(select(ApiToken)).one())
    mine.close()


def test_a_revoked_login_is_out_at_once_and_no_other(db: Database, name: str) -> None:
    gone, stays = credentials.create(db.url, name), credentials.create(db.url, f"{name}-2")
    with (
        psycopg.connect(libpq(gone), autocommit=True) as ended,
        psycopg.connect(libpq(stays), autocommit=True) as other,
    ):
        assert {(one.name, one.sessions) for one in credentials.listed(db.url)} >= {
            (name, 1),
            (f"{name}-2", 1),
        }
        credentials.revoke(db.url, name)
        with pytest.raises(psycopg.OperationalError):
            ended.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)
    assert not credentials.works(gone)
    assert credentials.works(stays)
    with pytest.raises(InputError, match=f"no credential {name}"):
        credentials.revoke(db.url, name)


def test_a_login_is_made_once(db: Database, name: str) -> None:
    credentials.create(db.url, name)
    with pytest.raises(InputError, match="there already"):
        credentials.create(db.url, name)


def test_a_renewed_login_has_another_password(db: Database, name: str) -> None:
    first, second = credentials.create(db.url, name), credentials.renew(db.url, name)
    assert make_url(first).password != make_url(second).password
    assert make_url(first).username == make_url(second).username


def test_a_login_can_name_the_host_that_others_reach(db: Database, name: str) -> None:
    made = make_url(credentials.create(db.url, name, host="db.example:6543"))
    assert (made.host, made.port) == ("db.example", 6543)
    with pytest.raises(InputError, match="--host: must be a name or name:port, got 'db:x'"):
        credentials.create(db.url, f"{name}-2", host="db:x")
    assert f"{name}-2" not in {one.name for one in credentials.listed(db.url)}


@pytest.mark.parametrize("wrong", ["", "A", "a b", "a;b", "-a", "a" * 41, '"'])
def test_a_name_that_is_none_is_refused(db: Database, wrong: str) -> None:
    with pytest.raises(InputError, match="a name has up to 40"):
        credentials.create(db.url, wrong)


def test_a_database_without_tables_is_told_so(database: str) -> None:
    with pytest.raises(InputError, match="run `racewatch db upgrade` first"):
        credentials.create(database, "early")


def test_a_login_that_may_make_none_is_told_so(db: Database, name: str) -> None:
    worker = credentials.create(db.url, name)
    with pytest.raises(InputError, match="need the role that owns the database"):
        credentials.create(worker, f"{name}-2")


def test_no_database_is_an_outage_and_not_a_refusal() -> None:
    with pytest.raises(InfrastructureError):
        credentials.works("postgresql://x:y@127.0.0.1:1/racewatch")


def test_a_file_is_written_once_and_again_when_its_login_is_gone(
    db: Database, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "racewatch_database_url"

    def write() -> str:
        command = [sys.executable, "-m", "service.cli", "credential", "write", name, str(file)]
        subprocess.run(command, check=True, env={"DATABASE_URL": db.url, "PATH": ""})
        return file.read_text()

    first = write()
    assert file.stat().st_mode & 0o777 == 0o600
    assert write() == first
    credentials.revoke(db.url, name)
    assert write() != first
    assert credentials.works(file.read_text().strip())
