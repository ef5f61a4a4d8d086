"""Who may let a pull request's code run: approvals, and the commands of comments.

An approval is for one head commit, and for no other that is pushed later. A comment names its
commit only where it says `approve <sha>`; `run` means what its author saw. So it is bound to the
head that was known when the comment was delivered, is refused once the head has moved, and is
refused too where that head came so shortly before the comment that its author can hardly have read
it: then they must name it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from runner import matrix as matrices
from runner.errors import InputError
from service.events import publish
from service.github import effects, pulls
from service.github.commands import HELP, Command, Verb
from service.github.errors import Refused
from service.queue import CONTROL, wake
from service.settings import ServiceSettings, Tracked
from service.tables import Approval, Delivery, Head, Pull, Run
from service.tables.columns import now

READ_S = 60.0
"""A head that was seen later than this before a comment can hardly be what its author had read."""
GIVEN_UP_AFTER = timedelta(days=3)
"""Commands that GitHub could not be asked about for so long are left alone."""
MAY_WRITE = frozenset({"admin", "maintain", "write"})
PRIORITY = 50
"""Of the job that looks at a command: someone waits for it."""
_ABBREVIATED = re.compile(r"[0-9a-f]{7,40}")
_FULL = 40
_ASKED = "asked"  # the member of a delivery's payload that holds what is still to be decided


class Permissions(Protocol):
    """Who knows what a user may do: `service.github.client.GitHub`."""

    def permission(self, repository: str, user: str) -> str:
        """`admin`, `write`, `read` or `none`. Raises Refused, TryAgain."""
        ...


class Asked(BaseModel):
    """What a comment asks for. head: of the pull request when it was delivered, empty if unknown.

    seen_at: when that head was first seen. commented_at: by GitHub's clock.
    """

    pull: int
    by: str
    commands: list[Command]
    head: str
    seen_at: datetime | None
    commented_at: datetime


def ask(
    session: Session,
    tracked: Tracked,
    delivery: str,
    pull: int,
    by: str,
    commands: list[Command],
    commented_at: datetime,
) -> dict[str, Any]:
    """Bind a comment's commands to the head as it is now, and wake who carries them out.

    What is returned belongs into the delivery's payload.
    """
    known = session.get(Pull, (tracked.name, pull))
    head = session.get(Head, (tracked.name, f"{effects.PULLS}{pull}"))
    asked = Asked(
        pull=pull,
        by=by,
        commands=commands,
        head=known.head_sha if known else head.sha if head else "",
        seen_at=head.seen_at if head else None,
        commented_at=commented_at,
    )
    _wake(session, delivery)
    return {_ASKED: asked.model_dump(mode="json"), "decided": False}


def wake_undecided(session: Session) -> int:
    """Wake who carries out commands that are still undecided, in case a job was lost."""
    found = session.exec(
        select(Delivery.id).where(
            col(Delivery.received_at) > now() - GIVEN_UP_AFTER,
            Delivery.event == "issue_comment",
            func.jsonb_extract_path_text(col(Delivery.payload), "decided") == "false",
        )
    ).all()
    return sum(_wake(session, delivery) for delivery in found)


def carry_out(
    session: Session, settings: ServiceSettings, github: Permissions | None, delivery_id: str
) -> str:
    """Do what a delivered comment asks for, if its author may; what came of it, as sentences.

    Once: a second call tells what came of the first. Raises TryAgain where GitHub cannot be asked
    now; nothing has happened then.
    """
    delivery = session.get(Delivery, delivery_id)
    if delivery is None:
        return f"delivery {delivery_id} is not known"
    if delivery.payload.get("decided") is not False:
        return delivery.effect
    asked = Asked.model_validate(delivery.payload[_ASKED])
    # Asked before anything is locked: GitHub may take its time.
    refusal = _refusal(github, delivery.repository, asked.by)
    delivery = session.exec(
        select(Delivery).where(Delivery.id == delivery_id).with_for_update(),
        execution_options={"populate_existing": True},
    ).one()
    if delivery.payload.get("decided") is not False:
        return delivery.effect
    tracked = settings.by_github(delivery.repository)
    if refusal or tracked is None:
        told = [refusal or f"refused: {delivery.repository} is not tracked any more"]
    else:
        told = [_do(session, tracked, asked, command) for command in asked.commands]
    delivery.effect = "; ".join(told)
    delivery.payload = {**delivery.payload, "decided": True}
    session.add(delivery)
    session.flush()
    publish(session, "delivery", delivery=delivery.id)
    return delivery.effect


@dataclass(frozen=True)
class Approved:
    """What an approval did. new: False where the commit was approved before. runs: begin now."""

    sha: str
    new: bool
    runs: tuple[UUID, ...]


def approve_commit(
    session: Session, subject: str, pull: int, sha: str, by: str, via: str
) -> Approved:
    """Approve the head of a pull request: `sha`, whole or its first 7 digits and more.

    Runs of exactly that commit that await it begin. The pull request stays locked until the
    transaction ends, so that no run of it can be missed. Whoever calls this has made sure that `by`
    may approve. via: `comment` or `api`. Raises InputError where `sha` is not the current head.
    """
    wanted = sha.lower()
    if not _ABBREVIATED.fullmatch(wanted):
        raise InputError(f"commit {sha!r} cannot be approved: give 7 to 40 hexadecimal digits")
    known = pulls.locked_pull(session, subject, pull)
    if known is None:
        raise InputError(f"pull request {pull} of {subject} is not known here (yet)")
    if not known.open:
        raise InputError(f"pull request {pull} of {subject} is closed: reopen it to run it")
    head = known.head_sha
    if not head.startswith(wanted):
        raise InputError(
            f"{sha} is not the head of pull request {pull}, which is {head}: read that, and "
            "approve it if it is good"
        )
    if len(wanted) < _FULL and _other_heads(session, subject, pull, wanted, head):
        # Hashes that begin alike are made in minutes, for whoever approves what they read before.
        raise InputError(
            f"{sha} begins the hash of more than one head that pull request {pull} had: approve "
            "by the whole hash"
        )
    values = {"subject": subject, "pull": pull, "sha": head, "by": by, "via": via}
    stored = session.connection().execute(
        insert(Approval)
        .values(**values, created_at=now())
        .on_conflict_do_nothing(index_elements=["subject", "sha"])
        .returning(col(Approval.id))
    )
    new = stored.scalar() is not None
    return Approved(head, new, pulls.start_waiting(session, subject, head, by))


def _wake(session: Session, delivery: str) -> bool:
    return wake(
        session, "check_command", CONTROL,
        lock=f"check_command:{delivery}", priority=PRIORITY, delivery=delivery,
    )  # fmt: skip


def _refusal(github: Permissions | None, repository: str, user: str) -> str:
    """Why a user's commands are refused, empty where they are not.

    What the payload says of its author is not asked: it tells how they are associated with the
    repository, not what they may do there.
    """
    if github is None:
        return (
            "refused: no GitHub token, so nobody's permission can be seen: approve through the API"
        )
    try:
        permission = github.permission(repository, user)
    except Refused as error:
        return f"refused: what {user} may do cannot be seen: {error}; approve through the API"
    if permission in MAY_WRITE:
        return ""
    return f"refused: {user} has {permission or 'no'} permission on {repository}, and needs write"


def _do(session: Session, tracked: Tracked, asked: Asked, command: Command) -> str:
    if command.problem:
        return f"refused: {command.problem}. {HELP}"
    if command.verb is Verb.HELP:
        return HELP
    try:
        if command.verb is Verb.CANCEL:
            return _cancel(session, tracked, asked)
        if command.verb is Verb.APPROVE:
            return _approve(session, tracked, asked, command.argument)
        return _run(session, tracked, asked, command.argument)
    except InputError as error:
        return f"refused: {error}"


def _cancel(session: Session, tracked: Tracked, asked: Asked) -> str:
    pulls.locked_pull(session, tracked.name, asked.pull)
    ended = effects.cancel_all(session, tracked.name, asked.pull, f"cancelled by {asked.by}")
    return f"{effects.runs(ended)} of pull request {asked.pull} cancelled"


def _approve(session: Session, tracked: Tracked, asked: Asked, sha: str) -> str:
    if len(sha) < _FULL:
        _require_unmoved(session, tracked, asked)
    return _told(approve_commit(session, tracked.name, asked.pull, sha, asked.by, "comment"))


def _told(done: Approved) -> str:
    before = "" if done.new else " (as it was before)"
    return f"{done.sha} is approved{before}; {effects.runs(len(done.runs))} ordered"


def _run(session: Session, tracked: Tracked, asked: Asked, name: str) -> str:
    allowed = {tracked.pull_matrix, tracked.push_matrix, *matrices.available()}
    if name and name not in allowed:
        # Never loaded by whatever a comment says: the name of a matrix may be that of a file.
        raise InputError(f"no matrix {name[:80]!r}: give one of {', '.join(sorted(allowed))}")
    matrix = effects.load_matrix(name or tracked.pull_matrix)
    pull = _require_unmoved(session, tracked, asked)
    if not pull.open:
        raise InputError(f"pull request {pull.number} is closed: reopen it to run it")
    told = []
    if pulls.needs_approval(session, tracked.name, pull.number, pull.head_sha):
        _require_read(asked)
        head = pull.head_sha
        done = approve_commit(session, tracked.name, pull.number, head, asked.by, "comment")
        told.append(_told(done))
    told.append(effects.run_head(session, tracked, pull, matrix, asked.by))
    return "; ".join(told)


def _require_unmoved(session: Session, tracked: Tracked, asked: Asked) -> Pull:
    """The pull request, locked, with the head that it had when the comment was delivered."""
    pull = pulls.locked_pull(session, tracked.name, asked.pull)
    if pull is None or not asked.head:
        raise InputError(
            f"pull request {asked.pull} was not known here yet when this was asked: ask again "
            "after the next poll"
        )
    if pull.head_sha != asked.head:
        raise InputError(
            f"the head moved from {asked.head} to {pull.head_sha} since this was asked: read that, "
            "and ask again"
        )
    return pull


def _require_read(asked: Asked) -> None:
    known_s = (asked.commented_at - asked.seen_at).total_seconds() if asked.seen_at else 0.0
    if known_s < READ_S:
        raise InputError(
            f"the head {asked.head} came less than {READ_S:g} s before the comment: if that is "
            f"what you read, say /racewatch approve {asked.head}"
        )


def _other_heads(session: Session, subject: str, pull: int, prefix: str, head: str) -> bool:
    """Whether the pull request once had another head whose hash begins so."""
    of_runs = select(Run.id).where(
        Run.subject == subject,
        Run.pull == pull,
        col(Run.head_sha).startswith(prefix),
        Run.head_sha != head,
    )
    if session.exec(of_runs.limit(1)).first() is not None:
        return True
    # A draft has no runs, but its heads were delivered.
    told = func.jsonb_extract_path_text(col(Delivery.payload), "pull_request", "head", "sha")
    number = func.jsonb_extract_path_text(col(Delivery.payload), "pull_request", "number")
    of_deliveries = select(Delivery.id).where(
        Delivery.event == "pull_request",
        number == str(pull),
        told.startswith(prefix),
        told != head,
    )
    return session.exec(of_deliveries.limit(1)).first() is not None
