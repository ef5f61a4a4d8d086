"""A worker with a login of its own, which may do no more than it needs and can be taken away."""

from __future__ import annotations

import signal

from sqlalchemy import make_url

from service import credentials
from service.tables import RunState
from tests.conftest import Eventually
from tests.service.processes.conftest import Processes, matrix_of

CELL = {"name": "c", "variant": "stock", "background": True, "trials": 4}


def test_a_worker_does_all_its_work_with_its_own_login_until_that_is_revoked(
    processes: Processes, eventually: Eventually
) -> None:
    url = processes.database.url
    name = (make_url(url).database or "").replace("_", "-")
    processes.service(DATABASE_URL=credentials.create(url, name, credentials.Kind.SERVICE))
    worker = processes.worker("own", DATABASE_URL=credentials.create(url, name))

    run = processes.submit(matrix_of(CELL))
    assert processes.ends(run).state == RunState.COMPLETE
    processes.counted_once(run)

    credentials.revoke(url, name)
    eventually(lambda: processes.worker_row("own") is None, "the worker is taken for lost")
    worker.send_signal(signal.SIGKILL)  # a process of its own, somewhere else
