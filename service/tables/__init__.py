"""Everything that is kept in PostgreSQL, a file per noun."""

from service.tables.bisection import Bisection, BisectionEvent, BisectionState
from service.tables.build import Build, BuildState, CommitBuild
from service.tables.commit import BranchCommit, Commit, Head, Pull
from service.tables.delivery import Approval, Delivery
from service.tables.measurement import Cell, Environment, Measurement, column_of
from service.tables.outbox import Message, MessageState, PullComment
from service.tables.run import (
    ENDED_STATES,
    OPEN_STATES,
    PRIORITIES,
    Claim,
    ClaimCell,
    ClaimState,
    Origin,
    Run,
    RunCell,
    RunState,
)
from service.tables.token import ApiToken
from service.tables.trial import Trial, TrialEvidence
from service.tables.worker import Worker, WorkerState

__all__ = [
    "ENDED_STATES",
    "OPEN_STATES",
    "PRIORITIES",
    "ApiToken",
    "Approval",
    "Bisection",
    "BisectionEvent",
    "BisectionState",
    "BranchCommit",
    "Build",
    "BuildState",
    "Cell",
    "Claim",
    "ClaimCell",
    "ClaimState",
    "Commit",
    "CommitBuild",
    "Delivery",
    "Environment",
    "Head",
    "Measurement",
    "Message",
    "MessageState",
    "Origin",
    "Pull",
    "PullComment",
    "Run",
    "RunCell",
    "RunState",
    "Trial",
    "TrialEvidence",
    "Worker",
    "WorkerState",
    "column_of",
]
