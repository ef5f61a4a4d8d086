"""What of a grid may be chosen: subjects, branches, devices, environments, matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from service.reading.environments import EMULATED, EnvironmentName, environment_name, queue_of
from service.tables import BranchCommit, Environment, Run

LOOSE = "~"
"""In place of a branch: commits that are on none, such as releases and heads of pull requests. No
branch of git can have this name."""
CLEAN_BELOW = 0.05
"""The bound that the whole grid is judged by, unless asked otherwise; matrices differ in theirs."""
MATRICES = 50
"""Matrices that are offered, those that were run last."""


@dataclass(frozen=True)
class GridFilter:
    """What is asked for; empty for what suits best, or for anything.

    branch: a branch, or LOOSE. environment: an id; None for each cell's newest. before: only
    commits older than this place (a position on the branch, else an id). pull: only commits of this
    pull request, whatever branch they are on. matrix: only cells of it. outcome: only commits that
    have it, or `failed`. text: in title or author, or how a hash begins. since, until: days (UTC),
    both included.
    """

    subject: str = ""
    branch: str = ""
    queue: str = ""
    environment: int | None = None
    before: int | None = None
    clean_below: float = CLEAN_BELOW
    pull: int | None = None
    matrix: str = ""
    outcome: str = ""
    text: str = ""
    since: date | None = None
    until: date | None = None

    @property
    def on_branch(self) -> bool:
        """Whether its commits have a place on one branch."""
        return self.branch != LOOSE and self.pull is None

    @property
    def narrowed(self) -> bool:
        """Whether commits of the branch are left out."""
        few = (self.outcome, self.text, self.since, self.until)
        return self.pull is not None or any(few)


@dataclass(frozen=True)
class Choices:
    """What is there, and which of it is shown. environments: newest first. heads: branches with
    their numbers of commits. notes: what was asked for and is not there."""

    chosen: GridFilter
    subjects: tuple[str, ...]
    branches: tuple[str, ...]
    queues: tuple[str, ...]
    environments: tuple[EnvironmentName, ...]
    matrices: tuple[str, ...]
    heads: dict[str, int]
    any_run: bool
    notes: tuple[str, ...]

    @property
    def compared(self) -> tuple[int, ...]:
        """Ids of the environments whose trials are shown, the newest first."""
        asked = self.chosen.environment
        return tuple(one.id for one in self.environments if asked in (None, one.id))


class _Scope(NamedTuple):
    """What runs there are."""

    subject: str
    queue: str
    environment: int | None
    matrix: str
    newest: datetime


_KEY = (col(Run.subject), col(Run.queue), col(Run.environment_id), col(Run.matrix_name))
_SCOPES: Select[*tuple[Any, ...]] = columns(*_KEY, func.max(col(Run.created_at))).group_by(*_KEY)


def read(session: Session, asked: GridFilter) -> Choices:
    """What there is for what was asked for."""
    scopes = [_Scope(*row) for row in session.connection().execute(_SCOPES).all()]
    scopes.sort(key=lambda scope: scope.newest, reverse=True)
    scopes.sort(key=lambda scope: scope.queue == EMULATED)  # what is real comes first
    subject = asked.subject or (scopes[0].subject if scopes else "")
    own = [scope for scope in scopes if scope.subject == subject]
    queues = tuple(dict.fromkeys(scope.queue for scope in own))
    heads = _branches(session, subject)
    branches = tuple(sorted(heads, key=lambda name: (name != "main", name)))
    chosen = replace(
        asked,
        subject=subject,
        branch=_one_of(asked.branch, (*branches, LOOSE)),
        queue=_one_of(asked.queue, queues),
    )
    matrices = tuple(dict.fromkeys(scope.matrix for scope in own if scope.queue == chosen.queue))
    if chosen.matrix not in matrices:
        chosen = replace(chosen, matrix="")
    environments = _environments(session, own, chosen.queue)
    if chosen.environment not in {one.id for one in environments}:
        chosen = replace(chosen, environment=None)
    return Choices(
        chosen=chosen,
        subjects=tuple(sorted({scope.subject for scope in scopes})),
        branches=branches,
        queues=queues,
        environments=environments,
        matrices=matrices[:MATRICES],
        heads=heads,
        any_run=bool(scopes),
        notes=_changed(asked, chosen),
    )


def _one_of(asked: str, there: Sequence[str]) -> str:
    """What was asked for, if it is there; else the first."""
    return asked if asked in there else next(iter(there), "")


def _changed(asked: GridFilter, chosen: GridFilter) -> tuple[str, ...]:
    """What was asked for and is not there, such as a branch of another subject."""
    notes = []
    if asked.branch not in ("", chosen.branch):
        notes.append(f"{chosen.subject} has no branch {asked.branch}")
    if asked.queue not in ("", chosen.queue):
        notes.append(f"no run of {chosen.subject} asked for {asked.queue}")
    if asked.environment not in (None, chosen.environment):
        notes.append("nothing of this was measured in the environment that was asked for")
    if asked.matrix not in ("", chosen.matrix):
        notes.append(f"no run of {chosen.subject} on {chosen.queue} used matrix {asked.matrix}")
    return tuple(notes)


def _branches(session: Session, subject: str) -> dict[str, int]:
    """Each branch of the subject, and how many commits it has."""
    found = session.exec(
        select(BranchCommit.branch, func.count())
        .where(BranchCommit.subject == subject)
        .group_by(col(BranchCommit.branch))
    )
    return dict(found.all())


def _environments(
    session: Session, scopes: Sequence[_Scope], queue: str
) -> tuple[EnvironmentName, ...]:
    """Those in which this queue's trials of the subject may have run, the newest first."""
    used = dict.fromkeys(scope.environment for scope in scopes if scope.queue == queue)
    found = [
        environment
        for environment in session.exec(select(Environment))
        if environment.emulated == (queue == EMULATED)
        and (environment.id in used or queue_of(environment) == queue)
    ]
    place = {identity: n for n, identity in enumerate(used)}
    found.sort(key=lambda one: (place.get(one.id, len(place)), -(one.id or 0)))
    return tuple(environment_name(environment) for environment in found)
