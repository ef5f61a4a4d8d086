"""What a detector saw of a trial, read from the record that it left (record.h writes it).

The trial ran the subject's code, so that nothing in its record is trusted: whatever its bytes are,
counts of a bounded size and printable names come out of it, or a reason why it tells nothing.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from typing import Any

VARIABLE = "RACEWATCH_SWALLOW"
"""Names the file of a trial's record, to whatever watches in the trial's process."""
NO_RECORD = "it left no record: the device's driver did not load the detector"
UNFINISHED = "the detector was loaded and did not come to watch"
BROKEN = "its record is broken"

_MAGIC = b"RWSWALW2"
_BEGUN, _WATCHING, _REFUSED = 0, 1, 2
_HEAD = struct.Struct("<8sIIIIQQQ256s")
_ROW = struct.Struct("<48s16sQ")
_FIRST = struct.Struct("<48s16sQQ")
_ROWS, _FIRSTS = 64, 20
SIZE = _HEAD.size + _ROWS * _ROW.size + _FIRSTS * _FIRST.size
"""Bytes of a record, whatever it holds."""
_MOST = 2**53
"""Above any count that there can be, and exact in JSON wherever it is read."""
_LONGEST = 2000
"""Characters of a name or a reason."""
_PR_SET_NAME = 15  # prctl(2)


@dataclass(frozen=True)
class Detector:
    """How trials are watched.

    library: what the CUDA driver is to load, empty where the device's own runtime watches (the
    emulation). reason: why they cannot be watched, empty where they can.
    """

    library: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Swallowed:
    """How many nodes of a graph one thread's calls of one API became, in other threads' windows.

    api: ends in ` (refused)` for calls that the device's driver refused because of such a window,
    which are counted instead.
    """

    api: str
    thread: str
    count: int


@dataclass(frozen=True)
class ForeignCall:
    """One of the first calls whose work went into another thread's window.

    window: the how many-th that was opened in the process, from 1. ms: since it was opened.
    """

    api: str
    thread: str
    window: int
    ms: float


@dataclass(frozen=True)
class Swallow:
    """What a detector saw of a trial's capture windows.

    windows: captures begun. own: graph nodes made by the thread that captures. foreign: by others.
    refused: calls of other threads that a window did not allow, by which they most often break it.
    calls: the foreign and the refused ones by API and thread. first: the first of them.
    reason: why nothing was watched; then all counts are 0 and mean nothing.
    """

    windows: int = 0
    own: int = 0
    foreign: int = 0
    calls: tuple[Swallowed, ...] = ()
    first: tuple[ForeignCall, ...] = ()
    reason: str = ""
    refused: int = 0

    @property
    def reached(self) -> int:
        """Nodes and refused calls: how often another thread's work met a window."""
        return self.foreign + self.refused

    @property
    def watched(self) -> bool:
        """True where the counts mean something."""
        return not self.reason


def parse(data: bytes) -> Swallow:
    """What a record says; a reason for one that says nothing."""
    if not data:
        return Swallow(reason=NO_RECORD)
    if len(data) < SIZE or not data.startswith(_MAGIC):
        return Swallow(reason=BROKEN)
    _, state, rows, firsts, refused, windows, own, foreign, reason = _HEAD.unpack_from(data)
    if state == _BEGUN:
        return Swallow(reason=UNFINISHED)
    if state != _WATCHING:
        return Swallow(reason=_text(reason) if state == _REFUSED and _text(reason) else BROKEN)
    at = _HEAD.size
    calls = [
        Swallowed(_text(api), _text(thread), min(count, _MOST))
        for api, thread, count in _entries(_ROW, data, at, min(rows, _ROWS))
    ]
    at += _ROWS * _ROW.size
    first = [
        ForeignCall(_text(api), _text(thread), min(window, _MOST), min(micros, _MOST) / 1000)
        for api, thread, window, micros in _entries(_FIRST, data, at, min(firsts, _FIRSTS))
    ]
    return Swallow(
        windows=min(windows, _MOST),
        own=min(own, _MOST),
        foreign=min(foreign, _MOST),
        calls=tuple(sorted(calls, key=lambda one: (-one.count, one.api, one.thread))),
        first=tuple(first),
        refused=refused,
    )


def _entries(form: struct.Struct, data: bytes, at: int, count: int) -> list[tuple[Any, ...]]:
    return [form.unpack_from(data, at + n * form.size) for n in range(count)]


def _text(field: bytes) -> str:
    text = field.split(b"\0")[0].decode("ascii", errors="replace")
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def refuse(path: str, reason: str) -> None:
    """Begin a trial's record with the reason why nothing watches it. Raises OSError."""
    head = _HEAD.pack(_MAGIC, _REFUSED, 0, 0, 0, 0, 0, 0, reason.encode("ascii", "replace")[:255])
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        file.write(head.ljust(SIZE, b"\0"))


def name_thread(name: str) -> None:
    """Name the calling thread as a detector shall tell it; nothing where none watches."""
    if os.environ.get(VARIABLE):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def from_data(data: Any) -> Swallow:
    """From its JSON form. Raises ValueError, TypeError or KeyError for anything else."""
    calls = [
        Swallowed(_name(one["api"]), _name(one["thread"]), _count(one["count"]))
        for one in data["calls"]
    ]
    first = [
        ForeignCall(_name(one["api"]), _name(one["thread"]), _count(one["window"]), _ms(one["ms"]))
        for one in data["first"]
    ]
    if len(calls) > _ROWS or len(first) > _FIRSTS:
        raise ValueError("more calls than a record holds")
    return Swallow(
        windows=_count(data["windows"]),
        own=_count(data["own"]),
        foreign=_count(data["foreign"]),
        calls=tuple(calls),
        first=tuple(first),
        reason=_name(data["reason"]),
        refused=_count(data.get("refused", 0)),  # older results have none
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r:.80} is no count")
    if not 0 <= value <= _MOST:
        raise ValueError(f"{value!r:.80} is no count")
    return value


def _ms(value: Any) -> float:
    if isinstance(value, float) and 0 <= value <= _MOST:
        return value
    return float(_count(value))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    if len(value) > _LONGEST:
        raise ValueError(f"{value!r:.80} is longer than {_LONGEST} characters")
    return value
