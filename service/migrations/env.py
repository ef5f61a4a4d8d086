"""Runs the migrations on the connection, and in the transaction, that `service.schema` gives."""

from __future__ import annotations

from alembic import context

from service.schema import METADATA, ours

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    include_name=ours,
)
with context.begin_transaction():
    context.run_migrations()
