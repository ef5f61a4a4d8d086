"""Pull requests as rows: what is known of one, whether its head may run, and its waiting runs."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import bindparam
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.matrix import Matrix
from service import submit
from service.tables import Approval, Head, Pull, Run, RunState
from service.tables.columns import now

# Made once: putting a statement together takes longer than sending it.
_APPROVED = select(Approval.id).where(
    Approval.subject == bindparam("commit_subject"), Approval.sha == bindparam("commit_sha")
)
_WAITING = select(Run.id).where(
    Run.subject == bindparam("commit_subject"),
    Run.head_sha == bindparam("commit_sha"),
    Run.state == RunState.AWAITING_APPROVAL,
)
_WAITING_OF_PULL = _WAITING.where(Run.pull == bindparam("number"))


def is_approved(session: Session, subject: str, sha: str) -> bool:
    """Whether someone with the right approved exactly this commit."""
    commit = {"commit_subject": subject, "commit_sha": sha}
    return session.connection().execute(_APPROVED, commit).first() is not None


def needs_approval(session: Session, subject: str, pull: int, sha: str) -> bool:
    """Whether a commit of a pull request may not run before someone approves it.

    So it is with everything that is not known to be of the repository's own branches.
    """
    known = session.get(Pull, (subject, pull))
    return (known is None or known.fork) and not is_approved(session, subject, sha)


def locked_pull(session: Session, subject: str, number: int) -> Pull | None:
    """A pull request as it is now, locked until the transaction ends; None for an unknown one.

    One that only a poll has seen so far, and only to know it later, gets its row: as a fork's.
    """
    row = _locked(session, subject, number)
    if row is not None:
        return row
    head = session.get(Head, (subject, f"pull/{number}"), populate_existing=True)
    if head is None:
        return None
    values = {"subject": subject, "number": number, "head_sha": head.sha, "fork": True}
    session.connection().execute(
        insert(Pull).values(**unknown_pull(**values)).on_conflict_do_nothing()
    )
    return _locked(session, subject, number)


def unknown_pull(**known: object) -> dict[str, object]:
    """Column values of a pull request of which only what `known` says is known.

    An empty base_repository tells that GitHub has not described it yet; so it counts as a fork's.
    """
    nothing = {"title": "", "author": "", "head_repository": "", "base_ref": "", "merge_base": ""}
    state = {"base_repository": "", "fork": True, "draft": False, "open": True, "updated_at": now()}
    return {**nothing, **state, **known}


def start_waiting(
    session: Session,
    subject: str,
    sha: str,
    by: str,
    *,
    pull: int | None = None,
    trusted: bool = False,
) -> tuple[UUID, ...]:
    """Let all runs of exactly this commit begin that await its approval.

    pull: only of that pull request. trusted: it turned out to be no fork's code.
    """
    statement = _WAITING if pull is None else _WAITING_OF_PULL
    commit = {"commit_subject": subject, "commit_sha": sha, "number": pull}
    found = session.connection().execute(statement, commit).scalars().all()
    if not found:
        return ()
    rows = session.exec(
        select(Run).where(col(Run.id).in_(found)).order_by(col(Run.created_at)).with_for_update(),
        execution_options={"populate_existing": True},
    ).all()
    for run in rows:
        run.trusted = trusted and not merges_pulls(matrices.from_data(run.matrix))
    return tuple(run.id for run in rows if submit.approve(session, run, by))


def merges_pulls(matrix: Matrix) -> bool:
    """Whether a matrix merges pull requests onto a commit, and so brings code that nobody approved.

    Such a run is never trusted, whatever commit it is of.
    """
    return any(cell.variant.pulls for cell in matrix.cells)


def _locked(session: Session, subject: str, number: int) -> Pull | None:
    return session.exec(
        select(Pull).where(Pull.subject == subject, Pull.number == number).with_for_update(),
        execution_options={"populate_existing": True},
    ).one_or_none()
