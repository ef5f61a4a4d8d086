"""Numbers and times as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.pages import words

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (9, "just now"),
        (42, "42 s ago"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (3_600, "1 h ago"),
        (47 * 3_600, "47 h ago"),
        (48 * 3_600, "2 d ago"),
        (59 * 86_400, "59 d ago"),
        (60 * 86_400, "2026-10-01"),
        (-90, "in 1 min"),
    ],
)
def test_ago(seconds: int, text: str) -> None:
    assert words.ago(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.354, "0.35 s"),
        (2.5, "2.5 s"),
        (26.4, "26 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (7_380, "2 h 3 min"),
        (7_200, "2 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_a_moment_is_told_in_utc_whatever_its_zone() -> None:
    moment = datetime.fromisoformat("2026-11-30T14:30:00+02:00")
    assert words.exact(moment) == "2026-11-30 12:30:00 UTC"
    assert words.machine(moment) == "2026-11-30T12:30:00Z"


def test_hashes_are_cut_and_versions_are_not() -> None:
    assert words.short_sha("0123456789abcdef") == "012345678"
    assert words.short_sha("2.20.2.post1") == "2.20.2.post1"


def test_the_pull_request_is_what_a_title_ends_with() -> None:
    assert words.pull_of("[JAX] Add stages (#2219)") == "2219"
    assert words.without_pull("[JAX] Add stages (#2219)") == "[JAX] Add stages"
    assert words.pull_of("Revert (#1) partly") == ""


def test_counts_have_their_noun() -> None:
    assert words.counted(1, "trial") == "1 trial"
    assert words.counted(2_000, "trial") == "2,000 trials"
