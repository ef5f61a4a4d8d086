"""Rows that are named by their content: cells, environments, commits, builds; found or made."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, SQLModel, col, select

from runner import matrix, result
from runner.run import PreparedBuild
from service.tables import Build, Cell, Commit, Environment, Measurement

_Row = TypeVar("_Row", bound=SQLModel)
# Made once: putting a statement together takes longer than sending it.
_COMMIT = (
    insert(SQLModel.metadata.tables["commits"])
    .on_conflict_do_nothing(index_elements=["subject", "sha"])
    .returning(col(Commit.id))
)
_CELLS = text("SELECT digest, id FROM cells WHERE digest = ANY(:digests)")
_REFUSED = re.compile("[\x00\ud800-\udfff]")
LOG_CHARACTERS = 64_000
"""Of a log that is kept; of a longer one both ends."""


def cell_row(session: Session, cell: matrix.Cell, reference: bool = False) -> Cell:
    """The row of what a trial is run as, whatever name and number of trials a matrix gives it."""
    return _found_or_made(session, Cell, _cell_values(cell, reference))


def cell_ids(session: Session, cells: Sequence[matrix.Cell]) -> list[int]:
    """The ids of cells' rows, in order; in one statement where all are there."""
    digests = [_cell_digest(cell) for cell in cells]
    there = session.connection().execute(_CELLS, {"digests": digests})
    known = {row.digest: row.id for row in there}
    found = (
        known.get(digest) or cell_row(session, cell).id
        for digest, cell in zip(digests, cells, strict=True)
    )
    return [identity for identity in found if identity is not None]


@lru_cache(maxsize=1024)
def _cell_digest(cell: matrix.Cell) -> str:
    return _digest(_cell_values(cell, reference=False))


def _cell_values(cell: matrix.Cell, reference: bool) -> dict[str, Any]:
    return {
        "variant": cell.variant.text,
        "program": str(cell.program),
        "background": cell.background,
        "background_period_ms": cell.background_period_ms,
        "hold_ms": cell.hold_ms,
        "recipe": str(cell.recipe),
        "reference": reference,
    }


def environment_row(
    session: Session, device: result.Device, toolchain: str, harness: str
) -> Environment:
    """The row of what trials run in. Which of a host's devices it was is each trial's own."""
    values = {
        "device_kind": device.kind,
        "device_name": device.name,
        "compute_capability": capability(device.compute_capability),
        "driver": device.driver,
        "jax": device.jax,
        "toolchain": toolchain,
        "harness": harness,
    }
    return _found_or_made(session, Environment, values)


def commit_row(session: Session, subject: str, commit: result.Commit) -> Commit:
    """The row of a commit; what is not known of it yet is filled in."""
    _made(session, subject, commit)
    row = session.exec(
        select(Commit).where(Commit.subject == subject, Commit.sha == commit.sha)
    ).one()
    if not row.title and commit.title:
        row.title, row.author = text_of(commit.title), text_of(commit.author)
        row.date = moment_of(commit.date)
        session.add(row)
        session.flush()
    return row


def commit_id(session: Session, subject: str, commit: result.Commit) -> int | None:
    """The id of a commit's row; in one statement where it is new."""
    return _made(session, subject, commit) or commit_row(session, subject, commit).id


def _made(session: Session, subject: str, commit: result.Commit) -> int | None:
    """The id of a commit's row, if it is new."""
    values = {
        "subject": subject,
        "sha": commit.sha,
        "ref": commit.ref,
        "title": text_of(commit.title),
        "author": text_of(commit.author),
        "date": moment_of(commit.date),
    }
    made: int | None = session.connection().execute(_COMMIT, values).scalar()
    return made


def build_row(session: Session, subject: str, build: PreparedBuild, asked: str) -> Build:
    """The row of a build by its key; `asked` names one that has none, such as `<sha> pr-12+stock`.

    A build that could not be made and now can be (a transform that learnt it) replaces its row.
    """
    values: dict[str, Any] = {
        "subject": subject,
        "key": build.key or f"none:{asked}",
        "outcome": str(build.outcome) if build.outcome else None,
        "signature": build.signature,
        "reason": build.reason,
        "log": both_ends(build.log),
        "seconds": build.seconds,
        "initialize": None if build.initialize is None else list(build.initialize),
        "owned_stream_needed": build.owned_stream_needed,
        "facts": json.loads(json.dumps(dict(build.facts), default=str)),
    }
    changed = {k: v for k, v in values.items() if k not in {"subject", "key", "seconds"}}
    statement = insert(Build).values(**values, created_at=datetime.now(UTC))
    session.connection().execute(
        statement.on_conflict_do_update(index_elements=["key"], set_=changed)
    )
    row = session.exec(select(Build).where(Build.key == values["key"])).one()
    session.refresh(row)
    return row


def measurement_row(
    session: Session, build: Build, cell: Cell, environment: Environment, adaptive: bool = False
) -> Measurement:
    """The row that counts the trials of a build in a cell and environment."""
    key = {
        "build_id": build.id,
        "cell_id": cell.id,
        "environment_id": environment.id,
        "adaptive": adaptive,
    }
    statement = insert(Measurement).values(**key)
    session.connection().execute(statement.on_conflict_do_nothing(index_elements=list(key)))
    return session.exec(select(Measurement).filter_by(**key)).one()


def text_of(raw: str) -> str:
    """Text as PostgreSQL takes it: no NUL, and no lone surrogate, which git's bytes may become."""
    return _REFUSED.sub("�", raw)


def both_ends(raw: str, characters: int = LOG_CHARACTERS) -> str:
    """A log cut to its beginning and its end, where it is long; PostgreSQL takes no NUL."""
    log = text_of(raw)
    if len(log) <= characters:
        return log
    half = characters // 2
    return f"{log[:half]}\n[... {len(log) - 2 * half} characters ...]\n{log[-half:]}"


def capability(version: tuple[int, int]) -> str:
    """A compute capability as `9.0`, empty where it is unknown."""
    return f"{version[0]}.{version[1]}" if version[0] else ""


def moment_of(iso: str) -> datetime | None:
    """A time in ISO 8601 as git writes it, None where there is none."""
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _found_or_made(session: Session, table: type[_Row], values: Mapping[str, Any]) -> _Row:
    digest = _digest(values)
    statement = insert(table).values(**values, digest=digest)
    session.connection().execute(statement.on_conflict_do_nothing(index_elements=["digest"]))
    return session.exec(select(table).filter_by(digest=digest)).one()


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()
