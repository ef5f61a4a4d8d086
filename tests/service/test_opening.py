"""Commands open the database that is named, or the embedded one, with the schema they need."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlmodel import select

from runner.errors import InputError, RacewatchError
from service import schema
from service.database import Database
from service.opening import opened
from service.settings import ServiceSettings
from service.tables import Run


def test_a_named_database_is_opened_as_it_is(db: Database) -> None:
    with opened(ServiceSettings(database_url=db.url)) as database, database.session() as session:
        assert session.exec(select(Run)).all() == []


def test_a_named_database_without_a_schema_is_not_touched(database: str) -> None:
    with (
        pytest.raises(InputError, match=r"is empty, this Racewatch needs .*: run `racewatch"),
        opened(ServiceSettings(database_url=database)),
    ):
        raise AssertionError("it was opened")
    assert schema.current(database) is None


def test_a_database_that_is_not_there_is_one_sentence() -> None:
    nowhere = "postgresql://racewatch@127.0.0.1:1/racewatch"
    with pytest.raises(RacewatchError), opened(ServiceSettings(database_url=nowhere)):
        raise AssertionError("it was opened")


def test_anything_but_postgresql_is_refused() -> None:
    with (
        pytest.raises(InputError, match=r"must be postgresql://.*, got 'sqlite'"),
        opened(ServiceSettings(database_url="sqlite:///racewatch.db")),
    ):
        raise AssertionError("it was opened")


def test_without_a_name_the_embedded_one_is_brought_up_to_date_and_ends(tmp_path: Path) -> None:
    settings = ServiceSettings(database_url="", home=tmp_path)
    with opened(settings) as database:
        url = database.url
        assert schema.current(url) == schema.head()
        with opened(settings) as other, other.session() as session:  # another command meanwhile
            assert session.exec(select(Run)).all() == []
        with database.session() as session:
            assert session.connection().execute(text("SELECT 1")).scalar_one() == 1
    with pytest.raises(RacewatchError):
        schema.current(url)
