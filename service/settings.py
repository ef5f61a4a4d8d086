"""How the service is configured: environment, files of secrets, and one TOML file for subjects."""

from __future__ import annotations

import os
import tomllib
from functools import cached_property
from pathlib import Path

import platformdirs
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from runner.errors import InputError
from runner.te_subject import UPSTREAM

SECRETS = Path("/run/secrets")
"""Where container engines mount secrets; a file is named as the variable, in small letters."""


class Tracked(BaseModel):
    """A subject that this installation tracks.

    github: `owner/name` whose webhooks and pull requests are meant, empty for none. repository: a
    git URL or folder, empty for the subject's own. branches, tags: patterns (`release_v*`) of what
    is run when it moves. queues: kinds of device that a new commit is run on, such as `sm90`.
    poll_minutes: how often refs are looked at, 0 for never. bisect: whether a bisection starts by
    itself where a cell of a branch turns to regressed. bisect_hours: that such a one may take.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    github: str = ""
    repository: str = ""
    toolchain: str = ""
    branches: list[str] = ["main"]
    tags: list[str] = []
    pulls: bool = True
    push_matrix: str = "quick"
    pull_matrix: str = "issue-3863"
    queues: list[str] = ["sm90"]
    poll_minutes: float = Field(default=5.0, ge=0)
    bisect: bool = False
    bisect_hours: float = Field(default=12.0, gt=0)

    @property
    def source(self) -> str:
        """What is given to git."""
        return self.repository or (UPSTREAM if self.name == "te" else "")


class ServiceSettings(BaseSettings):
    """Every setting of the service; each is an environment variable `RACEWATCH_<NAME>`.

    database_url (also `DATABASE_URL`): of a PostgreSQL; empty for the embedded one in `home`.
    config: a TOML file with `[subjects.<name>]` tables, see `Tracked`; else TE and the demo.
    base_url: how people reach this service, for links. private: reading needs a token too.
    worker_lost_s: seconds of silence after which a worker's work goes to others. sweep_s: between
    two looks at what is open. batch_s: how long a worker holds a claim at most. drain_s: how long a
    worker that is told to stop may finish its batch. evidence_days: how long `prune` keeps logs.
    notify_url, notify_secret: a webhook of yours, signed as GitHub signs. smtp_url: such as
    `smtp://user:password@host:587`, for mail to notify_email.
    """

    model_config = SettingsConfigDict(
        env_prefix="RACEWATCH_",
        secrets_dir=SECRETS if SECRETS.is_dir() else None,
        extra="ignore",
        populate_by_name=True,
    )

    home: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("racewatch")))
    store: str = ""
    database_url: str = Field(
        default="",
        validation_alias=AliasChoices("RACEWATCH_DATABASE_URL", "DATABASE_URL", "database_url"),
    )
    config: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    base_url: str = ""
    webhook_secret: SecretStr = SecretStr("")
    github_token: SecretStr = SecretStr("")
    github_api: str = "https://api.github.com"
    notify_url: str = ""
    notify_secret: SecretStr = SecretStr("")
    smtp_url: str = ""
    notify_email: str = ""
    private: bool = False
    worker_lost_s: float = Field(default=30.0, gt=0)
    heartbeat_s: float = Field(default=5.0, gt=0)
    sweep_s: float = Field(default=60.0, gt=0)
    batch_s: float = Field(default=60.0, gt=0)
    drain_s: float = Field(default=90.0, gt=0)
    evidence_days: float = Field(default=180.0, gt=0)

    @property
    def link(self) -> str:
        """Where this service's pages are, without a slash at the end."""
        return (self.base_url or f"http://{self.host}:{self.port}").rstrip("/")

    @cached_property
    def subjects(self) -> dict[str, Tracked]:
        """The tracked subjects by name. Raises InputError for a file that is not valid."""
        if self.config is None:
            return {
                "te": Tracked(name="te", github="NVIDIA/TransformerEngine"),
                "demo": Tracked(name="demo", queues=["emulated"], poll_minutes=0),
            }
        try:
            data = tomllib.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"RACEWATCH_CONFIG: {self.config} cannot be read: {error}") from error
        unknown = set(data) - {"subjects"}
        if unknown or not isinstance(data.get("subjects"), dict):
            raise InputError(
                f"RACEWATCH_CONFIG: {self.config} must hold [subjects.<name>] tables and nothing "
                f"else, got {', '.join(sorted(data)) or 'nothing'}"
            )
        try:
            return {
                name: Tracked(**{"name": name, **table}) for name, table in data["subjects"].items()
            }
        except (ValidationError, TypeError) as error:
            raise InputError(f"RACEWATCH_CONFIG: {self.config}: {error}") from error

    def subject(self, name: str) -> Tracked:
        """A tracked subject. Raises InputError."""
        if name not in self.subjects:
            raise InputError(f"unknown subject {name!r}; tracked: {', '.join(self.subjects)}")
        return self.subjects[name]

    def by_github(self, full_name: str) -> Tracked | None:
        """The subject whose repository at GitHub that is."""
        wanted = full_name.lower()
        return next((s for s in self.subjects.values() if s.github.lower() == wanted), None)


def load() -> ServiceSettings:
    """From the environment. Raises InputError with one sentence for what is not valid."""
    try:
        return ServiceSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = "RACEWATCH_" + "_".join(map(str, first["loc"])).upper().removeprefix("RACEWATCH_")
        given = os.environ.get(name, first.get("input"))
        raise InputError(f"{name}: {first['msg'].lower()}, got {given!r}") from None
