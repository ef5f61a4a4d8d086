"""The schema of the database: made, changed and checked by Alembic, whose migrations are packaged.

While nothing is released, `0001` is edited in place: `drift` says, as Python, what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import autogenerate, command
from alembic.config import Config
from alembic.operations.ops import UpgradeOps
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlmodel import SQLModel

from runner.errors import InfrastructureError, InputError
from service import tables
from service.database import sqlalchemy_url

MIGRATIONS = Path(__file__).parent / "migrations"
METADATA = SQLModel.metadata
_LOCK = (
    0x7261_6365  # "race": of PostgreSQL's advisory locks, so that one process migrates at a time
)
_LOCK_WAIT_S = 60

assert tables.__all__, "importing the tables is what fills the metadata"


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to a revision, in one transaction; one that is there already stays.

    Several processes may do so at once. Raises InputError, InfrastructureError.
    """
    with _migrating(url) as config:
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Take the database back to a revision, `base` for the empty one. What it lacks is lost.

    Raises InputError, InfrastructureError.
    """
    with _migrating(url) as config:
        command.downgrade(config, revision)


def current(url: str) -> str | None:
    """The revision that the database is at, None for one that Racewatch never touched.

    Raises InfrastructureError where it cannot be reached.
    """
    with _connected(url) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """The revision that this Racewatch needs."""
    newest = _scripts().get_current_head()
    assert newest is not None, "there is a migration"
    return newest


def require(url: str) -> None:
    """Raises InputError where the database is at any other revision than this Racewatch needs."""
    there = current(url)
    if there == head():
        return
    known = {script.revision for script in _scripts().walk_revisions()}
    if there is not None and there not in known:
        raise InputError(_too_new(url, there))
    state = f"at revision {there}" if there else "empty"
    raise InputError(
        f"database {shown(url)} is {state}, this Racewatch needs {head()}: "
        "run `racewatch db upgrade`"
    )


def drift(url: str) -> str:
    """What the tables have and the database lacks (or has too much), as a migration's Python.

    Empty where they are equal.
    """
    with _connected(url) as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": ours, "compare_type": True}
        )
        made = autogenerate.produce_migrations(context, METADATA)
        operations = made.upgrade_ops or UpgradeOps([])
        if operations.is_empty():
            return ""
        return autogenerate.render_python_code(operations, migration_context=context)


def ours(name: str | None, kind: str, parents: object) -> bool:
    """Whether Alembic shall look at something in the database: not at Procrastinate's tables."""
    return not (kind == "table" and name is not None and name.startswith("procrastinate_"))


def shown(url: str) -> str:
    """A database's URL as it may be shown: without its password."""
    return make_url(sqlalchemy_url(url)).render_as_string().replace("+psycopg", "", 1)


def _too_new(url: str, revision: str) -> str:
    return (
        f"database {shown(url)} is at revision {revision}, which this Racewatch does not know (it "
        f"needs {head()}): update Racewatch, or name another database"
    )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


@contextmanager
def _migrating(url: str) -> Iterator[Config]:
    """A configuration whose migrations run in one transaction, under the lock."""
    with _connected(url) as connection:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_S}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        there = MigrationContext.configure(connection).get_current_revision()
        config = _config()
        config.attributes["connection"] = connection
        try:
            yield config
        except CommandError as error:
            known = {script.revision for script in _scripts().walk_revisions()}
            if there is not None and there not in known:
                raise InputError(_too_new(url, there)) from error
            revisions = ", ".join(["base", *sorted(known), "head"])
            raise InputError(
                f"database {shown(url)}: {error}; there are the revisions {revisions}"
            ) from error


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = create_engine(
        sqlalchemy_url(url),
        poolclass=NullPool,
        connect_args={"connect_timeout": 10, "application_name": "racewatch schema"},
    )
    try:
        with engine.begin() as connection:
            yield connection
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == "55P03":  # lock_not_available
            raise InfrastructureError(
                f"database {shown(url)}: something held it locked for {_LOCK_WAIT_S} s, such as "
                "another upgrade or a worker: stop that and try again"
            ) from error
        raise InfrastructureError(f"database {shown(url)}: {_first_line(error)}") from error
    except DBAPIError as error:
        raise InfrastructureError(
            f"database {shown(url)}: its schema cannot be changed: {_first_line(error)}"
        ) from error


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
