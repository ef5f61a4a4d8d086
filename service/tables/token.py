"""Tokens of the API: only a digest is kept."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Field, SQLModel

from service.tables.columns import json_list, moment


class ApiToken(SQLModel, table=True):
    """One token. digest: SHA-256 of it, hexadecimal. scopes: of `run`, `approve`, `admin`."""

    __tablename__ = "tokens"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    digest: str = Field(unique=True)
    scopes: list[str] = json_list()
    created_at: datetime = moment(default_now=True)
    last_used_at: datetime | None = moment()
    revoked_at: datetime | None = moment()
