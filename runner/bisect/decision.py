"""What a bisection asks for: probes, a merge to go into, a revert; or its verdict."""

from __future__ import annotations

from dataclasses import dataclass

from runner.bisect.verdict import Verdict
from runner.result import Commit


@dataclass(frozen=True)
class Probe:
    """Trials to run of one commit's build, which is made first where it is not there.

    check: the number of the check that they are for, 0 for the search. Probes of one check take
    turns, trial by trial where that can be had. built: whether the build is there, as far as is
    known. seconds, bits: what it is expected to take and to tell.
    """

    key: str
    commit: Commit
    trials: int
    check: int = 0
    built: bool = False
    seconds: float = 0.0
    bits: float = 0.0


@dataclass(frozen=True)
class RevertWanted:
    """The head without the culprit is wanted; the answer is a `Reverted`."""

    culprit: Commit
    head: Commit


@dataclass(frozen=True)
class Decision:
    """What to do now, in a sentence (`text`) and in parts. Where there is none, wait.

    enter: the place of the class that a merge leads into, which the search is to go on into; the
    answer is an `Entered`. verdict: how it ended; then there is nothing else to do.
    """

    text: str
    probes: tuple[Probe, ...] = ()
    enter: int | None = None
    revert: RevertWanted | None = None
    verdict: Verdict | None = None
