"""A cell with its counts and all that follows from them, as the API writes it."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field

from runner.outcome import Outcome
from runner.statistics.comparison import difference
from runner.statistics.counts import Counts
from runner.statistics.kinds import Kind
from runner.statistics.verdict import CellVerdict, judge_cell
from service.api.rows import taken
from service.reading.doubted import NONE, Doubts
from service.reading.rate import Watch, watch_of
from service.tables import Cell, Environment, Measurement

NO_COUNTS: dict[str, int] = {str(outcome): 0 for outcome in Outcome}
Share = Annotated[float, Field(ge=0, le=1)]
COUNT_COLUMNS = (
    *(str(outcome) for outcome in Outcome),
    "k",
    "n",
    "rate",
    "interval_low",
    "interval_high",
    "verdict",
    "trials_needed",
    "watched",
    "swallow_k",
    "swallow_passes",
    "swallow_low",
    "swallow_high",
    "swallow_verdict",
)
"""Columns of a CSV file."""
CELL_COLUMNS = ("variant", "program", "background", "background_period_ms", "hold_ms", "recipe")


class CellOut(BaseModel):
    """What trials of a cell are run as."""

    variant: str = Field(examples=["stock"])
    program: str = Field(examples=["norm-act-gemm"])
    background: bool
    background_period_ms: float
    hold_ms: float
    recipe: str = Field(examples=["auto"])


class SwallowOut(BaseModel):
    """Trials in which a capture took in another thread's work: the second rate of a cell."""

    k: int = Field(description="Trials with foreign work in a capture window.", examples=[4])
    n: int = Field(description="Trials that count and that the detector watched.", examples=[10])
    passes: int = Field(description="Those of k that passed all the same.", examples=[1])
    rate: Share
    interval: tuple[Share, Share] = Field(description="95 % interval, as of the failure rate.")
    verdict: Kind = Field(
        description="As of the failure rate; `races` where k is not 0.", examples=["races"]
    )

    @classmethod
    def of(cls, watch: Watch, clean_below: float, adaptive: bool) -> SwallowOut | None:
        """As the API writes what a detector saw; None where it watched no trial."""
        if not watch.watched:
            return None
        counts = Counts(watch.swallowed, watch.watched)
        verdict = _judged(counts, clean_below, adaptive)
        return cls(
            k=counts.k,
            n=counts.n,
            passes=watch.passes,
            rate=counts.k / counts.n,
            interval=verdict.interval,
            verdict=verdict.kind,
        )


class CountedOut(BaseModel):
    """Trials by outcome, and what they support on their own."""

    counts: dict[str, int] = Field(examples=[{**NO_COUNTS, "pass": 6, "capture_error": 4}])
    k: int = Field(description="Failures.", examples=[4])
    n: int = Field(description="Trials that the rate is over: failures and passes.", examples=[10])
    rate: Share | None = Field(description="k/n, null without a trial that counts.", examples=[0.4])
    interval: tuple[Share, Share] = Field(
        description="95 % interval of the rate: Clopper-Pearson's, or where the number of trials "
        "depended on results (`adaptive`) a confidence sequence.",
        examples=[[0.122, 0.738]],
    )
    verdict: Kind = Field(examples=["races"])
    verdict_text: str = Field(examples=["races"])
    trials_needed: int = Field(description="Further passes that `clean` still takes.", ge=0)
    swallow: SwallowOut | None = Field(
        default=None, description="The second rate, null where no trial was watched."
    )

    def row(self) -> list[Any]:
        """The values of COUNT_COLUMNS."""
        return [
            *self.counts.values(), self.k, self.n, self.rate, *self.interval, str(self.verdict),
            self.trials_needed, *self._swallowed(),
        ]  # fmt: skip

    def _swallowed(self) -> tuple[Any, ...]:
        if self.swallow is None:
            return (0, 0, 0, None, None, None)
        one = self.swallow
        return (one.n, one.k, one.passes, *one.interval, str(one.verdict))


class ComparisonOut(BaseModel):
    """A cell's counts at head against those at base."""

    verdict: Kind = Field(examples=["regressed"])
    text: str = Field(examples=["newly failing: 4 of 10, base 0 of 100"])
    p: Share = Field(description='One-sided p value of "head does not fail more often".')
    difference: tuple[float, float] = Field(
        description="About 95 % interval of head's rate less base's."
    )
    trials_needed: int = Field(ge=0)
    base_trials_needed: int = Field(ge=0)

    @classmethod
    def of(cls, verdict: CellVerdict, head: Counts, base: Counts) -> ComparisonOut:
        """As the API writes a verdict on two counts."""
        return cls(
            verdict=verdict.kind,
            text=verdict.text,
            p=1.0 if verdict.p is None else verdict.p,
            difference=difference(head, base),
            trials_needed=verdict.trials_needed,
            base_trials_needed=verdict.base_trials_needed,
        )


class EnvironmentOut(BaseModel):
    """What trials run in; rates of two environments are never added up."""

    id: int
    device_kind: str = Field(examples=["cuda"])
    device_name: str = Field(examples=["NVIDIA H200"])
    compute_capability: str = Field(examples=["9.0"])
    driver: str
    jax: str
    toolchain: str
    harness: str
    emulated: bool = Field(description="True where no GPU took part.")

    @classmethod
    def of(cls, row: Environment) -> EnvironmentOut:
        """As the API writes an environment."""
        assert row.id is not None, "the environment is stored"
        return cls(**taken(row, cls))


def cell_fields(cell: Cell) -> dict[str, Any]:
    """The fields of CellOut."""
    return {name: getattr(cell, name) for name in CELL_COLUMNS}


def counted_fields(
    measurement: Measurement | None,
    clean_below: float,
    nothing: str = "",
    doubts: Doubts = NONE,
) -> dict[str, Any]:
    """The fields of CountedOut. nothing: why there is no trial, where there is none. doubts: see
    `service.reading.doubted`."""
    plain = Counts(measurement.k, measurement.n) if measurement else Counts()
    adaptive = bool(measurement and measurement.adaptive)
    verdict = _judged(plain, clean_below, adaptive)
    doubt = doubts.get(measurement.id or 0) if measurement else None
    if doubt is not None:
        verdict = judge_cell(plain, None, clean_below, doubt, adaptive)
    watch = watch_of(measurement) if measurement else Watch()
    return {
        "counts": measurement.counts if measurement else NO_COUNTS,
        "k": plain.k,
        "n": plain.n,
        "rate": plain.rate,
        "interval": verdict.interval,
        "verdict": verdict.kind,
        "verdict_text": verdict.text if plain.n or not nothing else f"not measured: {nothing}",
        "trials_needed": verdict.trials_needed,
        "swallow": SwallowOut.of(watch, clean_below, adaptive),
    }


@lru_cache(maxsize=65_536)
def _judged(counts: Counts, clean_below: float, adaptive: bool) -> CellVerdict:
    """The verdict of a cell on its own. Few counts come again and again."""
    return judge_cell(counts, None, clean_below, adaptive=adaptive)
