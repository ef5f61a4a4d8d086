"""The status of a commit at GitHub: what a pull request's or a branch's run came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlmodel import Session, col, select

from runner.outcome import Outcome
from runner.statistics.verdict import State, StatusDecision, status_of
from service import judged
from service.github.client import GitHub, shortened
from service.github.markdown import plain
from service.judged import JudgedCell
from service.settings import ServiceSettings
from service.tables import Origin, Run, RunState

CONTEXT_CHARACTERS = 200
"""GitHub keeps 255."""
_SHA_CHARACTERS = 12
_LOOKED_AT = (Origin.PULL_REQUEST, Origin.MANUAL, Origin.PUSH)


@dataclass(frozen=True)
class Status:
    """A commit's status, as `GitHub.set_status` takes it."""

    repository: str
    sha: str
    state: str
    context: str
    description: str
    target_url: str


def is_due(settings: ServiceSettings, run: Run) -> bool:
    """Whether GitHub hears of a run at all: of a pull request's, and of a branch that moved."""
    ours = run.pull is not None and run.origin in _LOOKED_AT
    return bool(
        (ours or run.origin == Origin.PUSH)
        and run.head_sha
        and repository_of(settings, run.subject)
    )


def repository_of(settings: ServiceSettings, subject: str) -> str:
    """`owner/name` of a subject at GitHub, empty for one that is not there."""
    tracked = settings.subjects.get(subject)
    return tracked.github if tracked else ""


def context_of(run: Run) -> str:
    """What tells statuses of one commit from each other: matrix and kind of device."""
    return shortened(plain(f"racewatch/{run.matrix_name}/{run.queue}"), CONTEXT_CHARACTERS)


def topic_of(settings: ServiceSettings, run: Run) -> str:
    """The outbox's topic of a run's status: a newer one of the same place replaces an older."""
    return f"status:{repository_of(settings, run.subject)}@{run.head_sha}:{context_of(run)}"


def link_to(settings: ServiceSettings, run: Run) -> str:
    """The run's page."""
    return f"{settings.link}/runs/{run.id}"


def content(
    settings: ServiceSettings, session: Session, payload: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The status to set for a run (`run`: its id) as of now; None where there is none.

    Where the same commit was ordered again since, the newer run is what the status tells of.
    """
    run = session.get(Run, UUID(payload["run"]), populate_existing=True)
    if run is None or not is_due(settings, run):
        return None
    newest = session.exec(
        select(Run)
        .where(
            Run.subject == run.subject,
            Run.head_sha == run.head_sha,
            Run.matrix_name == run.matrix_name,
            Run.queue == run.queue,
            col(Run.origin).in_(_LOOKED_AT),
            (col(Run.pull).is_not(None)) | (col(Run.origin) == Origin.PUSH),
        )
        .order_by(col(Run.created_at).desc(), col(Run.id).desc())
        .limit(1)
    ).one()
    return asdict(of_run(session, settings, newest))


def send(github: GitHub, session: Session, content: Mapping[str, Any]) -> None:
    """Tell GitHub; see `GitHub.set_status`."""
    github.set_status(**content)


def of_run(session: Session, settings: ServiceSettings, run: Run) -> Status:
    """The status of a run's commit as of now."""
    cells = judged.cells_of(session, run) if run.state == RunState.COMPLETE else []
    decision = decide(run, cells)
    loud = "EMULATED: " if run.queue == "emulated" else ""
    return Status(
        repository=repository_of(settings, run.subject),
        sha=run.head_sha,
        state=str(decision.state),
        context=context_of(run),
        description=shortened(f"{loud}{decision.text}"),
        target_url=link_to(settings, run),
    )


def decide(run: Run, cells: Sequence[JudgedCell]) -> StatusDecision:
    """The state and text of a run: while it goes on, by its own state; at its end, by its cells."""
    because = f": {plain(run.reason)}" if run.reason else ""
    match run.state:
        case RunState.AWAITING_APPROVAL:
            sha = run.head_sha[:_SHA_CHARACTERS]
            return StatusDecision(State.PENDING, f"awaiting approval of {sha}")
        case RunState.QUEUED | RunState.BUILDING | RunState.RUNNING:
            return StatusDecision(State.PENDING, str(run.state))
        case RunState.FAILED | RunState.CANCELLED:
            return StatusDecision(State.ERROR, shortened(f"{run.state}{because}"))
    decision = status_of(cell.as_status for cell in cells)
    broken = next((c for c in cells if c.ships and c.outcome == Outcome.BUILD_ERROR), None)
    if decision.state is State.ERROR and broken is not None:
        said = plain(broken.signature or broken.reason)
        return StatusDecision(State.ERROR, shortened(f"build error: {said}"))
    return decision
