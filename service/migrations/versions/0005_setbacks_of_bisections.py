"""How often git could not be asked for a bisection, and when it is asked again.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; for those that there are nothing is known to have gone wrong."""
    op.add_column(
        "bisections", sa.Column("setbacks", sa.Integer(), nullable=False, server_default="0")
    )
    op.alter_column("bisections", "setbacks", server_default=None)
    op.add_column("bisections", sa.Column("again_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take them away."""
    op.drop_column("bisections", "again_at")
    op.drop_column("bisections", "setbacks")
