"""Answers that are kept for a moment, because many pages ask the same and finding them is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from sqlmodel import Session

FRESH_S = 2.0
"""What was found this short a time ago is not looked for again."""
SHARE = 50
"""Nor what took more than this part of the time since: what takes 0.1 s is looked for every 5 s at
most."""
_MOST = 200

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Answer(NamedTuple, Generic[V]):
    """What was found, when (on the monotonic clock), and how long that took."""

    value: V
    at: float
    took: float


class Kept(Generic[K, V]):
    """Finds what is asked for, and keeps it for a moment. For all threads of a process."""

    def __init__(
        self, find: Callable[[Session, K], V], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find
        self._clock = clock
        self._answers: dict[K, _Answer[V]] = {}
        self._busy = threading.Lock()

    def __call__(self, session: Session, asked: K) -> V:
        """The answer, or the one before it while another thread looks."""
        there = self._answers.get(asked)
        if there is not None and self._clock() - there.at < max(FRESH_S, SHARE * there.took):
            return there.value
        if not self._busy.acquire(blocking=there is None):
            assert there is not None, "it would have waited"
            return there.value
        try:
            began = self._clock()
            value = self._find(session, asked)
            ended = self._clock()
            if asked not in self._answers and len(self._answers) >= _MOST:
                self._answers.clear()
            self._answers[asked] = _Answer(value, ended, ended - began)
            return value
        finally:
            self._busy.release()
