"""A run's cells: what each counted, what it counted at the commit it is compared with, the verdict.

Statuses, comments and notifications tell of these. A pull request's run is compared with its merge
base, a branch's with the commit before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlmodel import Session, col, select

from runner.outcome import Outcome
from runner.statistics.control import ControlVerdict, Proof
from runner.statistics.counts import Counts
from runner.statistics.verdict import CellVerdict, StatusCell, judge_cell
from runner.variants.names import Variant
from service import controls
from service.tables import (
    OPEN_STATES,
    Cell,
    CommitBuild,
    Measurement,
    Run,
    RunCell,
    RunState,
)


@dataclass(frozen=True)
class JudgedCell:
    """One cell of a run. counts: trials by outcome. wanted: trials that it shall have.

    base: counts of the commit it is compared with, None where there is none to compare with.
    same_build: that commit's build is the same one, so that their trials are too.
    outcome, signature, reason: why it could not run (`build_error`, `unsupported`), else empty.
    control: what the devices of its trials can prove, None where they had no control cells.
    """

    cell_id: int
    name: str
    variant: str
    wanted: int
    counts: Mapping[str, int]
    head: Counts
    base: Counts | None
    same_build: bool
    verdict: CellVerdict
    outcome: str = ""
    signature: str = ""
    reason: str = ""
    control: ControlVerdict | None = None

    @property
    def ships(self) -> bool:
        """True where it says something about what the commit ships."""
        return Variant.parse(self.variant).ships

    @property
    def errors(self) -> int:
        """Trials that could not run though they should have, and one for a build that failed."""
        return (
            self.counts.get(Outcome.INFRA_ERROR, 0)
            + self.counts.get(Outcome.BUILD_ERROR, 0)
            + (self.outcome == Outcome.BUILD_ERROR)
        )

    @property
    def unsupported(self) -> int:
        """Trials that the device or the commit cannot run, and one for such a build."""
        return self.counts.get(Outcome.UNSUPPORTED, 0) + (self.outcome == Outcome.UNSUPPORTED)

    @property
    def as_status(self) -> StatusCell:
        """The cell as a commit's status sees it."""
        return StatusCell(self.name, self.ships, self.verdict, self.errors, self.unsupported)


def cells_of(session: Session, run: Run) -> list[JudgedCell]:
    """The cells of a run against its base, in the matrix's order."""
    ordered = _ordered(session, run)
    base: Mapping[int, Measurement] = {}
    waits = False
    if run.base_commit_id is not None:
        base = _at_commit(session, run, run.base_commit_id, [cell for cell, _, _ in ordered])
        waits = _is_measured_now(session, run, run.base_commit_id)
    proofs = controls.by_cell(session, run.id)
    there = {one.id for one in base.values() if one.id is not None}
    doubts = controls.by_measurement(session, there, only=Proof.UNPROVEN)
    found = []
    for row, cell, measurement in ordered:
        against = base.get(row.cell_id)
        doubt = doubts.get(against.id or 0) if against is not None else None
        proof = proofs.get(row.id or 0)
        found.append(_judged(row, cell, measurement, against, waits, run, proof, doubt))
    return found


def cells_against(session: Session, run: Run, earlier: Run) -> list[JudgedCell]:
    """The cells of a run against an earlier run's; only those that both measured in one
    environment, and on builds of their own, so that there is something to compare."""
    before = {
        row.cell_id: (row, measurement)
        for row, _, measurement in _ordered(session, earlier)
        if measurement is not None and measurement.n
    }
    proofs = controls.by_cell(session, run.id, earlier.id)
    found = []
    for row, cell, measurement in _ordered(session, run):
        there = before.get(row.cell_id)
        if measurement is None or there is None or measurement.id == there[1].id:
            continue
        if measurement.environment_id == there[1].environment_id:
            now, then = (proofs.get(one.id or 0) for one in (row, there[0]))
            found.append(_judged(row, cell, measurement, there[1], False, run, now, then))
    return found


def _ordered(session: Session, run: Run) -> list[tuple[RunCell, Cell, Measurement | None]]:
    found = session.exec(
        select(RunCell, Cell, Measurement)
        .join(Cell, col(Cell.id) == col(RunCell.cell_id))
        .join(Measurement, col(Measurement.id) == col(RunCell.measurement_id), isouter=True)
        .where(RunCell.run_id == run.id, col(Cell.reference).is_(False))
        .order_by(col(RunCell.position)),
        execution_options={"populate_existing": True},
    )
    return [(row, cell, measurement) for row, cell, measurement in found]


def _at_commit(
    session: Session, run: Run, commit_id: int, rows: Iterable[RunCell]
) -> dict[int, Measurement]:
    """What a commit's builds counted in a run's cells and environment, by cell."""
    if run.environment_id is None:
        return {}
    builds = {row.cell_id: row.build for row in rows}
    found = session.exec(
        select(CommitBuild.name, Measurement)
        .join(Measurement, col(Measurement.build_id) == col(CommitBuild.build_id))
        .where(
            CommitBuild.commit_id == commit_id,
            CommitBuild.toolchain == run.facts.get("toolchain", ""),
            CommitBuild.architecture == run.queue,
            Measurement.environment_id == run.environment_id,
            col(Measurement.adaptive).is_(False),
            col(Measurement.cell_id).in_(list(builds)),
        )
    )
    return {m.cell_id: m for name, m in found if builds[m.cell_id] == name}


def _is_measured_now(session: Session, run: Run, commit_id: int) -> bool:
    """Whether a run of that commit goes on, so that its trials are still to come."""
    goes_on = select(Run.id).where(
        Run.commit_id == commit_id,
        Run.matrix_name == run.matrix_name,
        Run.queue == run.queue,
        Run.id != run.id,
        col(Run.state).in_((*OPEN_STATES, RunState.AWAITING_APPROVAL)),
    )
    return session.exec(goes_on.limit(1)).first() is not None


def _judged(
    row: RunCell,
    cell: Cell,
    measurement: Measurement | None,
    base: Measurement | None,
    waits: bool,
    run: Run,
    control: ControlVerdict | None = None,
    base_control: ControlVerdict | None = None,
) -> JudgedCell:
    head = Counts(measurement.k, measurement.n) if measurement else Counts()
    compared = Counts(base.k, base.n) if base is not None and base.n else None
    if compared is None and waits:
        compared = Counts()
    same = base is not None and measurement is not None and base.build_id == measurement.build_id
    adaptive = measurement is not None and measurement.adaptive
    return JudgedCell(
        cell_id=row.cell_id,
        name=row.name,
        variant=cell.variant,
        wanted=row.wanted,
        counts=measurement.counts if measurement else {},
        head=head,
        base=compared,
        same_build=same,
        verdict=judge_cell(head, compared, run.clean_below, control, adaptive, base_control),
        outcome=row.outcome or "",
        signature=row.signature,
        reason=row.decided if row.outcome else "",
        control=control,
    )
