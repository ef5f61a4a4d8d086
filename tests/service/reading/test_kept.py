"""Answers that are kept: how long, for whom, and what others get while one looks."""

from __future__ import annotations

import threading

import pytest
from sqlmodel import Session

from service.reading.kept import Kept

NO_SESSION = Session()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("takes", "kept_for"), [(0.0, 2.0), (0.2, 10.0)])
def test_they_are_kept_for_a_moment_and_longer_where_they_cost_more(
    takes: float, kept_for: float
) -> None:
    clock, looked = Clock(), list[str]()

    def find(_: Session, asked: str) -> int:
        looked.append(asked)
        clock.now += takes
        return len(looked)

    keep = Kept(find, clock)
    assert keep(NO_SESSION, "a") == 1
    at = clock.now
    clock.now = at + kept_for - 0.01
    assert keep(NO_SESSION, "a") == 1
    assert keep(NO_SESSION, "b") == 2, "another question"
    clock.now = at + kept_for + 0.01
    assert keep(NO_SESSION, "a") == 3


def test_while_one_looks_the_others_get_what_is_kept() -> None:
    clock = Clock()
    began, go_on = threading.Event(), threading.Event()
    looked = 0

    def find(_: Session, __: str) -> int:
        nonlocal looked
        looked += 1
        if looked == 2:
            began.set()
            assert go_on.wait(30)
        return looked

    keep = Kept(find, clock)
    keep(NO_SESSION, "a")
    clock.now = 100.0
    slow = threading.Thread(target=keep, args=(NO_SESSION, "a"))
    slow.start()
    assert began.wait(30)
    assert keep(NO_SESSION, "a") == 1
    assert looked == 2, "it did not look a third time"
    go_on.set()
    slow.join(30)
    assert keep(NO_SESSION, "a") == 2


def test_an_error_is_not_kept_and_holds_nobody_up() -> None:
    answers = iter([ZeroDivisionError(), 7])

    def find(_: Session, __: str) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    keep = Kept(find, Clock())
    with pytest.raises(ZeroDivisionError):
        keep(NO_SESSION, "a")
    assert keep(NO_SESSION, "a") == 7


def test_it_forgets_before_it_grows_without_end() -> None:
    looked = 0

    def find(_: Session, __: int) -> int:
        nonlocal looked
        looked += 1
        return looked

    keep = Kept(find, Clock())
    for asked in range(1_000):
        keep(NO_SESSION, asked)
    assert keep(NO_SESSION, 0) == 1_001
