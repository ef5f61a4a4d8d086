"""Cells, environments, and the counts by outcome that rates are taken from."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Field, SQLModel, UniqueConstraint

from runner.outcome import FAILURES, Outcome
from service.tables.columns import moment


class Cell(SQLModel, table=True):
    """What a trial is run as, whatever matrix it stands in; see `runner.matrix.Cell`.

    digest: of all other columns. reference: the trials that a run adds to fix what output bits must
    be (stock, alone, not held, executed more often); they count for no rate.
    """

    __tablename__ = "cells"

    id: int | None = Field(default=None, primary_key=True)
    digest: str = Field(unique=True)
    variant: str
    program: str
    background: bool
    background_period_ms: float = 0.0
    hold_ms: float = 0.0
    recipe: str = "auto"
    reference: bool = False


class Environment(SQLModel, table=True):
    """What trials run in. Rates of two environments are never added up.

    digest: of all other columns. device_kind: `cuda` or `emulated`. compute_capability: such as
    `9.0`, empty if unknown. harness: see `runner.run.HARNESS`.
    """

    __tablename__ = "environments"

    id: int | None = Field(default=None, primary_key=True)
    digest: str = Field(unique=True)
    device_kind: str
    device_name: str
    compute_capability: str = ""
    driver: str = ""
    jax: str = ""
    toolchain: str
    harness: str

    @property
    def emulated(self) -> bool:
        """True where no GPU took part."""
        return self.device_kind == "emulated"


class Measurement(SQLModel, table=True):
    """All trials of one build in one cell and environment, counted by outcome.

    The counts change in the transaction that stores a trial and in no other way. adaptive: trials
    that were ordered because of how earlier ones ended (a bisection's, or a run's that stopped
    early); a grid's verdict leaves them out.

    watched: those that count for a rate and whose capture windows the detector saw. swallowed: of
    these, those with another thread's work in a window. swallowed_passes: of these, the passes.
    """

    __tablename__ = "measurements"
    __table_args__ = (UniqueConstraint("build_id", "cell_id", "environment_id", "adaptive"),)

    id: int | None = Field(default=None, primary_key=True)
    build_id: int = Field(foreign_key="builds.id")
    cell_id: int = Field(foreign_key="cells.id", index=True)
    environment_id: int = Field(foreign_key="environments.id")
    adaptive: bool = False
    passed: int = 0
    capture_error: int = 0
    crash: int = 0
    hang: int = 0
    data_loss: int = 0
    wrong_output: int = 0
    unsupported: int = 0
    infra_error: int = 0
    build_error: int = 0
    first_trial_at: datetime | None = moment()
    last_trial_at: datetime | None = moment()
    watched: int = 0
    swallowed: int = 0
    swallowed_passes: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Trials by outcome, in the order of `runner.outcome.Outcome`."""
        return {str(outcome): getattr(self, column_of(outcome)) for outcome in Outcome}

    @property
    def k(self) -> int:
        """Failures."""
        return sum(getattr(self, column_of(outcome)) for outcome in FAILURES)

    @property
    def n(self) -> int:
        """Trials that a rate is taken over: failures and passes."""
        return self.k + self.passed


def column_of(outcome: Outcome) -> str:
    """The column of a measurement that counts an outcome (`pass` is a word of Python's)."""
    return "passed" if outcome is Outcome.PASS else str(outcome)
