"""What `racewatch bisect` refuses before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runner.bisect.settings import Observe
from runner.detector.record import Detector
from runner.errors import InputError
from service.bisect_command import watching


@dataclass(frozen=True)
class Unwatched:
    """A subject whose trials nothing watches."""

    name: str = "te"

    def detector(self) -> Detector:
        return Detector(reason="the toolchain names no CUPTI headers")


def test_swallows_that_nothing_can_see_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError) as raised:
        watching(Unwatched(), Observe.SWALLOW)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "--observe swallow: trials of te cannot be watched here, use --observe failure: "
        "the toolchain names no CUPTI headers"
    )


def test_failures_are_counted_all_the_same() -> None:
    assert watching(Unwatched(), Observe.FAILURE).reason  # type: ignore[arg-type]
