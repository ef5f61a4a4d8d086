"""The service's commands: what they print, what they store, and the sentence for what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
import typer
from sqlmodel import select
from typer.testing import CliRunner

from runner.errors import InputError, MatrixError, RacewatchError
from service import schema
from service.cli import app
from service.database import Database
from service.submit import cancel
from service.tables import ApiToken, Run, RunState
from tests.service import flow

Invoke = Callable[..., str]


@pytest.fixture
def racewatch(db: Database, home: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in this process on the test's database; what it printed.

    Raises the error that `main` makes a sentence of.
    """
    monkeypatch.setenv("DATABASE_URL", db.url)
    monkeypatch.setenv("RACEWATCH_HOME", str(home))

    def invoke(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit | typer.Exit):
            raise done.exception
        assert done.exit_code == status, done.output
        return str(done.output)

    return invoke


def only_run(db: Database) -> Run:
    with db.session() as session:
        return session.exec(select(Run)).one()


def test_submit_orders_a_run_and_prints_where_it_is_seen(db: Database, racewatch: Invoke) -> None:
    printed = racewatch(
        *("submit", "--subject", "demo", "--ref", "race", "--matrix", "quick", "--trials", "3"),
        *("--cell", "stock, alone", "--sequential"),
    )
    run = only_run(db)
    assert printed == f"http://127.0.0.1:8000/runs/{run.id}\n"
    assert (run.ref, run.matrix_name, run.queue, run.sequential) == (
        "race",
        "quick",
        "emulated",
        True,
    )
    assert {name: cell.wanted for name, cell in flow.cells(db, run.id).items()} == {
        "stock, alone": 3
    }


def test_submit_orders_a_run_for_each_kind_of_device(db: Database, racewatch: Invoke) -> None:
    racewatch(*("submit", "--ref", "main", "--queue", "sm90", "--queue", "sm100"))
    with db.session() as session:
        assert set(session.exec(select(Run.queue))) == {"sm90", "sm100"}


def test_submit_waits_for_the_end(
    db: Database, racewatch: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(seconds: float) -> None:
        with db.session() as session:
            cancel(session, only_run(db).id, "not needed")

    monkeypatch.setattr("service.cli.time.sleep", ends)
    printed = racewatch("submit", "--subject", "demo", "--ref", "race", "--wait", status=3)
    assert f"{only_run(db).id}: cancelled: not needed" in printed


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (["submit"], InputError, "name either --ref"),
        (["submit", "--ref", "a", "--version", "1"], InputError, "name either --ref"),
        (["submit", "--ref", "a", "--subject", "x"], InputError, "unknown subject 'x'; tracked"),
        (["submit", "--ref", "a", "--matrix", "no-such"], MatrixError, "no-such"),
        (["submit", "--ref", "a", "--cell", "no-such"], MatrixError, "no-such"),
        (["backfill", "main"], InputError, "must be A..B, such as v2.8..main, got 'main'"),
        (["backfill", "a...b"], InputError, "must be A..B"),
        (["import", "/no/such/file"], InputError, "/no/such/file: cannot be read"),
        (["worker", "--no-build", "--no-trials"], InputError, "nothing to do: drop one"),
        (["worker", "--parallel", "0"], InputError, "--parallel: must be at least 1, got 0"),
        (["worker", "--sandbox", "jail"], InputError, "--sandbox: unknown 'jail'"),
        (["worker", "--subject", "x"], InputError, "unknown subject 'x'"),
        (["worker", "--devices", "0,0"], InputError, "'0' is named more than once"),
        (["token", "create", "t", "--scope", "all"], InputError, "all"),
        (["token", "revoke", "nobody"], InputError, "nobody"),
        (["prune", "--days", "-1"], InputError, "must be more than 0"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_stored(
    db: Database,
    racewatch: Invoke,
    arguments: list[str],
    error: type[RacewatchError],
    sentence: str,
) -> None:
    with pytest.raises(error) as raised:
        racewatch(*arguments)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    with db.session() as session:
        assert session.exec(select(Run)).all() == []


def test_cancel_ends_a_run_once(db: Database, racewatch: Invoke) -> None:
    run = flow.started(db)
    racewatch("cancel", str(run))
    ended = flow.row(db, run)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "cancelled by racewatch cancel")
    for again in (run, uuid4()):
        with pytest.raises(
            InputError, match=f"{again} is neither a run nor a bisection that goes on"
        ):
            racewatch("cancel", str(again))


def test_a_token_is_printed_once_and_kept_as_a_digest(db: Database, racewatch: Invoke) -> None:
    plain = racewatch("token", "create", "ci", "--scope", "run", "--scope", "approve").strip()
    with db.session() as session:
        kept = session.exec(select(ApiToken)).one()
    assert plain not in str(kept.model_dump())
    assert racewatch("token", "list") == "ci: run, approve; last used never\n"
    racewatch("token", "revoke", "ci")
    assert "revoked" in racewatch("token", "list")


def test_backfill_orders_runs_of_a_history(db: Database, racewatch: Invoke) -> None:
    range_ = ("backfill", "race..fix", "--subject", "demo")
    ordered = int(racewatch(*range_).split()[0])
    assert ordered >= 1
    with db.session() as session:
        runs = session.exec(select(Run)).all()
    assert (len(runs), {run.priority for run in runs}) == (ordered, {10})
    assert racewatch(*range_) == "0 runs ordered\n"


def test_the_schema_is_upgraded_by_command(
    database: str, racewatch: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    assert racewatch("db", "current") == f"at none, needs {schema.head()}\n"
    with pytest.raises(InputError, match="run `racewatch db upgrade`"):
        racewatch("token", "list")
    assert racewatch("db", "upgrade") == f"the schema is at {schema.head()}\n"
    assert racewatch("token", "list") == ""
    racewatch("db", "downgrade", "base")
    assert racewatch("db", "current") == f"at none, needs {schema.head()}\n"


def test_the_embedded_database_needs_no_upgrade(
    racewatch: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(InputError, match="DATABASE_URL is not set: the embedded database is"):
        racewatch("db", "upgrade")


def test_a_port_that_is_taken_is_one_sentence(racewatch: Invoke) -> None:
    with pytest.raises(InputError, match=r"cannot serve on 203.0.113.1:8000: .*; choose another"):
        racewatch("serve", "--host", "203.0.113.1")
