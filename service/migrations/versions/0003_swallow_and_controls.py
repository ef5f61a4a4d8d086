"""What the detector saw of trials, counted; and which trials are of control cells.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COUNTS = ("watched", "swallowed", "swallowed_passes")


def upgrade() -> None:
    """Add the columns, and fill them from the evidence of trials that were watched already."""
    for name in COUNTS:
        op.add_column(
            "measurements", sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        )
        op.alter_column("measurements", name, server_default=None)
    op.add_column("trials", sa.Column("foreign_nodes", sa.BigInteger(), nullable=True))
    op.add_column("trials", sa.Column("control", sa.String(), nullable=False, server_default=""))
    op.alter_column("trials", "control", server_default=None)
    op.create_index(
        "trials_of_controls",
        "trials",
        ["run_id", "id"],
        postgresql_where=sa.text("control <> ''"),
    )
    op.execute(
        """
        UPDATE trials SET foreign_nodes = (e.evidence #>> '{swallow,foreign}')::bigint
            + coalesce((e.evidence #>> '{swallow,refused}')::bigint, 0)
        FROM trial_evidence e
        WHERE e.trial_id = trials.id AND e.evidence #>> '{swallow,reason}' = ''
        """
    )
    op.execute(
        """
        UPDATE measurements m
        SET watched = t.watched, swallowed = t.swallowed, swallowed_passes = t.passes
        FROM (
            SELECT measurement_id, count(*) AS watched,
                count(*) FILTER (WHERE foreign_nodes > 0) AS swallowed,
                count(*) FILTER (WHERE foreign_nodes > 0 AND outcome = 'pass') AS passes
            FROM trials
            WHERE foreign_nodes IS NOT NULL AND outcome IN
                ('pass', 'capture_error', 'crash', 'hang', 'data_loss', 'wrong_output')
            GROUP BY measurement_id
        ) t
        WHERE t.measurement_id = m.id
        """
    )


def downgrade() -> None:
    """Take them away. The evidence keeps what was seen; which trials were of controls is lost."""
    op.drop_index("trials_of_controls", "trials")
    op.drop_column("trials", "control")
    op.drop_column("trials", "foreign_nodes")
    for name in COUNTS:
        op.drop_column("measurements", name)
