"""A branch's history as the grid orders it: each commit's place, counted from the root."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlmodel import Session

from runner import result
from service import rows, storable

_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:what, 0))")
_KNOWN = text("""
    SELECT c.sha FROM branch_commits b JOIN commits c ON c.id = b.commit_id
    WHERE b.subject = :subject AND b.branch = :branch ORDER BY b.position
""")
_FORGET = text("""
    DELETE FROM branch_commits
    WHERE subject = :subject AND branch = :branch AND position >= :since
""")
# In the order of their hashes, so that two branches with common commits cannot block each other.
_COMMITS = text("""
    INSERT INTO commits (subject, sha, ref, title, author, date)
    SELECT :subject, t.sha, :branch, t.title, t.author, t.date
    FROM unnest(
        CAST(:shas AS text[]), CAST(:titles AS text[]), CAST(:authors AS text[]),
        CAST(:dates AS timestamptz[])
    ) AS t(sha, title, author, date)
    ORDER BY t.sha
    ON CONFLICT (subject, sha) DO UPDATE
    SET title = excluded.title, author = excluded.author, date = excluded.date
    WHERE commits.title = '' AND excluded.title <> ''
""")
_PLACES = text("""
    INSERT INTO branch_commits (subject, branch, position, commit_id)
    SELECT :subject, :branch, :since + t.n - 1, c.id
    FROM unnest(CAST(:shas AS text[])) WITH ORDINALITY AS t(sha, n)
    JOIN commits c ON c.subject = :subject AND c.sha = t.sha
""")


def record_branch(
    session: Session, subject: str, branch: str, commits: Sequence[result.Commit]
) -> int:
    """Keep where a branch's commits stand; how many places were written.

    commits: the whole first-parent history, the root first. What was kept of the branch stays as
    far as it agrees; from where the branch was rewritten, and for what is new, places are written
    anew. Two at a time take turns. An empty history forgets the branch.
    """
    key = {"subject": subject, "branch": branch}
    connection = session.connection()
    connection.execute(_LOCK, {"what": f"branch {subject} {branch}"})
    known = connection.execute(_KNOWN, key).scalars().all()
    since = _agreeing(known, commits)
    if since < len(known):
        connection.execute(_FORGET, {**key, "since": since})
    new = commits[since:]
    if not new:
        return 0
    shas = [commit.sha for commit in new]
    connection.execute(
        _COMMITS,
        {
            **key,
            "shas": shas,
            "titles": [storable.text(commit.title) for commit in new],
            "authors": [storable.text(commit.author) for commit in new],
            "dates": [rows.moment_of(commit.date) for commit in new],
        },
    )
    connection.execute(_PLACES, {**key, "since": since, "shas": shas})
    return len(new)


def _agreeing(known: Sequence[str], commits: Sequence[result.Commit]) -> int:
    """Length of the beginning that both histories have."""
    pairs = zip(known, commits, strict=False)
    differing = (n for n, (sha, commit) in enumerate(pairs) if sha != commit.sha)
    return next(differing, min(len(known), len(commits)))
