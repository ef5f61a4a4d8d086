"""Two commits, or two variants of one, against each other: cell by cell, and bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, select

from runner.statistics.comparison import ERROR, difference, fisher
from runner.statistics.control import ControlVerdict
from runner.statistics.counts import Counts
from runner.statistics.verdict import judge_cell
from service.reading import measured
from service.reading.cells import CellName, cell_name
from service.reading.doubted import NONE, Doubts
from service.reading.environments import EnvironmentName, environment_name, queue_of
from service.reading.grid_choices import CLEAN_BELOW
from service.reading.measured import Measured
from service.reading.rate import (
    MARK_OF_KIND,
    Mark,
    Rate,
    Swallow,
    mark_of_outcome,
    mark_of_swallow,
    rate_of_measurement,
)
from service.tables import BranchCommit, Commit, Environment, Run, RunState

OFFERED = 200
"""Newest commits that the form offers."""
PARITY_RUNS = 20


@dataclass(frozen=True)
class CompareFilter:
    """What is compared: commit `a` as base with `b` as head, by the beginnings of their hashes.

    base, head: variants; where they are given, cells of the one at `a` are compared with those of
    the other at `b`, such as stock with owned-stream at one commit.
    """

    subject: str = ""
    a: str = ""
    b: str = ""
    base: str = ""
    head: str = ""
    queue: str = ""
    clean_below: float = CLEAN_BELOW


@dataclass(frozen=True)
class ComparedCommit:
    """One of the two."""

    id: int
    sha: str
    title: str
    ref: str


@dataclass(frozen=True)
class ComparedSwallow:
    """The second rate of a cell at both: trials with foreign work in a capture window.

    a, b: None where no trial was watched. All else as a ComparedRow has it.
    """

    a: Swallow | None
    b: Swallow | None
    mark: Mark
    label: str
    p: float | None
    difference: tuple[float, float] | None
    needed: tuple[int, int]

    @property
    def direction(self) -> str:
        """`higher` or `lower`, as the rate of b is seen; empty where it is neither."""
        if self.p is None or self.a is None or self.b is None:
            return ""
        return "higher" if self.b.rate > self.a.rate else "lower"


@dataclass(frozen=True)
class ComparedRow:
    """A cell at both. a, b: None where nothing was measured; why_a, why_b: what is known of that.

    mark, label: the verdict on b against a; NOT_RUN where one of them was not measured. p: of "not
    higher" where b's rate is higher, of "not lower" where it is lower; None where they are equal.
    difference: of the rates, about 95 %. same: both have the same build, and so the same trials.
    needed: further trials of b, of a, that would settle it. swallow: the second rate, None where
    neither was watched.
    """

    cell: CellName
    queue: str
    environment: EnvironmentName | None
    a: Rate | None
    b: Rate | None
    why_a: str
    why_b: str
    measurement_a: int | None
    measurement_b: int | None
    mark: Mark
    label: str
    p: float | None
    difference: tuple[float, float] | None
    same: bool
    needed: tuple[int, int]
    swallow: ComparedSwallow | None

    @property
    def differs(self) -> bool:
        """Whether the two are shown to differ."""
        return self.p is not None and self.p < ERROR

    @property
    def direction(self) -> str:
        """`higher` or `lower`, as the rate of b is seen; empty where it is neither."""
        if self.p is None or self.a is None or self.b is None:
            return ""
        return "higher" if (self.b.rate or 0.0) > (self.a.rate or 0.0) else "lower"


@dataclass(frozen=True)
class Parity:
    """Whether outputs of one program and recipe are bitwise the same. where: the environment."""

    of: str
    where: str
    equal: bool
    reason: str


@dataclass(frozen=True)
class ComparePage:
    """The comparison. a, b: None where nothing was asked for yet. offered: commits to choose."""

    asked: CompareFilter
    a: ComparedCommit | None
    b: ComparedCommit | None
    rows: tuple[ComparedRow, ...]
    parity: tuple[Parity, ...]
    subjects: tuple[str, ...]
    queues: tuple[str, ...]
    variants: tuple[str, ...]
    offered: tuple[ComparedCommit, ...]

    def counted(self, mark: Mark) -> int:
        """How many cells have that verdict."""
        return sum(row.mark is mark for row in self.rows)

    @property
    def watched(self) -> tuple[ComparedRow, ...]:
        """Cells of which there is a second rate."""
        return tuple(row for row in self.rows if row.swallow)

    @property
    def compared(self) -> int:
        """Cells that both have, on builds of their own."""
        return sum(row.difference is not None for row in self.rows)

    @property
    def lower(self) -> int:
        """Cells whose rate is shown lower, but that are not yet shown clean."""
        return sum(
            row.differs and row.direction == "lower" and row.mark is not Mark.FIXED
            for row in self.rows
        )

    @property
    def environment(self) -> EnvironmentName | None:
        """The one environment of all cells; None where there are several."""
        there = {row.environment for row in self.rows if row.environment is not None}
        return there.pop() if len(there) == 1 else None


class NoSuchCommit(LookupError):
    """A commit that is asked for is not there, or not clear. The text says which, and why."""


def read(session: Session, asked: CompareFilter, doubts: Doubts = NONE) -> ComparePage:
    """The comparison; without commits, what could be compared. Raises NoSuchCommit."""
    scopes = session.exec(
        select(Run.subject, Run.queue).group_by(col(Run.subject), col(Run.queue))
    ).all()
    subjects = tuple(sorted({subject for subject, _ in scopes}))
    subject = asked.subject or ("te" if "te" in subjects else next(iter(subjects), ""))
    a = _commit(session, subject, asked.a) if asked.a else None
    b = _commit(session, subject, asked.b) if asked.b else None
    rows: tuple[ComparedRow, ...] = ()
    parity: tuple[Parity, ...] = ()
    variants: tuple[str, ...] = ()
    if a is not None and b is not None:
        found = measured.of_commits(session, [a.id, b.id], asked.queue or None)
        variants = tuple(
            dict.fromkeys(one.cell.variant for side in (a, b) for one in found[side.id])
        )
        rows = _rows(found[a.id], found[b.id], asked, doubts)
        parity = _parity(session, a, b, asked)
    return ComparePage(
        asked=asked if asked.subject else CompareFilter(**{**vars(asked), "subject": subject}),
        a=a,
        b=b,
        rows=rows,
        parity=parity,
        subjects=subjects,
        queues=tuple(sorted({queue for of, queue in scopes if of == subject})),
        variants=variants,
        offered=_offered(session, subject),
    )


def _commit(session: Session, subject: str, sha: str) -> ComparedCommit:
    found = session.exec(
        select(Commit)
        .where(Commit.subject == subject, col(Commit.sha).startswith(sha.lower(), autoescape=True))
        .order_by((col(Commit.sha) == sha).desc(), col(Commit.sha))
        .limit(6)
    ).all()
    if not found:
        raise NoSuchCommit(f"there is no commit of {subject} that begins with {sha[:80]!r}")
    if len(found) > 1 and found[0].sha != sha:
        several = ", ".join(commit.sha[:12] for commit in found[:5])
        raise NoSuchCommit(f"commit {sha!r} of {subject} may be one of {several}: give more of it")
    commit = found[0]
    assert commit.id is not None
    return ComparedCommit(commit.id, commit.sha, commit.title, commit.ref)


def _offered(session: Session, subject: str) -> tuple[ComparedCommit, ...]:
    found = session.exec(
        select(Commit)
        .join(BranchCommit, col(BranchCommit.commit_id) == col(Commit.id))
        .where(Commit.subject == subject)
        .order_by(col(BranchCommit.branch) != "main", col(BranchCommit.position).desc())
        .limit(OFFERED)
    ).all()
    return tuple(
        ComparedCommit(commit.id or 0, commit.sha, commit.title, commit.ref)
        for commit in {commit.id: commit for commit in found}.values()
    )


def _rows(
    a: Iterable[Measured], b: Iterable[Measured], asked: CompareFilter, doubts: Doubts
) -> tuple[ComparedRow, ...]:
    """Those that are shown to differ first, the surest first; then as the grid has them."""
    of_a = {_key(one, asked.base): one for one in a if asked.base in ("", one.cell.variant)}
    of_b = {_key(one, asked.head): one for one in b if asked.head in ("", one.cell.variant)}
    rows = [_row(*both, asked.clean_below, doubts) for both in _pairs(of_a, of_b)]
    rows.sort(key=lambda row: row.cell.order)
    rows.sort(key=lambda row: (not row.differs, row.mark is not Mark.REGRESSED, row.p or 0.0)
              if row.differs else (True, True, 0.0))  # fmt: skip
    return tuple(rows)


_Key = tuple[object, ...]


def _pairs(
    a: dict[_Key, Measured], b: dict[_Key, Measured]
) -> list[tuple[Measured | None, Measured | None]]:
    """What could not be run at one of the two has no environment: it stands beside whatever the
    other has of that cell."""
    pairs = []
    used: set[_Key] = set()
    for key in dict.fromkeys([*a, *b]):
        if key[-1] is None:
            continue
        nowhere = (*key[:-1], None)
        used.add(nowhere)
        pairs.append((a.get(key) or a.get(nowhere), b.get(key) or b.get(nowhere)))
    alone = (key for key in dict.fromkeys([*a, *b]) if key[-1] is None and key not in used)
    return [*pairs, *((a.get(key), b.get(key)) for key in alone)]


def _key(one: Measured, variant: str) -> _Key:
    """What makes two cells comparable; where a variant is asked for, all but the variant."""
    environment = one.environment.id if one.environment else None
    if not variant:
        return (one.queue, one.cell.id, environment)
    cell = one.cell
    return (
        one.queue, cell.program, cell.background, cell.background_period_ms, cell.hold_ms,
        cell.recipe, environment,
    )  # fmt: skip


def _row(a: Measured | None, b: Measured | None, clean_below: float, doubts: Doubts) -> ComparedRow:
    either = b or a
    assert either is not None, "a key comes from one of the two"
    of_a, of_b = _doubt(a, doubts), _doubt(b, doubts)
    rate_a, rate_b = _rate(a, clean_below, of_a), _rate(b, clean_below, of_b)
    mark, label, p, between, needed = Mark.NOT_RUN, "not compared", None, None, (0, 0)
    same = bool(
        a and b and a.measurement and b.measurement and a.measurement.id == b.measurement.id
    )
    if same:
        label = "the same build"
    elif rate_a and rate_b and rate_a.n and rate_b.n:
        head, base = Counts(rate_b.k, rate_b.n), Counts(rate_a.k, rate_a.n)
        verdict = judge_cell(head, base, clean_below, of_b, base_control=of_a)
        mark, label = MARK_OF_KIND[verdict.kind], verdict.label
        p = _p(head, base)
        between = difference(head, base)
        needed = (verdict.trials_needed, verdict.base_trials_needed)
    return ComparedRow(
        cell=cell_name(either.cell),
        queue=either.queue,
        environment=environment_name(either.environment) if either.environment else None,
        a=rate_a,
        b=rate_b,
        why_a=_why(a),
        why_b=_why(b),
        measurement_a=a.measurement.id if a and a.measurement else None,
        measurement_b=b.measurement.id if b and b.measurement else None,
        mark=mark,
        label=label,
        p=p,
        difference=between,
        same=same,
        needed=needed,
        swallow=_swallow(rate_a, rate_b, same, clean_below),
    )


def _swallow(
    rate_a: Rate | None, rate_b: Rate | None, same: bool, clean_below: float
) -> ComparedSwallow | None:
    """The second rate, compared as the first one is."""
    a, b = rate_a and rate_a.swallow, rate_b and rate_b.swallow
    if not (a or b):
        return None
    if same or not (a and b):
        label = "the same build" if same else "not compared"
        return ComparedSwallow(a or None, b or None, Mark.NOT_RUN, label, None, None, (0, 0))
    head, base = Counts(b.k, b.n), Counts(a.k, a.n)
    verdict = judge_cell(head, base, clean_below)
    needed = (verdict.trials_needed, verdict.base_trials_needed)
    mark, label = mark_of_swallow(verdict)
    p, between = _p(head, base), difference(head, base)
    return ComparedSwallow(a, b, mark, label, p, between, needed)


def _p(head: Counts, base: Counts) -> float | None:
    higher = head.k * base.n - base.k * head.n
    if not higher:
        return None
    return fisher(head, base) if higher > 0 else fisher(base, head)


def _doubt(one: Measured | None, doubts: Doubts) -> ControlVerdict | None:
    return doubts.get(one.measurement.id or 0) if one and one.measurement else None


def _rate(one: Measured | None, clean_below: float, control: ControlVerdict | None) -> Rate | None:
    if one is None or one.measurement is None:
        return None
    return rate_of_measurement(one.measurement, clean_below, control=control)


def _why(one: Measured | None) -> str:
    """Why nothing was measured, as far as that is known."""
    if one is None or one.measurement is not None:
        return ""
    words = mark_of_outcome(one.outcome).words if one.outcome else ""
    return ": ".join(part for part in (words, one.reason) if part)


def _parity(
    session: Session, a: ComparedCommit, b: ComparedCommit, asked: CompareFilter
) -> tuple[Parity, ...]:
    """Of two commits: outputs that both have, by their digests. Of one: what its runs found."""
    if a.id == b.id:
        return _own_parity(session, a, asked)
    of_a, of_b = _digests(session, a, asked), _digests(session, b, asked)
    return tuple(
        Parity(
            of=of,
            where=where.full,
            equal=set(of_a[where, of]) == set(of_b[where, of]),
            reason="",
        )
        for where, of in sorted(of_a.keys() & of_b.keys(), key=lambda key: (key[1], key[0].id))
    )


def _complete(
    session: Session, commit: ComparedCommit, asked: CompareFilter
) -> Sequence[tuple[Run, Environment]]:
    query = (
        select(Run, Environment)
        .join(Environment, col(Environment.id) == col(Run.environment_id))
        .where(
            Run.commit_id == commit.id,
            Run.state == RunState.COMPLETE,
            col(Run.parity).is_not(None),
        )
        .order_by(col(Run.created_at).desc())
        .limit(PARITY_RUNS)
    )
    if asked.queue:
        query = query.where(Run.queue == asked.queue)
    return [
        (run, environment)
        for run, environment in session.exec(query)
        if queue_of(environment) in ("", run.queue)
    ]


def _own_parity(
    session: Session, commit: ComparedCommit, asked: CompareFilter
) -> tuple[Parity, ...]:
    found: dict[tuple[str, int | None], Parity] = {}
    for run, environment in _complete(session, commit, asked):
        parity = run.parity or {}
        of = str(parity.get("between") or "stock and owned-stream")
        status = parity.get("status")
        if status in ("identical", "different"):
            where = environment_name(environment).full
            said = Parity(of, where, status == "identical", str(parity.get("reason") or ""))
            found.setdefault((of, environment.id), said)
    return tuple(found.values())


def _digests(
    session: Session, commit: ComparedCommit, asked: CompareFilter
) -> dict[tuple[EnvironmentName, str], list[str]]:
    """By environment and what they are of, of the newest run that has them."""
    found: dict[tuple[EnvironmentName, str], list[str]] = {}
    for run, environment in _complete(session, commit, asked):
        for of, digests in ((run.parity or {}).get("digests") or {}).items():
            if not of.startswith("base "):
                found.setdefault((environment_name(environment), of), digests)
    return found
