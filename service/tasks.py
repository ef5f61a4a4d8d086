"""The tasks of the queue: each takes an id and hands it to who does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from procrastinate import JobContext, RetryStrategy

from service.queue import app
from service.worker import WorkerProcess

AGAIN = RetryStrategy(max_attempts=5, exponential_wait=3)
"""For what nobody foresaw, such as a database that is gone for long. A failure of the commit or of
the infrastructure is no exception here: those are stored, and retried by their rows' own counts."""


async def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
    """Jobs block for minutes; the worker's loop must go on telling that it lives."""
    await asyncio.to_thread(work, *arguments)


def _worker(context: JobContext) -> WorkerProcess:
    worker: WorkerProcess = context.additional_context["worker"]
    return worker


@app.task(name="prepare", pass_context=True, retry=AGAIN)
async def prepare(context: JobContext, run: str) -> None:
    """Resolve a run's commit and order its builds."""
    await _in_thread(_worker(context).prepare, UUID(run))


@app.task(name="build", pass_context=True, retry=AGAIN)
async def build(context: JobContext, commit_build: int) -> None:
    """Make one build of a commit."""
    await _in_thread(_worker(context).build, commit_build)


@app.task(name="trials", pass_context=True, retry=AGAIN)
async def trials(context: JobContext, run: str) -> None:
    """Run a batch of a run's trials."""
    await _in_thread(_worker(context).trials, UUID(run))


@app.task(name="bisect", pass_context=True, retry=AGAIN)
async def bisect(context: JobContext, bisection: str, what: str, place: int) -> None:
    """Find out in git what a bisection asks for: its range, a merge's inside, a revert."""
    await _in_thread(_worker(context).bisect, UUID(bisection), what, place)
