"""What happens in a bisection, as it is stored: its state is the fold of these, in their order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from runner.bisect.posterior import Tally
from runner.bisect.range import Range
from runner.errors import BisectionError
from runner.result import Commit


class Seen(StrEnum):
    """What came of a probe."""

    TRIALS = "trials"
    UNBUILDABLE = "unbuildable"
    """It does not build, or the cell is unsupported there: no observation of its rate, for good."""
    INFRASTRUCTURE = "infrastructure"
    """The host failed, not the commit: no observation, and worth another try."""


@dataclass(frozen=True)
class Observation:
    """A probe that ended, or trials that were there before.

    key: of the class. k, n: failures, and trials that count. check: number of the check that its
    trials are for, 0 for the search. build_s, trial_s: what it took; 0 s for what was there before.
    reason: where it has no trials. Of what does not build it is the first error: what lies between
    two classes that fail with one error is taken to fail with it too.
    """

    key: str
    seen: Seen = Seen.TRIALS
    k: int = 0
    n: int = 0
    check: int = 0
    build_s: float = 0.0
    trial_s: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.n:
            raise ValueError(f"k must be between 0 and n, got k={self.k}, n={self.n}")

    @property
    def tally(self) -> Tally:
        """Its failures and trials."""
        return Tally(self.k, self.n)


@dataclass(frozen=True)
class Entered:
    """The search went on into a merge; `range` is None where its branch has no build of its own,
    or where `reason` says why that cannot be told."""

    range: Range | None
    reason: str = ""


@dataclass(frozen=True)
class Reverted:
    """The culprit was taken out of the head: the commit that this gives and the key of its build,
    or the reason why there is none."""

    commit: Commit | None = None
    key: str = ""
    reason: str = ""


Event = Observation | Entered | Reverted


def to_data(event: Event) -> dict[str, Any]:
    """As JSON takes it."""
    match event:
        case Observation():
            return {"event": "observation", **asdict(event)}
        case Entered(range=inner):
            whole = inner.to_data() if inner else None
            data: dict[str, Any] = {"event": "entered", "range": whole}
            return data | ({"reason": event.reason} if event.reason else {})
        case Reverted():
            return {"event": "reverted", **asdict(event)}


def from_data(data: dict[str, Any]) -> Event:
    """What `to_data` gave. Raises BisectionError for anything else."""
    try:
        fields = {name: value for name, value in data.items() if name != "event"}
        match data["event"]:
            case "observation":
                return Observation(**{**fields, "seen": Seen(fields["seen"])})
            case "entered":
                inner = Range.from_data(fields["range"]) if fields["range"] else None
                return Entered(inner, fields.get("reason", ""))
            case "reverted":
                commit = fields["commit"]
                return Reverted(**{**fields, "commit": Commit(**commit) if commit else None})
    except (KeyError, TypeError, ValueError) as error:
        raise BisectionError(f"event of a bisection: cannot be read ({error})") from error
    raise BisectionError(f"event of a bisection: unknown kind {data['event']!r}")
