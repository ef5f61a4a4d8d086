"""What a parent and its trials say, checked: a subject's code runs there and can write anything.

A line of JSON each, `event` naming which. A line that is none of these is refused as a whole, so
that nothing behind this module meets a value of another type than it expects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.matrix import Recipe

LINE_BYTES = 1 << 16
"""No event is longer; see `runner.trial.child.LINE_LIMIT` for those of trials."""


class BrokenEvent(Exception):
    """What was written is no event."""


class Lines:
    """Whole lines out of the pieces that a pipe gives."""

    def __init__(self) -> None:
        self._pending = b""

    def of(self, data: bytes) -> Iterator[bytes]:
        """The lines that this piece completes. Raises BrokenEvent for one that does not end."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        yield from lines
        if len(self._pending) > LINE_BYTES:
            raise BrokenEvent(f"a line of more than {LINE_BYTES} bytes: {self._pending[:80]!r}")


def parse(line: bytes) -> dict[str, Any]:
    """The event of one line. Raises BrokenEvent."""
    try:
        event = json.loads(line, parse_constant=_refuse)
        fields = _EVENTS[event["event"]]
        # Of a trial that did not fail it is not said which threads live.
        checked = {"threads_alive": [], **event}
        if all(holds(checked[name]) for name, holds in fields.items()):
            return dict(event)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokenEvent(f"{error!r:.200}: {line[:80]!r}") from None
    raise BrokenEvent(f"a field of another type: {line[:80]!r}")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _text(value: object) -> bool:
    return isinstance(value, str)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_or_none(value: object) -> bool:
    return value is None or _whole(value)


def _number(value: object) -> bool:
    return _whole(value) or isinstance(value, float)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _recipe(value: object) -> bool:
    return value in ("", *Recipe)


def _capability(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole, value))


def _texts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


def _numbers_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


_Check = Callable[[object], bool]
_EVENTS: Mapping[str, Mapping[str, _Check]] = {
    "ready": {"versions": _texts_by_name, "fresh_reason": _text},
    "unready": {"error": _text},
    "started": {"trial": _whole, "fresh": _text},
    "versions": {"trial": _whole, "versions": _texts_by_name},
    "stage": {"trial": _whole, "stage": _text},
    "device": {
        "trial": _whole,
        "platform": _text,
        "name": _text,
        "compute_capability": _capability,
        "driver": _text,
    },
    "beat": {"trial": _whole, "updates": _whole},
    "result": {
        "trial": _whole,
        "finished": _flag,
        "error": _text,
        "recipe": _recipe,
        "digests": _texts,
        "updates": _whole,
        "background_error": _text,
        "times": _numbers_by_name,
        "stale_rows": _whole_or_none,
        "threads_alive": _texts,
    },
    "exit": {"trial": _whole, "exit_status": _whole_or_none, "signal": _whole_or_none},
}
