"""The database as the rest of the service sees it: an engine, and sessions that commit or undo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Engine, func
from sqlmodel import Session, create_engine, select

from runner.errors import InputError


class Database:
    """One PostgreSQL, by its SQLAlchemy URL (`postgresql+psycopg://`)."""

    def __init__(self, url: str, pool_size: int = 10) -> None:
        self.url = sqlalchemy_url(url)
        self.engine: Engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "application_name": "racewatch"},
        )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session in one transaction: committed at the end, undone by an exception."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Shut all connections that are not in use."""
        self.engine.dispose()


def clock(session: Session) -> datetime:
    """This moment by the database's clock: what hosts tell each other must not rest on theirs."""
    moment: datetime = session.exec(select(func.clock_timestamp())).one()
    return moment


def sqlalchemy_url(url: str) -> str:
    """A PostgreSQL URL in the form that names the driver. Raises InputError for any other."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"postgres", "postgresql", "postgresql+psycopg"}:
        raise InputError(
            f"DATABASE_URL: must be postgresql://user:password@host/name, got {scheme!r}://..."
        )
    return f"postgresql+psycopg://{rest}"
