"""Counts of one cell: failures and the trials that a rate is taken over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from runner import rates

_cached_interval = lru_cache(maxsize=65_536)(rates.interval)
"""A grid asks for few different counts (0 of 10, 10 of 10, ...) again and again."""


@dataclass(frozen=True)
class Counts:
    """k failures in n trials that count (failures and passes, nothing else).

    Raises ValueError where no trials could give them.
    """

    k: int = 0
    n: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.n:
            raise ValueError(f"k must be between 0 and n, got k={self.k}, n={self.n}")

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.k + other.k, self.n + other.n)

    @property
    def rate(self) -> float | None:
        """k/n, None without a trial."""
        return self.k / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the rate for a number of trials fixed beforehand."""
        return _cached_interval(self.k, self.n)

    @property
    def mirrored(self) -> Counts:
        """Passes in place of failures."""
        return Counts(self.n - self.k, self.n)

    def grown_to(self, n: int) -> Counts:
        """What n trials would count if the rate stayed as seen (0 where nothing was seen)."""
        if not self.n:
            return Counts(0, n)
        return Counts((2 * self.k * n + self.n) // (2 * self.n), n)

    @property
    def text(self) -> str:
        """`3 of 20`, or `not measured`."""
        return f"{self.k} of {self.n}" if self.n else "not measured"


def span(interval: tuple[float, float]) -> str:
    """An interval of rates as text, for example `3.2 to 37.9 %`."""
    low, high = interval
    return f"{rates.percent(low).removesuffix(' %')} to {rates.percent(high)}"
