"""Looks at a repository's refs with git alone: for who has no webhook, or missed a delivery."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from sqlalchemy import text
from sqlmodel import Session, col, delete, select

from runner import result
from runner.errors import InfrastructureError
from service.database import Database
from service.github import effects
from service.github.effects import PULLS
from service.settings import ServiceSettings, Tracked
from service.tables import Head
from service.tables.columns import now

HEAD = "HEAD"
"""The head whose row tells that refs were looked at before: everything new is news since then. It
names the commit that the default branch was at, or nothing where there was none."""
TIMEOUT_S = 120.0
# So that what git starts ends by itself too, where a server goes silent.
_STALLED = ("-c", "http.lowSpeedLimit=1", "-c", f"http.lowSpeedTime={TIMEOUT_S / 2:.0f}")
_PEELED = "^{}"
_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:what, 0))")
_KEEP = text("""
    INSERT INTO heads (subject, ref, sha, seen_at)
    SELECT :subject, t.ref, t.sha, :at
    FROM unnest(CAST(:refs AS text[]), CAST(:shas AS text[])) AS t(ref, sha) ORDER BY t.ref
    ON CONFLICT (subject, ref) DO UPDATE SET sha = excluded.sha, seen_at = excluded.seen_at
    WHERE heads.seen_at <= :looked_at
""")

ListRefs = Callable[[str], Mapping[str, str]]


def poll(
    database: Database,
    settings: ServiceSettings,
    subject_name: str,
    list_refs: ListRefs | None = None,
) -> list[str]:
    """Do what deliveries would have done about the refs that moved; a sentence on each of them.

    The first look at a subject only learns what there is, and runs the watched branches' heads:
    not thousands of old pull requests. What a delivery said while git was asked is newer and
    stays. Everything happens in one transaction, or nothing. list_refs: instead of `ls_remote`.
    Raises InfrastructureError where git cannot tell, InputError.
    """
    tracked = settings.subject(subject_name)
    if not tracked.source:
        return []
    looked_at = now()
    refs = (list_refs or ls_remote)(tracked.source)
    listed = _named(refs)
    with database.session() as session:
        session.connection().execute(_LOCK, {"what": f"poll {tracked.name}"})
        rows = session.exec(select(Head.ref, Head.sha).where(Head.subject == tracked.name))
        known = dict(rows.all())
        first = HEAD not in known
        if not listed and len(known) > 1:
            raise InfrastructureError(
                f"{tracked.source} has no refs at all, but had {len(known) - 1}: nothing is "
                "changed; is it still the right repository?"
            )
        moved = [name for name in _in_order(listed) if known.get(name) != listed[name]]
        told = [
            sentence
            for name in moved
            if (sentence := _effect(session, tracked, name, listed[name], looked_at, first))
        ]
        _keep(session, tracked.name, {name: listed[name] for name in moved}, looked_at)
        _keep(session, tracked.name, {HEAD: refs.get(HEAD, "")}, looked_at)
        _forget(session, tracked.name, known.keys() - listed.keys() - {HEAD}, looked_at)
    return told


def ls_remote(source: str) -> dict[str, str]:
    """The commits that HEAD, branches, tags and pull requests name at a git URL or in a folder.

    Needs no token for a public repository. Raises InfrastructureError.
    """
    patterns = (HEAD, "refs/heads/*", "refs/tags/*", "refs/pull/*/head")
    place = str(Path(source).expanduser()) if source.startswith("~") else source
    try:
        done = subprocess.run(
            ["git", *_STALLED, "ls-remote", "--quiet", "--", place, *patterns],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            check=False,
        )
    except FileNotFoundError as error:
        raise InfrastructureError(
            "no git: install it (package git), refs are read with it"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            f"{source}: git did not list its refs within {TIMEOUT_S:g} s"
        ) from error
    if done.returncode != 0:
        raise InfrastructureError(f"{source}: its refs cannot be listed: {_reason(done.stderr)}")
    refs: dict[str, str] = {}
    for line in filter(None, done.stdout.split("\n")):  # other ends of lines may be in names
        sha, _, ref = line.partition("\t")
        # What an annotated tag names follows the tag itself, and replaces it.
        refs[ref.removesuffix(_PEELED)] = sha
    return refs


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return fatal[0].partition(": ")[2] or fatal[0] if fatal else "git said nothing"


def _named(refs: Mapping[str, str]) -> dict[str, str]:
    """What each head names, by its name among the heads."""
    named = {effects.head_name(ref): sha for ref, sha in refs.items()}
    return {name: sha for name, sha in named.items() if name is not None}


def _in_order(names: Iterable[str]) -> list[str]:
    """Branches and tags first, then pull requests by number, newest first."""
    pulls = {name: int(name.removeprefix(PULLS)) for name in names if name.startswith(PULLS)}
    others = sorted(name for name in names if name not in pulls)
    return others + sorted(pulls, key=lambda name: -pulls[name])


def _effect(
    session: Session, tracked: Tracked, name: str, sha: str, looked_at: datetime, first: bool
) -> str | None:
    if name.startswith(PULLS):
        if first or not tracked.pulls:
            return None
        number = int(name.removeprefix(PULLS))
        return effects.pull_seen(session, tracked, number, sha, looked_at)
    if not effects.is_watched(tracked, name) or (first and name.startswith(effects.TAGS)):
        return None
    if not effects.saw(session, tracked.name, name, sha, looked_at):
        return None
    return effects.ref_moved(session, tracked, result.Commit(sha=sha, ref=name), "poll")


def _keep(session: Session, subject: str, heads: Mapping[str, str], looked_at: datetime) -> None:
    if heads:
        values = {"subject": subject, "refs": list(heads), "shas": list(heads.values())}
        times = {"at": now(), "looked_at": looked_at}
        session.connection().execute(_KEEP, {**values, **times})


def _forget(session: Session, subject: str, gone: Iterable[str], looked_at: datetime) -> None:
    """Drop what no ref names any more, unless it was seen while git was asked."""
    session.connection().execute(
        delete(Head).where(
            col(Head.subject) == subject,
            col(Head.ref).in_(list(gone)),
            col(Head.seen_at) <= looked_at,
        )
    )
