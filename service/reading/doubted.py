"""Measurements with trials on devices that failed their control cells: what those can prove."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlmodel import Session

from runner.statistics.control import ControlVerdict, Proof
from service.controls import by_run, worst_met

Doubts = Mapping[int, ControlVerdict]
"""By measurement. What is not in it stands as it is judged."""
NONE: Doubts = MappingProxyType({})


def find(session: Session, _: None = None) -> Doubts:
    """All that there are. No more than the least proven device can prove, as in a run.

    Where every device is believed, which is usual, only control trials are looked at.
    """
    return worst_met(session, by_run(session), Proof.UNPROVEN)
