"""What a bisection counts of a trial, and the run that started one by itself.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; those that there are counted failures and were asked for."""
    op.add_column(
        "bisections", sa.Column("observe", sa.String(), nullable=False, server_default="failure")
    )
    op.alter_column("bisections", "observe", server_default=None)
    op.add_column("bisections", sa.Column("cause_id", sa.Uuid(), nullable=True))


def downgrade() -> None:
    """Take them away."""
    op.drop_column("bisections", "cause_id")
    op.drop_column("bisections", "observe")
