"""All tables of the first release, and the queue's (Procrastinate's own SQL)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from procrastinate.schema import SchemaManager
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "trial_evidence",
    "trials",
    "claim_cells",
    "run_cells",
    "commit_builds",
    "claims",
    "workers",
    "runs",
    "measurements",
    "branch_commits",
    "tokens",
    "pulls",
    "pull_comments",
    "outbox",
    "heads",
    "environments",
    "deliveries",
    "commits",
    "cells",
    "builds",
    "approvals",
)
"""In the order in which they can be dropped."""

DROP_PROCRASTINATE = """
DO $$
DECLARE
    thing text;
BEGIN
    FOR thing IN
        SELECT named FROM (
            SELECT 1 AS turn, 'FUNCTION ' || p.oid::regprocedure AS named
            FROM pg_proc p
            WHERE p.proname LIKE 'procrastinate\\_%'
                AND p.pronamespace = current_schema()::regnamespace
            UNION ALL
            SELECT 2, 'TABLE ' || c.oid::regclass
            FROM pg_class c
            WHERE c.relname LIKE 'procrastinate\\_%' AND c.relkind = 'r'
                AND c.relnamespace = current_schema()::regnamespace
            UNION ALL
            SELECT 3, 'TYPE ' || t.oid::regtype
            FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
            WHERE t.typname LIKE 'procrastinate\\_%' AND (t.typtype = 'e' OR c.relkind = 'c')
                AND t.typnamespace = current_schema()::regnamespace
        ) AS things
        ORDER BY turn
    LOOP
        EXECUTE 'DROP ' || thing || ' CASCADE';
    END LOOP;
END
$$
"""
"""Functions first (their triggers go with them), since some return rows of the tables."""


def upgrade() -> None:
    """Make everything."""
    op.create_table(
        "approvals",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("pull", sa.Integer(), nullable=False),
        sa.Column("sha", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("subject", "sha"),
    )

    op.create_table(
        "builds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("signature", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("log", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("initialize", JSONB(), nullable=True),
        sa.Column("owned_stream_needed", sa.Boolean(), nullable=False),
        sa.Column("facts", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
    )

    op.create_table(
        "cells",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("program", sa.String(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("background_period_ms", sa.Float(), nullable=False),
        sa.Column("hold_ms", sa.Float(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("reference", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )

    op.create_table(
        "commits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("sha", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("date", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("subject", "sha"),
    )

    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("repository", sa.String(), nullable=False),
        sa.Column("payload", JSONB(), nullable=False),
        sa.Column("effect", sa.String(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_deliveries_received_at", "deliveries", ["received_at"])

    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("device_kind", sa.String(), nullable=False),
        sa.Column("device_name", sa.String(), nullable=False),
        sa.Column("compute_capability", sa.String(), nullable=False),
        sa.Column("driver", sa.String(), nullable=False),
        sa.Column("jax", sa.String(), nullable=False),
        sa.Column("toolchain", sa.String(), nullable=False),
        sa.Column("harness", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )

    op.create_table(
        "heads",
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("sha", sa.String(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("subject", "ref"),
    )

    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("payload", JSONB(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("outbox_by_topic", "outbox", ["topic", "id"])
    op.create_index(
        "outbox_waiting",
        "outbox",
        ["next_attempt_at"],
        postgresql_where=sa.text("state = 'waiting'"),
    )

    op.create_table(
        "pull_comments",
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("pull", sa.Integer(), nullable=False),
        sa.Column("comment_id", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "pull"),
    )

    op.create_table(
        "pulls",
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("head_sha", sa.String(), nullable=False),
        sa.Column("head_repository", sa.String(), nullable=False),
        sa.Column("base_ref", sa.String(), nullable=False),
        sa.Column("base_repository", sa.String(), nullable=False),
        sa.Column("merge_base", sa.String(), nullable=False),
        sa.Column("fork", sa.Boolean(), nullable=False),
        sa.Column("draft", sa.Boolean(), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("subject", "number"),
    )

    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("scopes", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
        sa.UniqueConstraint("name"),
    )

    op.create_table(
        "branch_commits",
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("branch", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("commit_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["commit_id"], ["commits.id"]),
        sa.PrimaryKeyConstraint("subject", "branch", "position"),
    )
    op.create_index("branch_commits_by_commit", "branch_commits", ["commit_id"])

    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("build_id", sa.Integer(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("adaptive", sa.Boolean(), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("capture_error", sa.Integer(), nullable=False),
        sa.Column("crash", sa.Integer(), nullable=False),
        sa.Column("hang", sa.Integer(), nullable=False),
        sa.Column("data_loss", sa.Integer(), nullable=False),
        sa.Column("wrong_output", sa.Integer(), nullable=False),
        sa.Column("unsupported", sa.Integer(), nullable=False),
        sa.Column("infra_error", sa.Integer(), nullable=False),
        sa.Column("build_error", sa.Integer(), nullable=False),
        sa.Column("first_trial_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_trial_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"]),
        sa.ForeignKeyConstraint(["cell_id"], ["cells.id"]),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("build_id", "cell_id", "environment_id", "adaptive"),
    )
    op.create_index("ix_measurements_cell_id", "measurements", ["cell_id"])

    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("commit_id", sa.Integer(), nullable=True),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("pull", sa.Integer(), nullable=True),
        sa.Column("head_sha", sa.String(), nullable=False),
        sa.Column("matrix_name", sa.String(), nullable=False),
        sa.Column("matrix", JSONB(), nullable=False),
        sa.Column("clean_below", sa.Float(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("toolchain", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("adaptive", sa.Boolean(), nullable=False),
        sa.Column("sequential", sa.Boolean(), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("setbacks", sa.Integer(), nullable=False),
        sa.Column("told", sa.String(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("base_commit_id", sa.Integer(), nullable=True),
        sa.Column("base_run_id", sa.Uuid(), nullable=True),
        sa.Column("parity", JSONB(), nullable=True),
        sa.Column("notes", JSONB(), nullable=False),
        sa.Column("facts", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["base_commit_id"], ["commits.id"]),
        sa.ForeignKeyConstraint(["base_run_id"], ["runs.id"]),
        sa.ForeignKeyConstraint(["commit_id"], ["commits.id"]),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("runs_by_commit", "runs", ["commit_id"])
    op.create_index("runs_by_pull", "runs", ["subject", "pull"])
    op.create_index("runs_by_time", "runs", [sa.text("created_at DESC"), "id"])
    op.create_index(
        "runs_untold", "runs", ["created_at"], postgresql_where=sa.text("told <> state")
    )
    op.create_index(
        "runs_open",
        "runs",
        ["state"],
        postgresql_where=sa.text("state IN ('queued','building','running')"),
    )

    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("queues", JSONB(), nullable=False),
        sa.Column("device", JSONB(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=True),
        sa.Column("parallel", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("doing", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_workers_state", "workers", ["state"])

    op.create_table(
        "claims",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("claims_live", "claims", ["run_id"], postgresql_where=sa.text("state = 'live'"))
    op.create_index("ix_claims_run_id", "claims", ["run_id"])

    op.create_table(
        "commit_builds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("commit_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("toolchain", sa.String(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("build_id", sa.Integer(), nullable=True),
        sa.Column("token", sa.Uuid(), nullable=True),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"]),
        sa.ForeignKeyConstraint(["commit_id"], ["commits.id"]),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("commit_id", "name", "toolchain", "architecture"),
    )
    op.create_index("ix_commit_builds_build_id", "commit_builds", ["build_id"])

    op.create_table(
        "run_cells",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("build", sa.String(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("recorded", sa.Integer(), nullable=False),
        sa.Column("decided", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("signature", sa.String(), nullable=False),
        sa.Column("measurement_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["cell_id"], ["cells.id"]),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurements.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "position"),
    )
    op.create_index("ix_run_cells_measurement_id", "run_cells", ["measurement_id"])
    op.create_index("ix_run_cells_run_id", "run_cells", ["run_id"])

    op.create_table(
        "claim_cells",
        sa.Column("claim_id", sa.Uuid(), nullable=False),
        sa.Column("run_cell_id", sa.Integer(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("recorded", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["claim_id"], ["claims.id"]),
        sa.ForeignKeyConstraint(["run_cell_id"], ["run_cells.id"]),
        sa.PrimaryKeyConstraint("claim_id", "run_cell_id"),
    )

    op.create_table(
        "trials",
        sa.Column("id", sa.BigInteger(), nullable=False),
        sa.Column("measurement_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("run_cell_id", sa.Integer(), nullable=True),
        sa.Column("claim_id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("signature", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("digests", JSONB(), nullable=False),
        sa.Column("background_updates", sa.Integer(), nullable=False),
        sa.Column("handlers", JSONB(), nullable=True),
        sa.Column("times", JSONB(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["claim_id"], ["claims.id"]),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurements.id"]),
        sa.ForeignKeyConstraint(["run_cell_id"], ["run_cells.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("claim_id", "index"),
    )
    op.create_index("trials_by_measurement", "trials", ["measurement_id", "id"])
    op.create_index("trials_by_run", "trials", ["run_id", "id"])
    op.create_index(
        "trials_by_signature",
        "trials",
        ["signature", "id"],
        postgresql_where=sa.text("outcome <> 'pass'"),
    )

    op.create_table(
        "trial_evidence",
        sa.Column("trial_id", sa.BigInteger(), nullable=False),
        sa.Column("evidence", JSONB(), nullable=False),
        sa.Column("log", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"]),
        sa.PrimaryKeyConstraint("trial_id"),
    )

    _execute(SchemaManager.get_schema())


def downgrade() -> None:
    """Drop everything."""
    _execute(DROP_PROCRASTINATE)
    for table in TABLES:
        op.drop_table(table)


def _execute(sql: str) -> None:
    """Run many statements; their percent signs are no parameters."""
    op.get_bind().exec_driver_sql(sql, execution_options={"no_parameters": True})
