"""From a signed delivery to trials in the store and a status at GitHub, through real processes.

GitHub is the local stand-in; git, PostgreSQL, the service and both workers are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlmodel import select

from service.tables import Run, RunState
from tests.conftest import Eventually
from tests.service.github.deliveries import REPOSITORY, headers_of, pull
from tests.service.github.standin import StandIn
from tests.service.processes.conftest import Processes


@pytest.fixture
def demo_github() -> Iterator[StandIn]:
    with StandIn((REPOSITORY,)) as standin:
        yield standin


def delivery(head: str, fork: bool = False) -> bytes:
    """GitHub's payload for the demo's pull request, just opened."""
    payload = pull("opened", head, number=7, fork=fork)
    return json.dumps(payload).encode()


def test_a_pull_request_ends_as_trials_and_a_status(
    processes: Processes, demo_head: str, demo_github: StandIn, eventually: Eventually
) -> None:
    processes.service(
        RACEWATCH_GITHUB_API=demo_github.url, RACEWATCH_GITHUB_TOKEN=demo_github.token
    )
    for name in ("first", "second"):
        processes.worker(name, RACEWATCH_BATCH_S="2")
    body = delivery(demo_head)

    answer = processes.post("/webhooks/github", body, headers_of("pull_request", body))

    assert answer.status_code == 202, answer.text
    with processes.database.session() as session:
        run = session.exec(select(Run).where(Run.pull == 7)).one()
    assert processes.ends(run.id).state == RunState.COMPLETE
    processes.counted_once(run.id)
    context = "racewatch/quick/emulated"

    def told() -> bool:
        status = demo_github.status(demo_head, context)
        return status is not None and status.state != "pending"

    eventually(told, "the status is told")
    status = demo_github.status(demo_head, context)
    assert status is not None
    assert status.target_url == f"{processes.url}/runs/{run.id}"
    eventually(lambda: len(demo_github.comments_of(7)) == 1, "there is one comment")
    assert demo_github.complaints == []
    base = processes.run(run.id).base_run_id
    assert base is not None
    workers = {t.worker_id for one in (run.id, base) for t in processes.trials(one)}
    assert len(workers) == 2


def test_a_forks_code_does_not_run(processes: Processes, demo_head: str) -> None:
    processes.service()
    body = delivery(demo_head, fork=True)

    processes.post("/webhooks/github", body, headers_of("pull_request", body))

    with processes.database.session() as session:
        run = session.exec(select(Run)).one()
    assert run.state == RunState.AWAITING_APPROVAL
