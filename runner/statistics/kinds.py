"""The closed set of verdicts that a cell can get, the same in tables, JSON and pages."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a cell's trials support: `runner.rates.Verdict` and what a base and controls add."""

    REGRESSED = "regressed"
    FIXED = "fixed"
    RACES = "races"
    NO_WORSE = "no worse"
    CLEAN = "clean"
    UNDERSAMPLED = "undersampled"
    NOT_MEASURED = "not measured"
    UNPROVEN = "unproven"
