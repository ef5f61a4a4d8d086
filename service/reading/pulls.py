"""Pull requests with the newest run of each head, and which of them wait for an approval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col, select

from service.reading.runs import RunLine, run_lines
from service.tables import Approval, Commit, Pull, Run, RunState

PULLS = 100
"""Pull requests on the page."""


@dataclass(frozen=True)
class PullFilter:
    """Which pull requests are listed. state: `open`, `closed` or empty for both."""

    subject: str = ""
    state: str = "open"


@dataclass(frozen=True)
class PullLine:
    """A pull request. runs: the newest of its head for each queue. approved_by: of this head."""

    subject: str
    number: int
    title: str
    author: str
    head_sha: str
    head_repository: str
    base_ref: str
    fork: bool
    draft: bool
    open: bool
    updated_at: datetime
    runs: tuple[RunLine, ...]
    approved_by: str

    @property
    def awaiting_approval(self) -> bool:
        """Whether a run of its head waits for someone with write permission."""
        return any(run.state == RunState.AWAITING_APPROVAL for run in self.runs)


@dataclass(frozen=True)
class PullsPage:
    """Pull requests, last changed first; more: there are others."""

    chosen: PullFilter
    pulls: tuple[PullLine, ...]
    more: bool
    subjects: tuple[str, ...]


def read(session: Session, asked: PullFilter) -> PullsPage:
    """The pull requests that the filter lets through."""
    query = select(Pull).order_by(col(Pull.updated_at).desc(), col(Pull.number).desc())
    if asked.subject:
        query = query.where(Pull.subject == asked.subject)
    if asked.state:
        query = query.where(col(Pull.open).is_(asked.state == "open"))
    pulls = session.exec(query.limit(PULLS + 1)).all()
    more = len(pulls) > PULLS
    pulls = pulls[:PULLS]
    heads = [pull.head_sha for pull in pulls]
    approved = {
        (approval.subject, approval.sha): approval.by
        for approval in session.exec(select(Approval).where(col(Approval.sha).in_(heads)))
    }
    runs = _newest_runs(session, pulls)
    subjects = session.exec(select(Pull.subject).distinct()).all()
    return PullsPage(
        chosen=asked,
        pulls=tuple(
            PullLine(
                subject=pull.subject,
                number=pull.number,
                title=pull.title,
                author=pull.author,
                head_sha=pull.head_sha,
                head_repository=pull.head_repository,
                base_ref=pull.base_ref,
                fork=pull.fork,
                draft=pull.draft,
                open=pull.open,
                updated_at=pull.updated_at,
                runs=runs.get((pull.subject, pull.number), ()),
                approved_by=approved.get((pull.subject, pull.head_sha), ""),
            )
            for pull in pulls
        ),
        more=more,
        subjects=tuple(sorted(subjects)),
    )


def _newest_runs(
    session: Session, pulls: Sequence[Pull]
) -> dict[tuple[str, int], tuple[RunLine, ...]]:
    """The newest run of each pull request's head for each queue."""
    heads = {(pull.subject, pull.number): pull.head_sha for pull in pulls}
    found = session.exec(
        select(Run, Commit)
        .join(Commit, col(Commit.id) == col(Run.commit_id), isouter=True)
        .where(
            col(Run.subject).in_({subject for subject, _ in heads}),
            col(Run.pull).in_({number for _, number in heads}),
            col(Run.head_sha).in_(set(heads.values())),
        )
        .ext(distinct_on(col(Run.subject), col(Run.pull), col(Run.head_sha), col(Run.queue)))
        .order_by(
            col(Run.subject),
            col(Run.pull),
            col(Run.head_sha),
            col(Run.queue),
            col(Run.created_at).desc(),
        )
    ).all()
    wanted = [
        (run, commit)
        for run, commit in found
        if run.pull is not None and heads.get((run.subject, run.pull)) == run.head_sha
    ]
    lines: dict[tuple[str, int], tuple[RunLine, ...]] = {}
    for line in run_lines(session, wanted):
        assert line.pull is not None
        key = (line.subject, line.pull)
        lines[key] = (*lines.get(key, ()), line)
    return lines
