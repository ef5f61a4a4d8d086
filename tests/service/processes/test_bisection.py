"""A bisection through the queue, by real processes, found, verified and resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from sqlmodel import select

from runner import matrix as matrices
from runner.bisect.settings import Observe
from runner.demo_subject import DemoSubject
from runner.subject import Folders, Options, Request
from service import bisection, tokens
from service.tables import Bisection, BisectionState, Run
from tests.conftest import Eventually
from tests.service.processes.conftest import ANSWER_S, Processes


def order(
    processes: Processes,
    good: str,
    bad: str,
    cell: str = "stock, background",
    observe: Observe = Observe.FAILURE,
) -> UUID:
    """Order a bisection of the demo."""
    request = bisection.BisectionRequest(
        subject="demo",
        good=good,
        bad=bad,
        matrix=matrices.load("issue-3863"),
        cell=cell,
        queue="emulated",
        observe=observe,
    )
    with processes.database.session() as session:
        return bisection.order(session, request).id


def row(processes: Processes, identity: UUID) -> Bisection:
    """Its row."""
    with processes.database.session() as session:
        return session.get_one(Bisection, identity)


def ends(processes: Processes, identity: UUID, eventually: Eventually) -> Bisection:
    """Wait for its end."""
    for _ in range(3):
        try:
            eventually(lambda: row(processes, identity).state not in bisection.OPEN, "it ends")
            break
        except AssertionError:
            continue
    found = row(processes, identity)
    assert found.state not in bisection.OPEN, processes.logs()
    return found


Hash = Callable[[str], str]


@pytest.fixture
def tagged(home: Path, compiler: str) -> Hash:
    """The hash that a ref of the demo names."""
    subject = DemoSubject(Options(Folders(home, str(home / "store"))))
    return lambda ref: subject.resolve(Request(ref)).sha


def test_the_culprit_is_found_whoever_is_killed(
    processes: Processes,
    eventually: Eventually,
    tagged: Hash,
) -> None:
    processes.service()
    first = processes.worker("first")
    identity = order(processes, "before", tagged("fix") + "~1")

    def some_are_known() -> bool:
        with processes.database.session() as session:
            return len(bisection.events(session, session.get_one(Bisection, identity))) >= 2

    eventually(some_are_known, "both ends are observed")
    os.kill(first.pid, signal.SIGKILL)
    processes.worker("second")
    found = ends(processes, identity, eventually)

    assert found.state == BisectionState.DONE, processes.logs()
    assert found.verdict is not None
    assert found.verdict["kind"] == "culprit"
    assert [commit["sha"] for commit in found.verdict["commits"]] == [tagged("race")]
    assert found.verdict["probability"] > 0.99
    with processes.database.session() as session:
        state = bisection.state_of(found, bisection.events(session, found))
    assert state is not None
    assert state.spent.builds <= 7


def test_what_broke_it_and_what_fixed_it_are_found_by_the_api(
    processes: Processes, eventually: Eventually, tagged: Hash
) -> None:
    processes.service()
    processes.worker("only")
    with processes.database.session() as session:
        token = tokens.create(session, "bisects", ["run"])

    def start(good: str, bad: str) -> UUID:
        body = {"subject": "demo", "good": good, "bad": bad, "cell": "stock, background"}
        answer = httpx.post(
            f"{processes.url}/api/v1/bisections",
            json={**body, "matrix": "issue-3863"},
            headers={"Authorization": f"Bearer {token}"},
            timeout=ANSWER_S,
        )
        assert answer.status_code == 201, answer.text
        return UUID(answer.json()["id"])

    broke, fixed = start("before", tagged("fix~1")), start("main", "race")
    for identity, culprit, fixes in ((broke, "race", False), (fixed, "fix", True)):
        ends(processes, identity, eventually)
        address = f"{processes.url}/api/v1/bisections/{identity}"
        found = httpx.get(address, timeout=ANSWER_S).json()
        verdict = found["verdict"]
        assert verdict is not None, processes.logs()
        assert (verdict["kind"], verdict["fixed"]) == ("culprit", fixes)
        assert [commit["sha"] for commit in verdict["commits"]] == [tagged(culprit)]
        assert found["cost"]["builds"] <= 7
        assert [check["state"] for check in found["checks"]] == ["passed", "passed"]


def test_ends_that_name_nothing_end_it_with_a_sentence(
    processes: Processes, eventually: Eventually
) -> None:
    processes.worker("only")
    identity = order(processes, "before", "nowhere")

    found = ends(processes, identity, eventually)

    assert found.state == BisectionState.FAILED
    assert "nowhere" in found.reason


def test_what_fails_no_trial_is_found_by_what_is_swallowed(
    processes: Processes, eventually: Eventually, tagged: Hash
) -> None:
    processes.service()
    processes.worker("only", "--sandbox", "process", EMULATION_BACKGROUND="refresh")
    identity = order(processes, "before", tagged("fix") + "~1", observe=Observe.SWALLOW)

    found = ends(processes, identity, eventually)

    assert found.state == BisectionState.DONE, processes.logs()
    assert found.verdict is not None
    assert [commit["sha"] for commit in found.verdict["commits"]] == [tagged("race")]
    assert "raised the rate of trials with foreign work from 0 %" in found.verdict["text"]
    with processes.database.session() as session:
        runs = session.exec(select(Run.id).where(Run.bisection_id == identity)).all()
    trials = [trial for run in runs for trial in processes.trials(run)]
    assert {trial.outcome for trial in trials} == {"pass"}
    assert any(trial.foreign_nodes for trial in trials)


def test_the_command_cancels_a_bisection_too(processes: Processes) -> None:
    identity = order(processes, "before", "race")

    assert processes.start("cancel", str(identity)).wait(60) == 0, processes.logs()
    found = row(processes, identity)
    assert (found.state, found.reason) == (
        BisectionState.CANCELLED,
        "cancelled by racewatch cancel",
    )

    assert processes.start("cancel", str(identity)).wait(60) == 2
    assert f"{identity} is neither a run nor a bisection that goes on" in processes.logs()
