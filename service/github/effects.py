"""What follows from news of a repository, whoever brings them: a delivery, a poll or a comment.

Everything here happens in the caller's transaction, and once: a commit that has an open or complete
run of a matrix on a kind of device is not run so again. Rows are locked in one order, a pull
request before its head, so that a poll and a delivery wait for each other and both get on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ARRAY, Integer, String, any_, bindparam, case
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, SQLModel, col, select

from runner import matrix as matrices
from runner import result
from runner.matrix import Matrix
from service.github import pulls
from service.github.payloads import PullRequest
from service.settings import Tracked
from service.submit import RunRequest, cancel, submit_each
from service.tables import OPEN_STATES, Commit, Head, Origin, Pull, Run, RunState
from service.tables.columns import now

TAGS, PULLS = "tags/", "pull/"
"""How the names of heads begin that are no branches."""
_PULL_HEAD = re.compile(r"refs/pull/([1-9][0-9]{0,8})/head")
_ALWAYS = datetime.max.replace(tzinfo=UTC)
_UNENDED = (*OPEN_STATES, RunState.AWAITING_APPROVAL)
STANDING = (*_UNENDED, RunState.COMPLETE)
"""States of a run that make another one like it pointless."""


# Made once: putting a statement together takes longer than sending it.
_HEADS = insert(SQLModel.metadata.tables["heads"])
_SAW = _HEADS.on_conflict_do_update(
    index_elements=["subject", "ref"],
    set_={"sha": _HEADS.excluded.sha, "seen_at": _HEADS.excluded.seen_at},
    where=(col(Head.sha) != _HEADS.excluded.sha) & (col(Head.seen_at) <= bindparam("looked_at")),
).returning(col(Head.ref))
_PULLS = insert(SQLModel.metadata.tables["pulls"])
_DESCRIBED = _PULLS.on_conflict_do_update(
    index_elements=["subject", "number"],
    set_={
        **{c.name: _PULLS.excluded[c.name] for c in _PULLS.table.c if not c.primary_key},
        # Of another head it is not known.
        "merge_base": case(
            (col(Pull.head_sha) == _PULLS.excluded.head_sha, col(Pull.merge_base)), else_=""
        ),
    },
    where=(col(Pull.base_repository) == "") | (col(Pull.updated_at) <= _PULLS.excluded.updated_at),
).returning(col(Pull.merge_base))
_OF_PULL = select(Run.id, Run.head_sha, Run.state).where(
    Run.subject == bindparam("of"),
    Run.pull == bindparam("number"),
    col(Run.state).in_(STANDING),
)
_ALIKE = (
    select(Commit.sha, Run.queue)
    .join(Run, col(Run.commit_id) == col(Commit.id))
    .where(
        Commit.subject == bindparam("of"),
        col(Commit.sha) == any_(bindparam("shas", type_=ARRAY(String))),
        Run.subject == bindparam("of"),
        Run.matrix_name == bindparam("name"),
        Run.toolchain == bindparam("with"),
        col(Run.adaptive).is_(False),
        col(Run.state).in_(STANDING),
        col(Run.pull).is_not_distinct_from(bindparam("number", type_=Integer)),
    )
)
_ANY_ALIKE = _ALIKE.limit(1)


def head_name(ref: str) -> str | None:
    """How a whole ref (`refs/heads/main`) is named among the heads; None for one of no interest.

    A branch whose name would be taken for a tag's or a pull request's is of none.
    """
    kind, _, name = ref.removeprefix("refs/").partition("/")
    if not ref.startswith("refs/") or not name:
        return None
    if kind == "heads":
        return None if name.startswith((TAGS, PULLS)) or name == "HEAD" else name
    if kind == "tags":
        return f"{TAGS}{name}"
    pull = _PULL_HEAD.fullmatch(ref)
    return f"{PULLS}{pull[1]}" if pull else None


_PATTERN = re.compile(r"[*?[]")
MATCHED_BRANCHES = 10
"""That a pattern names: each costs a read of its whole history whenever a commit is found out."""


def is_watched(tracked: Tracked, name: str) -> bool:
    """Whether a branch or tag, by its name among the heads, is run when it moves."""
    if name.startswith(PULLS):
        return False
    tag = name.startswith(TAGS)
    patterns = tracked.tags if tag else tracked.branches
    return any(fnmatchcase(name.removeprefix(TAGS) if tag else name, p) for p in patterns)


def watched_branches(session: Session, tracked: Tracked) -> list[str]:
    """The branches whose commits are kept in order: those that are named, then those that a pattern
    names, as far as they were seen, the latest first."""
    named = [name for name in tracked.branches if not _PATTERN.search(name)]
    seen = session.exec(
        select(Head.ref).where(Head.subject == tracked.name).order_by(col(Head.seen_at).desc())
    )
    branches = (ref for ref in seen if not ref.startswith((TAGS, PULLS)))
    matched = [ref for ref in branches if ref not in named and is_watched(tracked, ref)]
    return named + matched[:MATCHED_BRANCHES]


def saw(
    session: Session, subject: str, name: str, sha: str, looked_at: datetime | None = None
) -> bool:
    """Keep what a ref names now; False where that was known already.

    looked_at: when it was found to name that, for a look that takes a while: what was seen
    meanwhile is newer, and stays.
    """
    values = {"subject": subject, "ref": name, "sha": sha, "seen_at": now()}
    changed = session.connection().execute(_SAW, {**values, "looked_at": looked_at or _ALWAYS})
    return changed.first() is not None


def ref_moved(session: Session, tracked: Tracked, commit: result.Commit, by: str) -> str:
    """Run what a watched branch or tag, the commit's `ref`, names now."""
    matrix = load_matrix(tracked.push_matrix)
    wanted = _lacking(session, tracked, commit.sha, matrix, None)
    made = submit_runs(session, tracked, commit, matrix, Origin.PUSH, wanted, by=by)
    return _told(commit, matrix, len(made), awaiting=False)


def pull_told(session: Session, tracked: Tracked, told: PullRequest, by: str) -> str:
    """A pull request is new, moved, or ready for review, as GitHub describes it.

    A pull request is run whatever branch it is for: a change to a release branch races just as
    well, and the status compares with the merge base, which there always is.
    """
    pull = _described(session, tracked, told)
    if pull is None:
        return f"nothing: pull request {told.number} is known as it was later"
    saw(session, tracked.name, f"{PULLS}{pull.number}", pull.head_sha)
    return _head_is(session, tracked, pull, by)


def pull_described(session: Session, tracked: Tracked, told: PullRequest) -> str:
    """Something else about a pull request changed, such as its base or its being a draft."""
    pull = _described(session, tracked, told)
    return "noted" if pull else f"nothing: pull request {told.number} is known as it was later"


def pull_closed(session: Session, tracked: Tracked, told: PullRequest, by: str) -> str:
    """A pull request was merged or closed: its runs end."""
    pull = _described(session, tracked, told)
    if pull is None:
        return f"nothing: pull request {told.number} is known as it was later"
    saw(session, tracked.name, f"{PULLS}{pull.number}", pull.head_sha)
    ended = cancel_all(session, tracked.name, pull.number, f"closed by {by}" if by else "closed")
    return f"pull request {pull.number} is closed; {runs(ended)} cancelled"


def pull_seen(
    session: Session, tracked: Tracked, number: int, sha: str, looked_at: datetime
) -> str | None:
    """A poll found a pull request's head moved, or new; None where that was known already.

    All that a poll knows is the commit. What GitHub never described counts as a fork's.
    """
    values = pulls.unknown_pull(subject=tracked.name, number=number, head_sha=sha)
    session.connection().execute(insert(Pull).values(**values).on_conflict_do_nothing())
    pull = pulls.locked_pull(session, tracked.name, number)
    assert pull is not None, "its row was just made"
    if not saw(session, tracked.name, f"{PULLS}{number}", sha, looked_at):
        return None
    # A closed pull request's head does not move: it is open again.
    pull.head_sha, pull.merge_base, pull.open = sha, "", True
    session.add(pull)
    session.flush()
    return _head_is(session, tracked, pull, "poll")


def _head_is(session: Session, tracked: Tracked, pull: Pull, by: str) -> str:
    """The newest commit of an open pull request is run, and older ones no longer."""
    standing = _standing(session, tracked.name, pull.number)
    reason = f"superseded by {pull.head_sha}"
    older = [run.id for run in standing if run.head_sha != pull.head_sha and run.state in _UNENDED]
    ended = sum(cancel(session, run, reason) for run in older)
    superseded = f"; {runs(ended)} of older heads cancelled" if ended else ""
    if pull.draft:
        return f"nothing is run: pull request {pull.number} is a draft{superseded}"
    matrix = load_matrix(tracked.pull_matrix)
    return _run_head(session, tracked, pull, matrix, by, standing) + superseded


def run_head(session: Session, tracked: Tracked, pull: Pull, matrix: Matrix, by: str) -> str:
    """Run the head of a pull request, whose row is locked; a fork's only once it is approved."""
    standing = _standing(session, tracked.name, pull.number)
    return _run_head(session, tracked, pull, matrix, by, standing)


def _run_head(
    session: Session,
    tracked: Tracked,
    pull: Pull,
    matrix: Matrix,
    by: str,
    standing: Collection[_Standing],
) -> str:
    commit = result.Commit(sha=pull.head_sha, ref=f"{PULLS}{pull.number}")
    awaiting = pull.fork and not pulls.is_approved(session, tracked.name, pull.head_sha)
    mine = {run.state for run in standing if run.head_sha == pull.head_sha}
    begun: tuple[UUID, ...] = ()
    if RunState.AWAITING_APPROVAL in mine and not awaiting:
        # It may have waited only because nobody knew yet that it is no fork's.
        begun = pulls.start_waiting(
            session, tracked.name, commit.sha, by, pull=pull.number, trusted=not pull.fork
        )
    wanted = _lacking(session, tracked, commit.sha, matrix, pull.number) if mine else tracked.queues
    made = submit_runs(
        session, tracked, commit, matrix, Origin.PULL_REQUEST, wanted,
        by=by, pull=pull.number, awaiting=awaiting, trusted=not pull.fork,
    )  # fmt: skip
    return _told(commit, matrix, len(made) + len(begun), awaiting)


def submit_runs(
    session: Session,
    tracked: Tracked,
    commit: result.Commit,
    matrix: Matrix,
    origin: Origin,
    queues: Sequence[str],
    *,
    by: str,
    pull: int | None = None,
    awaiting: bool = False,
    trusted: bool = True,
) -> list[UUID]:
    """Submit a commit's run of a matrix for each queue, whatever runs there are; their ids."""
    request = RunRequest(
        subject=tracked.name,
        matrix=matrix,
        queue="",
        commit=commit,
        pull=pull,
        toolchain=tracked.toolchain,
        origin=origin,
        requested_by=by,
        trusted=trusted and not pulls.merges_pulls(matrix),
        awaiting_approval=awaiting,
        facts={"repository": tracked.source} if tracked.source else {},
    )
    return submit_each(session, request, queues)


def _lacking(
    session: Session,
    tracked: Tracked,
    sha: str,
    matrix: Matrix,
    pull: int | None,
) -> list[str]:
    """The queues that have no run of a commit standing."""
    standing = standing_runs(session, tracked, [sha], matrix, pull)
    return [queue for queue in tracked.queues if (sha, queue) not in standing]


def standing_runs(
    session: Session,
    tracked: Tracked,
    shas: Collection[str],
    matrix: Matrix,
    pull: int | None = None,
) -> set[tuple[str, str]]:
    """(commit, queue) of the runs that make another one of this matrix pointless.

    A matrix of the same name whose cells have changed since is another one, unless it is this one
    with trials enough to decide.
    """
    asked = {
        "of": tracked.name,
        "shas": list(shas),
        "name": matrix.name,
        "with": tracked.toolchain,
        "number": pull,
    }
    connection = session.connection()
    if connection.execute(_ANY_ALIKE, asked).first() is None:
        return set()  # as for each new commit, which need not send the whole matrix along
    alike = (matrices.as_data(matrix), matrices.as_data(matrix.decisive()))
    same = _ALIKE.where(col(Run.matrix).in_(alike))
    return {(sha, queue) for sha, queue in connection.execute(same, asked)}


def cancel_all(session: Session, subject: str, pull: int, reason: str) -> int:
    """End all runs of a pull request that have not ended; how many they were."""
    standing = _standing(session, subject, pull)
    return sum(cancel(session, run.id, reason) for run in standing if run.state in _UNENDED)


class _Standing(NamedTuple):
    """A run of a pull request that makes another one like it pointless."""

    id: UUID
    head_sha: str
    state: str


def _standing(session: Session, subject: str, pull: int) -> list[_Standing]:
    found = session.connection().execute(_OF_PULL, {"of": subject, "number": pull})
    return [_Standing(*run) for run in found]


def load_matrix(name: str) -> Matrix:
    """A matrix by the name or file that the configuration gives, with trials enough to decide.

    A status would wait for ever for trials that nobody orders. Raises MatrixError.
    """
    path = Path(name)
    return _loaded(name, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=64)
def _loaded(name: str, changed_at: int) -> Matrix:
    return matrices.load(name).decisive()


def _described(session: Session, tracked: Tracked, told: PullRequest) -> Pull | None:
    """The pull request as GitHub describes it, its row locked; None where later news is known.

    GitHub does not promise to deliver in order, so what was so earlier changes nothing. That goes
    by GitHub's own time alone, which a poll does not know and leaves as it is.
    """
    pull = Pull(
        subject=tracked.name,
        number=told.number,
        title=told.title,
        author=told.user.login if told.user else "",
        head_sha=told.head.sha,
        head_repository=told.head.repository,
        base_ref=told.base.ref,
        base_repository=told.base.repository,
        fork=told.fork,
        draft=told.draft,
        open=told.state == "open",
        updated_at=told.updated_at,
    )
    taken = session.connection().execute(_DESCRIBED, pull.model_dump()).first()
    if taken is None:
        return None
    (pull.merge_base,) = taken
    return pull


def _told(commit: result.Commit, matrix: Matrix, ordered: int, awaiting: bool) -> str:
    what = f"{commit.ref} at {commit.sha[:12]}, {matrix.name}"
    if not ordered:
        waits = "awaits approval" if awaiting else "is run"
        return f"nothing new: {what} {waits} already"
    return f"{what}: {runs(ordered)} {'await approval' if awaiting else 'ordered'}"


def runs(count: int) -> str:
    """So many runs, in words."""
    return f"{count} run{'s' * (count != 1)}"
