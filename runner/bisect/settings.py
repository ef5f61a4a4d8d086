"""How a bisection is carried out: its confidence, its budget, and what it may spend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from runner.bisect.policy import Costs
from runner.bisect.posterior import Tally
from runner.errors import BisectionError

EXPECTED = Costs(build_s=300.0, trial_s=1.0)
"""What a build and a trial are taken to cost before any was measured."""


class Observe(StrEnum):
    """What is counted of a trial: its rate is the one that changes."""

    FAILURE = "failure"
    SWALLOW = "swallow"
    """Foreign work went into a capture window, however the trial ended. Of watched trials only."""

    @property
    def rate(self) -> str:
        """The rate, in a sentence."""
        return "failure rate" if self is Observe.FAILURE else "rate of trials with foreign work"

    @property
    def done(self) -> str:
        """What trials did that are counted."""
        return "failed" if self is Observe.FAILURE else "had foreign work"

    def did(self, tally: Tally) -> str:
        """`3 of 20 failed`, `3 of 20 had foreign work`, `not measured`."""
        return f"{tally.text} {self.done}" if tally.n else tally.text


@dataclass(frozen=True)
class Settings:
    """How a bisection is carried out.

    observe: what is counted of a trial.
    confidence: probability of the suspect from which it is checked.
    budget_s: wall time, None for as long as it takes.
    spare: builds that it may make beyond those that one after the other would take, to save time;
        None keeps every builder busy.
    check_error: chance that a check by fresh trials shows a difference that is not there.
    check_trials: of each side, after which a check has failed.
    end_trials: of each end, after which the ends count as not separated.
    batch_s: seconds of trials at a time, at most.
    costs: what to expect before anything is measured.
    """

    confidence: float = 0.99
    budget_s: float | None = None
    spare: float | None = 1.0
    check_error: float = 0.01
    check_trials: int = 600
    end_trials: int = 1000
    batch_s: float = 60.0
    costs: Costs = EXPECTED
    observe: Observe = Observe.FAILURE

    def __post_init__(self) -> None:
        for name, low, high in (
            ("confidence", 0.5, 1.0),
            ("check_error", 0.0, 1.0),
            ("budget_s", 0.0, float("inf")),
            ("check_trials", 0, float("inf")),
            ("end_trials", 0, float("inf")),
            ("batch_s", 0.0, float("inf")),
        ):
            value = getattr(self, name)
            if value is not None and not low < value < high:
                limit = f"between {low:g} and {high:g}" if high <= 1 else f"above {low:g}"
                raise BisectionError(f"bisection: {name} must be {limit}, got {value:g}")
        if self.spare is not None and self.spare < 0:
            raise BisectionError(f"bisection: spare must be 0 or more, got {self.spare:g}")

    def to_data(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Settings:
        """What `to_data` gave. Raises BisectionError for anything else."""
        try:
            observe = Observe(data.get("observe", Observe.FAILURE))
            return cls(**{**data, "costs": Costs(**data["costs"]), "observe": observe})
        except (KeyError, TypeError, ValueError) as error:
            raise BisectionError(f"settings of a bisection: cannot be read ({error})") from error
