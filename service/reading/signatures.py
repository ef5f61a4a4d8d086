"""Failures by signature: how often, first and last seen, and by commit, cell and device.

These count trials, which no other page of many commits does, so pages keep the answers for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, func
from sqlalchemy import select as columns
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by
from sqlmodel import Session, col, select

from runner.outcome import FAILURES, Outcome
from service.reading.cells import CellName, cell_name
from service.reading.environments import EMULATED, EnvironmentName, environment_name
from service.tables import BranchCommit, Cell, Commit, Environment, Measurement, Run, Trial

SHOWN = 200
"""Signatures on the page."""
KNOWN_TRIALS = 5_000
"""Trials that ended alike which are counted while someone looks at one of them."""
COMMITS, TRIALS = 100, 20
"""Commits and trials of one signature on its page."""
FAILED = "failed"
OUTCOMES = (FAILED, *(str(outcome) for outcome in Outcome if outcome is not Outcome.PASS))


class SignatureFilter(NamedTuple):
    """Which trials. outcome: one, `failed` for all that are failures, empty for all but passes."""

    subject: str = ""
    queue: str = ""
    outcome: str = FAILED


class Group(NamedTuple):
    """Trials of a subject on a queue that ended alike. first, last: ids of trials."""

    subject: str
    queue: str
    outcome: str
    signature: str
    trials: int
    first: int
    last: int
    commits: int


@dataclass(frozen=True)
class Seen:
    """One trial that ended so: when, and at which commit. sha: empty where it is not known."""

    trial: int
    at: datetime
    run: str
    subject: str
    sha: str
    title: str


@dataclass(frozen=True)
class SignatureLine:
    """A signature in the list."""

    group: Group
    first: Seen
    last: Seen

    @property
    def emulated(self) -> bool:
        """True where no GPU took part."""
        return self.group.queue == EMULATED


@dataclass(frozen=True)
class SignaturesPage:
    """The list, the most recently seen first. more: there are others."""

    asked: SignatureFilter
    lines: tuple[SignatureLine, ...]
    more: bool
    subjects: tuple[str, ...]
    queues: tuple[str, ...]


@dataclass(frozen=True)
class CommitCount:
    """Trials at one commit that ended so. branch, position: where the commit is, if on a branch."""

    sha: str
    title: str
    date: datetime | None
    branch: str
    position: int
    count: int
    trial: int


@dataclass(frozen=True)
class CellCount:
    """Trials of one cell that ended so."""

    cell: CellName
    count: int


@dataclass(frozen=True)
class DeviceCount:
    """Trials in one environment that ended so."""

    environment: EnvironmentName
    count: int


@dataclass(frozen=True)
class Known:
    """How often trials ended so, at how many commits, and the first that was stored. more: these
    are only the first of them."""

    trials: int
    commits: int
    first: Seen
    more: bool = False


@dataclass(frozen=True)
class SignaturePage:
    """One signature. commits: newest first, by branch and place. trials: the newest."""

    line: SignatureLine
    commits: tuple[CommitCount, ...]
    more_commits: int
    cells: tuple[CellCount, ...]
    devices: tuple[DeviceCount, ...]
    trials: tuple[Seen, ...]


def find(session: Session, asked: SignatureFilter) -> tuple[Group, ...]:
    """All groups, the most recently seen first."""
    by_run = (
        columns(
            col(Trial.outcome),
            col(Trial.signature),
            col(Trial.run_id),
            func.count().label("count"),
            func.min(col(Trial.id)).label("first"),
            func.max(col(Trial.id)).label("last"),
            func.min(col(Trial.finished_at)).label("began"),
            func.max(col(Trial.finished_at)).label("ended"),
        )
        .where(_ended(asked.outcome))
        .group_by(col(Trial.outcome), col(Trial.signature), col(Trial.run_id))
        .subquery()
    )
    # By time, not by id: an import stores late what ran early.
    first = func.array_agg(
        aggregate_order_by(by_run.c.first, by_run.c.began), type_=ARRAY(BigInteger)
    )[1]
    last = func.array_agg(
        aggregate_order_by(by_run.c.last, by_run.c.ended.desc()), type_=ARRAY(BigInteger)
    )[1]
    key = (col(Run.subject), col(Run.queue), by_run.c.outcome, by_run.c.signature)
    query: Select[*tuple[Any, ...]] = (
        columns(
            *key,
            func.sum(by_run.c.count),
            first,
            last,
            func.count(func.distinct(col(Run.commit_id))),
        )
        .join(Run, col(Run.id) == by_run.c.run_id)
        .group_by(*key)
        .order_by(func.max(by_run.c.ended).desc(), *key)
    )
    if asked.subject:
        query = query.where(col(Run.subject) == asked.subject)
    if asked.queue:
        query = query.where(col(Run.queue) == asked.queue)
    return tuple(
        Group(row[0], row[1], row[2], row[3], int(row[4]), row[5], row[6], row[7])
        for row in session.connection().execute(query).all()
    )


def _ended(outcome: str) -> ColumnElement[bool]:
    """Trials that ended so. All are among those that the index of signatures has."""
    # Control cells fail as they should, which is no news.
    failed = (col(Trial.outcome) != Outcome.PASS) & (col(Trial.control) == "")
    if outcome == FAILED:
        return failed & col(Trial.outcome).in_(list(FAILURES))
    return failed & (col(Trial.outcome) == outcome) if outcome else failed


def with_text(groups: Sequence[Group], text: str) -> Sequence[Group]:
    """Those with all of its words in their signature, in any case, whatever stands between."""
    words = text.casefold().split()
    return [one for one in groups if all(word in one.signature.casefold() for word in words)]


def read(session: Session, asked: SignatureFilter, groups: Sequence[Group]) -> SignaturesPage:
    """The list of these groups."""
    shown = groups[:SHOWN]
    seen = _seen(session, [trial for group in shown for trial in (group.first, group.last)])
    scopes = session.exec(
        select(Run.subject, Run.queue).group_by(col(Run.subject), col(Run.queue))
    ).all()
    return SignaturesPage(
        asked=asked,
        lines=tuple(
            SignatureLine(group, seen[group.first], seen[group.last])
            for group in shown
            if {group.first, group.last} <= seen.keys()
        ),
        more=len(groups) > SHOWN,
        subjects=tuple(sorted({subject for subject, _ in scopes})),
        queues=tuple(sorted({queue for _, queue in scopes})),
    )


def _seen(session: Session, trials: Iterable[int]) -> dict[int, Seen]:
    found = session.exec(
        select(Trial, Run, Commit)
        .join(Run, col(Run.id) == col(Trial.run_id))
        .join(Commit, col(Commit.id) == col(Run.commit_id), isouter=True)
        .where(col(Trial.id).in_(set(trials)))
    )
    return {
        trial.id or 0: Seen(
            trial=trial.id or 0,
            at=trial.finished_at,
            run=str(run.id),
            subject=run.subject,
            sha=commit.sha if commit else run.head_sha,
            title=commit.title if commit else "",
        )
        for trial, run, commit in found
    }


def known(session: Session, subject: str, queue: str, outcome: str, signature: str) -> Known | None:
    """How often trials ended so, and since when; None for none."""
    alike = (
        columns(col(Trial.id).label("trial"), col(Run.commit_id).label("commit"))
        .join(Run, col(Run.id) == col(Trial.run_id))
        .where(*_alike(subject, queue, outcome, signature))
        .order_by(col(Trial.id))
        .limit(KNOWN_TRIALS + 1)
        .subquery()
    )
    count, commits, first = (
        session.connection()
        .execute(
            columns(
                func.count(), func.count(func.distinct(alike.c.commit)), func.min(alike.c.trial)
            )
        )
        .one()
    )
    if not count:
        return None
    more = count > KNOWN_TRIALS
    return Known(min(count, KNOWN_TRIALS), commits, _seen(session, [first])[first], more)


def _alike(
    subject: str, queue: str, outcome: str, signature: str
) -> tuple[ColumnElement[bool], ...]:
    return (
        col(Trial.outcome) != Outcome.PASS,
        col(Trial.control) == "",
        col(Trial.outcome) == outcome,
        col(Trial.signature) == signature,
        col(Run.subject) == subject,
        col(Run.queue) == queue,
    )


def read_one(
    session: Session, subject: str, queue: str, outcome: str, signature: str
) -> SignaturePage | None:
    """One signature; None where no trial ended so."""
    query: Select[*tuple[Any, ...]] = (
        columns(
            col(Run.commit_id),
            col(Measurement.cell_id),
            col(Measurement.environment_id),
            func.count(),
            func.min(col(Trial.id)),
            func.max(col(Trial.id)),
            func.min(col(Trial.finished_at)),
            func.max(col(Trial.finished_at)),
        )
        .join(Run, col(Run.id) == col(Trial.run_id))
        .join(Measurement, col(Measurement.id) == col(Trial.measurement_id))
        .where(*_alike(subject, queue, outcome, signature))
        .group_by(col(Run.commit_id), col(Measurement.cell_id), col(Measurement.environment_id))
    )
    rows = session.connection().execute(query).all()
    if not rows:
        return None
    first = min(rows, key=lambda row: (row[6], row[4]))[4]
    last = max(rows, key=lambda row: (row[7], row[5]))[5]
    commits = _commits(session, subject, rows)
    counted = {commit for commit, *_ in rows if commit is not None}
    newest = _newest(session, subject, queue, outcome, signature)
    seen = _seen(session, [first, last, *newest])
    total = sum(row[3] for row in rows)
    group = Group(subject, queue, outcome, signature, total, first, last, len(counted))
    return SignaturePage(
        line=SignatureLine(group, seen[first], seen[last]),
        commits=commits[:COMMITS],
        more_commits=max(0, len(commits) - COMMITS),
        cells=_cells(session, rows),
        devices=_devices(session, rows),
        trials=tuple(seen[trial] for trial in newest),
    )


def _newest(
    session: Session, subject: str, queue: str, outcome: str, signature: str
) -> Sequence[int]:
    query = (
        select(Trial.id)
        .join(Run, col(Run.id) == col(Trial.run_id))
        .where(*_alike(subject, queue, outcome, signature))
        .order_by(col(Trial.id).desc())
        .limit(TRIALS)
    )
    return [trial for trial in session.exec(query) if trial is not None]


def _summed(rows: Iterable[Sequence[Any]], column: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in rows:
        found[row[column]] = found.get(row[column], 0) + row[3]
    return found


def _commits(
    session: Session, subject: str, rows: Iterable[Sequence[Any]]
) -> tuple[CommitCount, ...]:
    rows = list(rows)
    counts = _summed(rows, 0)
    newest: dict[int, int] = {}
    for row in rows:
        newest[row[0]] = max(newest.get(row[0], 0), row[5])
    ids = [commit for commit in counts if commit is not None]
    places: dict[int, tuple[str, int]] = {}
    for place in session.exec(
        select(BranchCommit)
        .where(BranchCommit.subject == subject, col(BranchCommit.commit_id).in_(ids))
        .order_by(col(BranchCommit.branch) == "main", col(BranchCommit.branch).desc())
    ):
        places[place.commit_id] = (place.branch, place.position)
    found = [
        CommitCount(
            sha=commit.sha,
            title=commit.title,
            date=commit.date,
            branch=places.get(commit.id or 0, ("", -1))[0],
            position=places.get(commit.id or 0, ("", -1))[1],
            count=counts[commit.id or 0],
            trial=newest[commit.id or 0],
        )
        for commit in session.exec(select(Commit).where(col(Commit.id).in_(ids)))
    ]
    found.sort(key=lambda one: (one.branch != "main", one.branch, -one.position, -one.trial))
    return tuple(found)


def _cells(session: Session, rows: Iterable[Sequence[Any]]) -> tuple[CellCount, ...]:
    counts = _summed(rows, 1)
    found = session.exec(select(Cell).where(col(Cell.id).in_(list(counts))))
    cells = [CellCount(cell_name(cell), counts[cell.id or 0]) for cell in found]
    return tuple(sorted(cells, key=lambda one: (-one.count, one.cell.order)))


def _devices(session: Session, rows: Iterable[Sequence[Any]]) -> tuple[DeviceCount, ...]:
    counts = _summed(rows, 2)
    found = session.exec(select(Environment).where(col(Environment.id).in_(list(counts))))
    devices = [DeviceCount(environment_name(one), counts[one.id or 0]) for one in found]
    return tuple(sorted(devices, key=lambda one: (-one.count, one.environment.full)))
