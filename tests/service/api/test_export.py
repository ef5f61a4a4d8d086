"""CSV that is safe to open, cursors that come back as they went out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InputError
from service.api import cursor
from service.api.export import safe

TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))]))


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_text_that_begins_like_a_formula_is_quoted(begin: str) -> None:
    assert safe(f"{begin}cmd") == f"'{begin}cmd"
    assert safe(f"a{begin}") == f"a{begin}"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-3, -3), (-0.5, -0.5), (None, ""), (True, "true"), (False, "false"), ("", ""),
        (datetime(2026, 7, 1, tzinfo=UTC), "2026-07-01T00:00:00+00:00"),
    ],
)  # fmt: skip
def test_other_values_stay_what_they_are(value: object, written: object) -> None:
    assert safe(value) == written


@given(TIMES, st.uuids())
def test_a_cursor_of_a_moment_comes_back(moment: datetime, identity: UUID) -> None:
    assert cursor.moment_of(cursor.at_moment(moment, identity)) == (moment, identity)


@given(st.integers(0, 2**31 - 1))
def test_a_cursor_of_a_number_comes_back(number: int) -> None:
    assert cursor.number_of(cursor.at_number(number)) == number


@given(st.text(alphabet="ABCabc012_-", min_size=1, max_size=60))
def test_any_other_text_is_refused_as_input(text: str) -> None:
    for read in (cursor.moment_of, cursor.number_of):
        with pytest.raises(InputError, match="cursor"):
            read(text)


def test_a_cursor_of_one_list_is_none_of_another() -> None:
    with pytest.raises(InputError):
        cursor.moment_of(cursor.at_number(3))
    with pytest.raises(InputError):
        cursor.number_of(cursor.at_moment(datetime.now(UTC), UUID(int=1)))
