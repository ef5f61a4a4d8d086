"""A long branch, for what only shows with many commits: scrolling, bytes, speed."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text

from runner import matrix as matrices
from runner import result
from service import rows
from service.database import Database
from service.tables import Run

CELLS = 20

_FILL = """
INSERT INTO commits (subject, sha, ref, title, author, date)
    SELECT 'te', md5(n::text) || substr(md5(n::text), 1, 8), 'main',
        '[JAX] Change number ' || n || ' of a history that is long (#' || 1000 + n || ')',
        'Author ' || n % 40, now() - make_interval(hours => 6 * (:commits - n))
    FROM generate_series(0, :commits - 1) n;
INSERT INTO branch_commits (subject, branch, position, commit_id)
    SELECT 'te', 'main', row_number() OVER (ORDER BY id) - 1, id FROM commits;
INSERT INTO builds (subject, key, signature, reason, log, seconds, owned_stream_needed, facts,
        created_at)
    SELECT 'te', sha, '', '', '', 75, true, '{}', now() FROM commits;
INSERT INTO commit_builds (commit_id, name, toolchain, architecture, state, build_id, attempts,
        reason)
    SELECT c.id, 'stock', 'cu13-jax011', 'sm90', 'done', b.id, 1, ''
    FROM commits c JOIN builds b ON b.key = c.sha;
INSERT INTO measurements (build_id, cell_id, environment_id, adaptive, passed, capture_error,
        crash, hang, data_loss, wrong_output, unsupported, infra_error, build_error, watched,
        swallowed, swallowed_passes)
    SELECT b.id, cell.id, e.id, false, 25 - k, k / 2, k - k / 2, 0, 0, 0, 0, 0, 0, 25, k, 0
    FROM builds b, cells cell, environments e,
        LATERAL (SELECT CASE WHEN b.id % 300 > 150 AND cell.id % 4 = 0 THEN (b.id * 7) % 26
                        ELSE 0 END) f (k)
"""


def fill(database: Database, commits: int) -> None:
    """So many commits on `main`, each with a build and 25 trials of each of 20 cells counted."""
    stock = matrices.load("quick").cells[0]
    device = result.Device("cuda", "NVIDIA H200", (9, 0), "580.159.04", "0.11.2")
    with database.session() as session:
        environment = rows.environment_row(session, device, "cu13-jax011", "2")
        for n in range(CELLS):
            rows.cell_row(session, replace(stock, background_period_ms=float(n)))
        session.add(Run(subject="te", matrix_name="m", queue="sm90", environment_id=environment.id))
        session.flush()
        for statement in _FILL.split(";\n"):
            asked = text(statement.replace("::", r"\:\:"))
            known = {"commits": commits} if ":commits" in statement else {}
            session.connection().execute(asked, known)
