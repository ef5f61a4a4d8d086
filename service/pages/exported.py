"""What several views write alike as data: in JSON, and as columns of a CSV file."""

from __future__ import annotations

from typing import Any

from service.reading.rate import Rate, Swallow

SWALLOW_COLUMNS = (
    "watched", "swallow_k", "swallow_passes", "swallow_rate", "swallow_low", "swallow_high",
    "swallow_verdict",
)  # fmt: skip
_NOT_WATCHED = (0, 0, 0, None, None, None, None)


def as_swallow(found: Swallow) -> dict[str, Any]:
    """Trials with foreign work in a capture window: k of the n that were watched."""
    return {
        "k": found.k,
        "n": found.n,
        "passes": found.passes,
        "rate": found.rate,
        "interval": [found.low, found.high],
        "verdict": str(found.mark),
    }


def swallow_row(rate: Rate | None) -> tuple[Any, ...]:
    """The values of SWALLOW_COLUMNS."""
    found = rate.swallow if rate else None
    if found is None:
        return _NOT_WATCHED
    return (
        found.n, found.k, found.passes, found.rate, found.low, found.high, str(found.mark),
    )  # fmt: skip
