"""Bisections, their events, and runs that are probes of them.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "bisections",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("good", sa.String(), nullable=False),
        sa.Column("bad", sa.String(), nullable=False),
        sa.Column("matrix_name", sa.String(), nullable=False),
        sa.Column("cell_name", sa.String(), nullable=False),
        sa.Column("cell", postgresql.JSONB(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("toolchain", sa.String(), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column("budget_s", sa.Float(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("searched", postgresql.JSONB(), nullable=True),
        sa.Column("verdict", postgresql.JSONB(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("bisections_by_time", "bisections", [sa.text("created_at DESC"), "id"])
    op.create_index(
        "bisections_open",
        "bisections",
        ["state"],
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.add_column("runs", sa.Column("bisection_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(None, "runs", "bisections", ["bisection_id"], ["id"])
    op.create_index("ix_runs_bisection_id", "runs", ["bisection_id"])
    op.create_table(
        "bisection_events",
        sa.Column("bisection_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["bisection_id"], ["bisections.id"]),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("bisection_id", "number"),
        sa.UniqueConstraint("bisection_id", "run_id"),
    )


def downgrade() -> None:
    """Drop them; runs that were probes stay."""
    op.drop_table("bisection_events")
    op.drop_index("ix_runs_bisection_id", "runs")
    op.drop_column("runs", "bisection_id")
    op.drop_table("bisections")
