"""The schema: made from nothing, taken back to nothing, equal to the tables, never half changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from procrastinate.schema import migrations_path
from sqlalchemy import Connection, NullPool, create_engine, make_url, text
from sqlmodel import SQLModel, col, select

from runner.errors import InfrastructureError, InputError
from service import schema
from service.database import Database
from service.postgres import libpq
from service.queue import wake
from service.tables import Commit

# Everything that one can make in a schema, and what belongs to it.
OBJECTS = """
    SELECT 'relation ' || relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION SELECT 'type ' || typname FROM pg_type WHERE typnamespace = 'public'::regnamespace
    UNION SELECT 'trigger ' || tgname FROM pg_trigger WHERE NOT tgisinternal
"""
# Columns, indexes and constraints as PostgreSQL itself writes them.
DEFINITIONS = """
    SELECT table_name, column_name || ' ' || data_type || ' ' || is_nullable || ' '
        || coalesce(column_default, '')
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


def objects(url: str) -> set[str]:
    with connected(url) as connection:
        return set(connection.execute(text(OBJECTS)).scalars())


def definitions(url: str) -> list[tuple[str, str]]:
    with connected(url) as connection:
        rows = [(row[0], row[1]) for row in connection.execute(text(DEFINITIONS))]
        return sorted(
            (table, what)
            for table, what in rows
            if not table.startswith(("procrastinate_", "alembic_"))
        )


def test_an_empty_database_gets_every_table_and_a_queue(database: str) -> None:
    assert schema.current(database) is None
    schema.upgrade(database)
    assert schema.current(database) == schema.head()
    there = objects(database)
    for table in SQLModel.metadata.tables:
        assert f"relation {table}" in there
    db = Database(database)
    with db.session() as session:
        assert wake(session, "advance", "control", lock="advance:1", run="1")
        assert not wake(session, "advance", "control", lock="advance:1", run="1")
    db.close()


def test_going_down_to_base_leaves_nothing(database: str) -> None:
    before = objects(database)
    schema.upgrade(database)
    schema.downgrade(database, "base")
    assert schema.current(database) is None
    left = {name for name in objects(database) - before if "alembic_version" not in name}
    assert left == set()


def test_a_database_that_was_taken_down_comes_up_again(database: str) -> None:
    schema.upgrade(database)
    made = definitions(database)
    schema.downgrade(database, "base")
    schema.upgrade(database)
    assert definitions(database) == made


def test_upgrading_twice_changes_nothing(db: Database) -> None:
    with db.session() as session:
        session.add(Commit(subject="te", sha="1" * 40))
    schema.upgrade(db.url)
    with db.session() as session:
        assert session.exec(select(col(Commit.sha))).all() == ["1" * 40]


def test_the_migrations_make_what_the_tables_say(db: Database) -> None:
    with connected(db.url) as connection:
        context = MigrationContext.configure(connection, opts={"include_name": schema.ours})
        differences = compare_metadata(context, schema.METADATA)
    assert differences == [], f"migration 0001 lacks:\n{schema.drift(db.url)}"


def test_the_migrations_make_it_to_the_letter(db: Database, database: str) -> None:
    # Alembic compares neither the WHERE of an index nor the names of constraints.
    with connected(database) as connection:
        SQLModel.metadata.create_all(connection)
    assert definitions(db.url) == definitions(database)


def test_drift_says_what_a_migration_lacks(db: Database) -> None:
    with connected(db.url) as connection:
        connection.execute(text("ALTER TABLE commits DROP COLUMN author"))
    lacking = schema.drift(db.url)
    assert "op.add_column('commits'" in lacking
    assert "author" in lacking


def test_procrastinate_is_at_the_version_that_the_migrations_know() -> None:
    # The first migration runs the package's own SQL. A newer package needs a migration that runs
    # its newer files, where they have not run with the first one.
    newest = max(path.name for path in migrations_path.glob("*.sql"))
    assert newest == "03.04.00_50_post_add_retry_failed_job_procedure.sql"


def test_upgrades_at_once_wait_for_each_other(database: str) -> None:
    begin = threading.Barrier(4)
    errors: list[BaseException] = []

    def work() -> None:
        begin.wait()
        try:
            schema.upgrade(database)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    schema.require(database)


def test_a_migration_that_fails_changes_nothing(database: str) -> None:
    with connected(database) as connection:
        connection.execute(text("CREATE TABLE workers (id int)"))
    before = objects(database)
    with pytest.raises(InfrastructureError, match='relation "workers" already exists'):
        schema.upgrade(database)
    assert objects(database) == before


def test_a_lock_that_is_held_for_too_long_is_named(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_LOCK_WAIT_S", 1)
    with connected(db.url) as connection:
        connection.execute(text("LOCK TABLE trials IN ACCESS SHARE MODE"))
        with pytest.raises(InfrastructureError, match="held it locked for 1 s"):
            schema.downgrade(db.url, "base")
    schema.require(db.url)


def test_require_tells_an_empty_database_how_to_become_one(database: str) -> None:
    with pytest.raises(InputError, match=r"is empty, .* needs 0005: run `racewatch db upgrade`"):
        schema.require(database)


def test_require_accepts_a_database_of_this_version(db: Database) -> None:
    schema.require(db.url)


def test_a_database_of_a_newer_racewatch_is_refused(db: Database) -> None:
    with connected(db.url) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(InputError, match="at revision 9999, which this Racewatch does not know"):
        schema.require(db.url)
    with pytest.raises(InputError, match="at revision 9999, which this Racewatch does not know"):
        schema.upgrade(db.url)


def test_an_unknown_revision_is_refused_with_the_ones_there_are(db: Database) -> None:
    with pytest.raises(InputError, match=r"'nope'.*base, 0001, 0002, 0003, 0004, 0005, head"):
        schema.downgrade(db.url, "nope")


def test_errors_tell_no_password(database: str) -> None:
    url = make_url(database).set(username="nobody", password="sesame", port=1)
    with pytest.raises(InfrastructureError) as raised:
        schema.current(url.render_as_string(hide_password=False))
    assert "sesame" not in str(raised.value)
    assert "nobody" in str(raised.value)


def test_any_form_of_the_url_is_taken(db: Database) -> None:
    plain = libpq(db.url)
    assert plain.startswith("postgresql://")
    with psycopg.connect(plain) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (
            schema.current(plain),
        )
