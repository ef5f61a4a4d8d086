"""Bisections: the list of them, and one with its posterior, what it saw and what it does next.

A bisection's state is the fold of its events, so all of this is worked out anew whenever somebody
looks; only a verdict is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func
from sqlalchemy import select as columns
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from runner.bisect.bisection import Bisection as State
from runner.bisect.bisection import Level, Spent, Stage
from runner.bisect.decision import Decision, Probe
from runner.bisect.events import Entered, Event, Observation, Reverted, Seen, from_data
from runner.bisect.policy import Costs
from runner.bisect.posterior import Tally
from runner.bisect.range import BuildClass, Range
from runner.bisect.settings import Observe
from runner.bisect.verdict import SideRate, Verdict, VerdictKind, likeliest
from runner.bisect.verification import Check
from runner.matrix import Cell as MatrixCell
from runner.result import Commit
from runner.statistics.comparison import interval
from runner.statistics.counts import Counts
from service import bisection
from service.reading.environments import EMULATED
from service.reading.rate import Mark
from service.tables import Bisection, BisectionEvent, BisectionState, Run, RunCell
from service.tables import Commit as CommitRow
from service.tables.columns import now

BISECTIONS = 50
"""Bisections on a page of the list."""
NOTHING = Spent()


@dataclass(frozen=True)
class BisectionFilter:
    """Which bisections are listed; empty for any. before: only those older than this one."""

    subject: str = ""
    queue: str = ""
    state: str = ""
    before: UUID | None = None


@dataclass(frozen=True)
class BisectionLine:
    """A bisection in the list.

    observe: what it counts of a trial. cause: the run whose regression started it, None where
    somebody asked for it. classes: of its range, None while that is not known.
    """

    id: UUID
    subject: str
    good: str
    bad: str
    matrix: str
    cell: str
    queue: str
    toolchain: str
    confidence: float
    budget_s: float | None
    state: str
    reason: str
    requested_by: str
    observe: Observe
    cause: UUID | None
    classes: int | None
    spent: Spent
    verdict: Verdict | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def emulated(self) -> bool:
        """True where no GPU takes part."""
        return self.queue == EMULATED

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.state in bisection.OPEN

    @property
    def mark(self) -> Mark:
        """What its verdict says at a glance."""
        if self.verdict is None:
            return Mark.NOT_RUN
        if self.verdict.kind in (VerdictKind.CULPRIT, VerdictKind.AMONG):
            return Mark.FIXED if self.verdict.fixed else Mark.REGRESSED
        return _MARKS[self.verdict.kind]

    @property
    def label(self) -> str:
        """The verdict in a word or two, empty where there is none."""
        if self.verdict is None:
            return ""
        if self.verdict.kind is VerdictKind.CULPRIT:
            return "fix" if self.verdict.fixed else "culprit"
        if self.verdict.kind is VerdictKind.AMONG:
            return f"one of {len(self.verdict.commits)} commits"
        return str(self.verdict.kind)


_MARKS = {
    VerdictKind.NOT_SURE: Mark.UNDERSAMPLED,
    VerdictKind.NO_CHANGE: Mark.NOT_RUN,
    VerdictKind.NOT_MEASURED: Mark.INFRA_ERROR,
}


@dataclass(frozen=True)
class BisectionList:
    """A page of the list, newest first. older: `before` of the next page, None on the last."""

    chosen: BisectionFilter
    bisections: tuple[BisectionLine, ...]
    older: UUID | None
    subjects: tuple[str, ...]
    queues: tuple[str, ...]
    states: tuple[str, ...]


@dataclass(frozen=True)
class Suspect:
    """A class of the range, and the commit by which the path leads into it.

    commit: that one; at the good end, where the path begins, the one that is built. built: whose
    build stands for the class; same: its other commits, which share that build. probability: that
    `commit` brought the change, None at the good end. tally: trials of the build that count, within
    `low` to `high` (they hold the rate with 95 % however many trials there are). broken: why it
    cannot be measured. forward: False where the path goes back in time there. base: both ends meet
    there. suspected: it is among those that are being checked, or were found.
    """

    place: int
    commit: Commit
    built: Commit
    same: tuple[Commit, ...]
    key: str
    probability: float | None
    tally: Tally
    low: float
    high: float
    broken: str
    forward: bool
    merge: bool
    base: bool
    suspected: bool

    @property
    def rate(self) -> float | None:
        """Failures per trial, None without one."""
        return self.tally.k / self.tally.n if self.tally.n else None


@dataclass(frozen=True)
class Searched:
    """A range that is or was searched. inside: the merge that it is in, None for the outermost.

    none: probability that the rate does not change in it. first, last: places of the shortest
    stretch of commits that holds the change as surely as was asked for, given that there is one.
    """

    range: Range
    inside: Commit | None
    none: float
    suspects: tuple[Suspect, ...]
    first: int
    last: int

    @property
    def likeliest(self) -> Suspect:
        """The one with the highest probability."""
        return max(self.suspects[1:], key=lambda suspect: suspect.probability or 0.0)


@dataclass(frozen=True)
class ObservationLine:
    """One thing that happened.

    event: `observation`, `entered` or `reverted`. commit: that it is of. run: the probe that it
    came of, None for trials that were there before. likeliest, probability: of the posterior right
    after it, while the search went on.
    """

    number: int
    at: datetime
    event: str
    commit: Commit | None
    key: str
    seen: Seen | None
    tally: Tally
    check: int
    build_s: float
    trial_s: float
    reason: str
    run: UUID | None
    likeliest: Commit | None = None
    probability: float | None = None


@dataclass(frozen=True)
class RunningProbe:
    """A probe that is under way. done: of its trials, those that are stored."""

    run: UUID
    state: str
    probe: Probe
    done: int
    created_at: datetime


@dataclass(frozen=True)
class BisectionPage:
    """One bisection.

    searched: the range and, innermost last, those inside merges. next: what is to be done now, None
    once it has ended. spent, costs: what it took so far, and what a build and a trial take.
    bits: that the search still misses, 0 once it is over: about as many builds, one after the
    other. seconds_left: what they take. known: hashes of commits that have a page here. made:
    hashes of commits that it made itself, which are nowhere else.
    """

    line: BisectionLine
    cell: MatrixCell
    range: Range | None
    searched: tuple[Searched, ...]
    stage: Stage | None
    observations: tuple[ObservationLine, ...]
    checks: tuple[Check, ...]
    running: tuple[RunningProbe, ...]
    next: Decision | None
    spent: Spent
    costs: Costs | None
    elapsed_s: float
    bits: float
    seconds_left: float
    known: frozenset[str]
    made: frozenset[str]

    @property
    def verdict(self) -> Verdict | None:
        """How it ended, None before."""
        return self.line.verdict

    @property
    def reused(self) -> int:
        """Trials that were there before, for nothing."""
        return sum(seen.tally.n for seen in self.observations if not seen.trial_s)


def read_list(session: Session, asked: BisectionFilter) -> BisectionList:
    """The newest bisections that the filter lets through."""
    query = select(Bisection)
    for column, value in (
        (Bisection.subject, asked.subject),
        (Bisection.queue, asked.queue),
        (Bisection.state, asked.state),
    ):
        if value:
            query = query.where(col(column) == value)
    last = session.get(Bisection, asked.before) if asked.before else None
    if last is not None:
        query = query.where(older_than(last.created_at, last.id))
    query = query.order_by(*NEWEST_FIRST).limit(BISECTIONS + 1)
    found = session.exec(query.options(WITHOUT_RANGE)).all()
    lines = read_lines(session, found[:BISECTIONS])
    there = session.exec(select(Bisection.subject, Bisection.queue).distinct()).all()
    return BisectionList(
        chosen=asked,
        bisections=lines,
        older=lines[-1].id if len(found) > BISECTIONS else None,
        subjects=tuple(sorted({subject for subject, _ in there})),
        queues=tuple(sorted({queue for _, queue in there})),
        states=tuple(map(str, BisectionState)),
    )


NEWEST_FIRST = (col(Bisection.created_at).desc(), col(Bisection.id))
"""The order of the index `bisections_by_time`."""
WITHOUT_RANGE = defer(Bisection.searched)  # type: ignore[arg-type]
"""A list needs no ranges, each of which may hold hundreds of commits."""


def older_than(moment: datetime, identity: UUID) -> Any:
    """What comes after that one in the order NEWEST_FIRST."""
    return (col(Bisection.created_at) < moment) | (
        (col(Bisection.created_at) == moment) & (col(Bisection.id) > identity)
    )


def read_lines(session: Session, found: Sequence[Bisection]) -> tuple[BisectionLine, ...]:
    """Bisections as lines of a list, with what each has cost."""
    ids = [row.id for row in found]
    spent = _spent(session, ids)
    size = func.jsonb_array_length(col(Bisection.searched)["classes"])
    query = columns(col(Bisection.id), size).where(col(Bisection.id).in_(ids))
    classes: dict[UUID, int | None] = dict(session.connection().execute(query).all())
    return tuple(_line(row, classes.get(row.id), spent.get(row.id, NOTHING)) for row in found)


def _spent(session: Session, ids: Sequence[UUID]) -> dict[UUID, Spent]:
    """What each has cost, from its observations alone: no state has to be folded for it."""
    found = session.exec(
        select(BisectionEvent.bisection_id, BisectionEvent.data)
        .where(
            col(BisectionEvent.bisection_id).in_(ids),
            col(BisectionEvent.data)["event"].astext == "observation",
        )
        .order_by(col(BisectionEvent.bisection_id), col(BisectionEvent.number))
    )
    spent: dict[UUID, Spent] = {}
    for identity, data in found:
        seen = from_data(dict(data))
        assert isinstance(seen, Observation), "the query asks for these"
        spent[identity] = spent.get(identity, NOTHING).plus(seen)
    return spent


def _line(row: Bisection, classes: int | None, spent: Spent) -> BisectionLine:
    return BisectionLine(
        id=row.id,
        subject=row.subject,
        good=row.good,
        bad=row.bad,
        matrix=row.matrix_name,
        cell=row.cell_name,
        queue=row.queue,
        toolchain=row.toolchain,
        confidence=row.confidence,
        budget_s=row.budget_s,
        state=row.state,
        reason=row.reason,
        requested_by=row.requested_by,
        observe=Observe(row.observe),
        cause=row.cause_id,
        classes=classes,
        spent=spent,
        verdict=verdict_of(row.verdict),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def verdict_of(data: Mapping[str, Any] | None) -> Verdict | None:
    """The verdict that `service.bisection.verdict_data` wrote."""
    if data is None:
        return None
    return Verdict(
        kind=VerdictKind(data["kind"]),
        text=data["text"],
        probability=data["probability"],
        commits=tuple(Commit(**commit) for commit in data["commits"]),
        fixed=data["fixed"],
        before=_side(data["before"]),
        after=_side(data["after"]),
        reason=data["reason"],
    )


def _side(data: Mapping[str, Any] | None) -> SideRate | None:
    if data is None:
        return None
    return SideRate(Tally(*data["tally"]), data["rate"], data["low"], data["high"])


def read(session: Session, identity: UUID) -> BisectionPage | None:
    """A bisection as it stands; None where there is none of that id."""
    row = session.get(Bisection, identity)
    if row is None:
        return None
    stored = session.exec(
        select(BisectionEvent)
        .where(BisectionEvent.bisection_id == row.id)
        .order_by(col(BisectionEvent.number))
    ).all()
    happened = [from_data(dict(one.data)) for one in stored]
    observations, state = _folded(row, stored, happened)
    spent = state.spent if state else NOTHING
    line = _line(row, len(state.levels[0].range.classes) if state else None, spent)
    running = _running(session, row)
    ended = row.finished_at or now()
    ranges = [level.range for level in state.levels] if state else []
    made = {e.commit.sha for e in happened if isinstance(e, Reverted) and e.commit is not None}
    named = {commit.sha for one in ranges for commit in _commits(one)} | made
    searching = line.is_open and state is not None and state.stage is Stage.SEARCH
    return BisectionPage(
        line=line,
        cell=bisection.cell_of(row),
        range=ranges[0] if ranges else None,
        searched=_searched(state) if state else (),
        stage=state.stage if state else None,
        observations=observations,
        checks=state.checks if state else (),
        running=running,
        next=bisection.decision(session, row) if line.is_open else None,
        spent=spent,
        costs=state.costs if state else None,
        elapsed_s=(ended - (row.started_at or row.created_at)).total_seconds(),
        bits=state.posterior.entropy if state and searching else 0.0,
        seconds_left=state.seconds_left if state and searching else 0.0,
        known=_known(session, row.subject, named),
        made=frozenset(made),
    )


def _folded(
    row: Bisection, stored: Sequence[BisectionEvent], happened: Sequence[Event]
) -> tuple[tuple[ObservationLine, ...], State | None]:
    """What happened, each with what was likeliest after it; and the state that it led to."""
    state = bisection.state_of(row, ())
    if state is None:
        return (), None
    commits = _named(state.range, happened)
    lines = []
    for one, event in zip(stored, happened, strict=True):
        state = state.observe(event)
        line = _observation(one, event, commits)
        if state.stage is Stage.SEARCH:
            steps = state.posterior.steps
            place = max(range(1, len(steps)), key=lambda i: steps[i])
            leader = state.range.classes[place]
            line = replace(line, likeliest=leader.blamed or leader.commit, probability=steps[place])
        lines.append(line)
    return tuple(lines), state


def _named(searched: Range, happened: Iterable[Event]) -> dict[str, Commit]:
    """The commit that stands for each key that anything can be of."""
    ranges = [searched]
    found: dict[str, Commit] = {}
    for event in happened:
        if isinstance(event, Entered) and event.range is not None:
            ranges.append(event.range)
        elif isinstance(event, Reverted) and event.commit is not None:
            found[event.key] = event.commit
    for each in ranges:
        found |= {one.key: one.commit for one in each.classes}
    return found


def _observation(
    stored: BisectionEvent, event: Event, commits: Mapping[str, Commit]
) -> ObservationLine:
    nothing = ObservationLine(
        number=stored.number,
        at=stored.created_at,
        event=str(stored.data["event"]),
        commit=None,
        key="",
        seen=None,
        tally=Tally(),
        check=0,
        build_s=0.0,
        trial_s=0.0,
        reason="",
        run=stored.run_id,
    )
    match event:
        case Observation():
            return replace(
                nothing,
                commit=commits.get(event.key),
                key=event.key,
                seen=event.seen,
                tally=event.tally,
                check=event.check,
                build_s=event.build_s,
                trial_s=event.trial_s,
                reason=event.reason,
            )
        case Entered(range=inner):
            why = event.reason or "its branch has no build of its own"
            text = inner.text if inner else why
            return replace(nothing, commit=inner.bad if inner else None, reason=text)
        case Reverted():
            return replace(nothing, commit=event.commit, key=event.key, reason=event.reason)


def _searched(state: State) -> tuple[Searched, ...]:
    found: list[Searched] = []
    inside: Commit | None = None
    for number, level in enumerate(state.levels, start=1):
        # As if this were the innermost: its posterior is of its own range.
        found.append(_level(replace(state, levels=state.levels[:number]), level, inside))
        if level.suspect is not None:
            inside = level.range.classes[level.suspect[0]].blamed
    return tuple(found)


def _level(state: State, level: Level, inside: Commit | None) -> Searched:
    first, end = level.suspect or (0, 0)
    within = likeliest(state.posterior, state.settings.confidence)
    return Searched(
        range=level.range,
        inside=inside,
        none=state.posterior.none,
        suspects=tuple(
            _suspect(state, place, each, first <= place < end)
            for place, each in enumerate(level.range.classes)
        ),
        first=within[0],
        last=within[1] - 1,
    )


def _suspect(state: State, place: int, each: BuildClass, suspected: bool) -> Suspect:
    tally = state.tallies.get(each.key, Tally())
    low, high = interval(Counts(tally.k, tally.n), adaptive=True) if tally.n else (0.0, 1.0)
    return Suspect(
        place=place,
        commit=each.blamed or each.commit,
        built=each.commit,
        same=each.commits[1:],
        key=each.key,
        probability=state.posterior.steps[place] if place else None,
        tally=tally,
        low=low,
        high=high,
        broken=state.broken.get(each.key, ""),
        forward=each.forward,
        merge=bool(each.second_parent),
        base=place == state.range.base,
        suspected=suspected,
    )


def _commits(searched: Range) -> Iterable[Commit]:
    for each in searched.classes:
        yield from each.commits
        if each.blamed is not None:
            yield each.blamed


def _known(session: Session, subject: str, shas: Iterable[str]) -> frozenset[str]:
    found = session.exec(
        select(CommitRow.sha).where(CommitRow.subject == subject, col(CommitRow.sha).in_(shas))
    )
    return frozenset(found)


def _running(session: Session, row: Bisection) -> tuple[RunningProbe, ...]:
    runs = bisection.probes(session, row, open_only=True)
    stored: dict[UUID, int] = dict(
        session.exec(
            select(RunCell.run_id, RunCell.recorded).where(
                col(RunCell.run_id).in_([run.id for run in runs])
            )
        ).all()
    )
    return tuple(_probe(run, stored.get(run.id, 0)) for run in runs)


def _probe(run: Run, done: int) -> RunningProbe:
    return RunningProbe(run.id, run.state, bisection.probe_of(run), done, run.created_at)
