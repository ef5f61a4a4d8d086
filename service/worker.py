"""A worker: takes builds and trials from the queue, carries them out, and stores what comes."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlmodel import Session

from runner import matrix as matrices
from runner import result
from runner.errors import InfrastructureError, InputError, RacewatchError
from runner.outcome import Outcome
from runner.run import PreparedBuild
from runner.settings import Settings
from runner.trial.supervise import read_log
from service import advance, builds, claims, jobprocess, rows
from service.database import Database
from service.events import publish
from service.jobprocess import JobStopped
from service.queue import build_queue, trial_queue
from service.settings import ServiceSettings
from service.tables import BuildState, ClaimState, CommitBuild, Run, Worker, WorkerState
from service.tables.columns import now

_LOG = logging.getLogger("racewatch.worker")
OUTAGE_S = 900.0
"""How long a worker waits for a database that does not answer, before it drops what it holds."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker does.

    subjects: whose commits it builds and tries. devices: of this host, empty for all. sandbox:
    `process` or `docker`; a fork's code runs in `docker` only. parallel: trials at a time on one
    device, None for as many as suit it.
    """

    name: str = ""
    subjects: tuple[str, ...] = ("te",)
    devices: tuple[str, ...] = ()
    sandbox: str = "process"
    image: str = ""
    parallel: int | None = None
    build: bool = True
    trials: bool = True


class WorkerProcess:
    """One worker: its row in the database, its heartbeat, and its two kinds of work.

    `stopping` is set when it shall end what it holds at once; that is given back.
    """

    def __init__(
        self, settings: ServiceSettings, database: Database, options: WorkerOptions
    ) -> None:
        self.settings = settings
        self.database = database
        self.options = options
        self.stopping = threading.Event()
        self.id = uuid4()
        self.queues: list[str] = []
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None
        self._doing: dict[str, str] = {}
        self._lock = threading.Lock()

    # Its row

    def register(self) -> None:
        """Find out what this host can do, and say so. Raises InfrastructureError, InputError."""
        described = {name: self._describe(name) for name in self.options.subjects}
        if self.options.build:
            self.queues += [build_queue(name) for name in described]
        devices = {name: one for name, one in described.items() if one.get("device")}
        if self.options.trials:
            kinds = {one["queue"] for one in devices.values()}
            if len(kinds) > 1:
                raise InputError(
                    f"--subject: a worker's trials run on one kind of device, got "
                    f"{', '.join(sorted(kinds))}: start a worker for each"
                )
            self.queues += [trial_queue(kind) for kind in kinds]
        if not self.queues:
            reasons = "; ".join(str(one.get("reason")) for one in described.values())
            raise InfrastructureError(f"this worker could do nothing here: {reasons}")
        first = next(iter(devices.values()), None)
        with self.database.session() as session:
            session.add(self._row(session, first))
            publish(session, "worker", worker=self.id)
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def _describe(self, subject: str) -> dict[str, Any]:
        request = self._request("describe", subject) | {
            "devices": list(self.options.devices),
            "build": self.options.build,
            "parallel": self.options.parallel,
            "trials": self.options.trials,
        }
        (answer,) = jobprocess.answers(request, lambda: True, 60.0)
        return answer

    def _row(self, session: Session, described: dict[str, Any] | None) -> Worker:
        row = Worker(
            id=self.id,
            name=self.options.name or f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
        )
        if described is not None and self.options.trials:
            device = _device(described["device"])
            environment = rows.environment_row(
                session, device, described["toolchain"], described["harness"]
            )
            row.device, row.environment_id = described["device"], environment.id
            row.parallel = described["parallel"]
        return row

    def _beat(self) -> None:
        """Says every few seconds that this worker lives, on connections of its own."""
        while not self._closed.wait(self.settings.heartbeat_s):
            try:
                with self.database.session() as session:
                    self._say(session)
            except DBAPIError as error:
                _LOG.warning("no heartbeat: the database does not answer: %s", _short(error))

    def _say(self, session: Session, state: WorkerState | None = None) -> None:
        row = session.get(Worker, self.id)
        if row is None:
            return
        with self._lock:
            row.doing = "; ".join(self._doing.values())
        row.heartbeat_at = now()
        if state is not None:
            row.state = state
        elif row.state == WorkerState.LOST:  # it was silent for long, and is not lost after all
            row.state = WorkerState.LIVE
        session.add(row)

    def drain(self) -> None:
        """Say that this worker takes nothing new."""
        self._patiently(lambda session: self._say(session, WorkerState.DRAINING), 10.0)

    def close(self) -> None:
        """Say that this worker has ended."""
        self._closed.set()
        if self._heart is not None:
            self._heart.join()
        try:
            self._patiently(lambda session: self._say(session, WorkerState.STOPPED), 10.0)
        except DBAPIError as error:
            _LOG.warning("the database does not answer, so it will see this worker as lost: %s",
                         _short(error))  # fmt: skip

    def _patiently(self, work: Callable[[Session], _T], for_s: float = OUTAGE_S) -> _T:
        """Do it in a transaction; while the database does not answer, again, for a long time."""
        deadline, pause = time.monotonic() + for_s, 0.2
        while True:
            try:
                with self.database.session() as session:
                    return work(session)
            except DBAPIError as error:
                if not _outage(error) or time.monotonic() + pause > deadline:
                    raise
                _LOG.warning("the database does not answer, trying again: %s", _short(error))
            self._closed.wait(pause)
            pause = min(5.0, pause * 2)

    def _request(self, what: str, subject: str) -> dict[str, Any]:
        tracked = self.settings.subject(subject)
        return {
            "do": what,
            "subject": subject,
            "repository": tracked.source,
            "toolchain": tracked.toolchain,
        }

    # What it does

    def prepare(self, run_id: UUID) -> None:
        """Resolve a run's commit and order its builds."""
        run = self._patiently(lambda session: session.get(Run, run_id))
        if run is None:
            return
        request = self._request("resolve", run.subject) | {
            "ref": run.ref,
            "sha": run.head_sha,
            "version": run.facts.get("version", ""),
            "branches": self.settings.subject(run.subject).branches,
        }
        try:
            (answer,) = jobprocess.answers(request, self._goes_on, self.settings.heartbeat_s)
        except JobStopped:
            self._patiently(lambda s: advance.advance(s, self.settings, run_id))
            return
        except InputError as error:
            reason = str(error)
            self._patiently(lambda s: advance.not_prepared(s, self.settings, run_id, reason))
            return

        def store(session: Session) -> None:
            for name, history in answer["branches"].items():
                advance.record_history(session, run.subject, name, history)
            advance.prepared(session, self.settings, run_id, answer)

        self._patiently(store)

    def build(self, commit_build: int) -> None:
        """Make a build that waits, and move on the runs that need it."""
        job = self._patiently(lambda session: builds.take(session, commit_build, self.id))
        if job is None:
            return
        what = f"building {job.name} of {job.commit['sha'][:12]}"
        try:
            self._now("build", what)
            self._make(job)
        finally:
            self._now("build", "")
        self._patiently(lambda session: self._advance_needing(session, job.id))

    def _make(self, job: builds.BuildJob) -> None:
        if not job.trusted and self.options.sandbox != "docker":
            self._patiently(lambda session: builds.gave_up(session, job, _UNTRUSTED, final=True))
            return
        request = self._request("build", job.subject) | {
            "commit": job.commit,
            "build": job.name,
            "architecture": _architecture(job.architecture),
        }
        goes_on = self._still(lambda session: builds.alive(session, job))
        try:
            (answer,) = jobprocess.answers(request, goes_on, self.settings.heartbeat_s)
            build = _prepared_build(answer["build"])
        except JobStopped:
            self._patiently(lambda session: builds.stopped(session, job))
            return
        except RacewatchError as error:
            reason, final = str(error), isinstance(error, InputError)
            self._patiently(lambda session: builds.gave_up(session, job, reason, final))
            return
        self._patiently(lambda session: builds.done(session, job, build))

    def _advance_needing(self, session: Session, commit_build: int) -> None:
        wanted = session.get(CommitBuild, commit_build)
        if wanted is None or wanted.state not in (BuildState.DONE, BuildState.FAILED):
            return
        for run in builds.needing(session, wanted):
            advance.advance(session, self.settings, run.id)

    def trials(self, run_id: UUID) -> None:
        """Claim a share of a run's trials and carry it out."""

        def take(session: Session) -> claims.Batch | None:
            worker = session.get_one(Worker, self.id)
            return claims.take(session, run_id, worker, self.settings.batch_s)

        batch = self._patiently(take)
        if batch is not None:
            count = sum(cell.trials for cell in batch.matrix.cells)
            what = f"{count} trials of {batch.commit['sha'][:12]} ({batch.matrix.name})"
            try:
                self._now("trials", what)
                self._carry_out(batch)
            finally:
                self._now("trials", "")
        self._patiently(lambda session: advance.advance(session, self.settings, run_id))

    def _carry_out(self, batch: claims.Batch) -> None:
        state, reason, notes = ClaimState.DONE, "", list[str]()
        try:
            ended = self._store_all(batch)
            notes = list(ended.notes)
            if ended.status == "failed":
                reason = ended.reason
        except claims.ClaimLost as lost:
            _LOG.info("claim %s: %s", batch.claim, lost)
            return
        except JobStopped:
            state, reason = ClaimState.CANCELLED, "the worker stops, or the run was cancelled"
        except RacewatchError as error:
            reason = str(error)
        self._patiently(lambda session: claims.release(session, batch.claim, state, reason, notes))

    def _store_all(self, batch: claims.Batch) -> result.RunEnded:
        """Run a batch and store each trial as it ends; how the run ended."""
        if not batch.trusted and self.options.sandbox != "docker":
            raise InfrastructureError(_UNTRUSTED)
        folder = Settings.load().runs
        request = self._request("trials", batch.subject) | {
            "commit": batch.commit,
            "base": batch.base,
            "matrix": matrices.as_data(batch.matrix),
            "keys": batch.keys,
            "devices": list(self.options.devices),
            "parallel": self.options.parallel,
            "sandbox": self.options.sandbox,
            "image": self.options.image,
            "folder": os.fspath(folder),
            "run": str(batch.claim),
        }
        recorder = claims.Recorder(batch, self.id)
        ended = result.RunEnded(str(batch.claim), "failed", "its process gave no end")
        goes_on = self._still(lambda session: claims.alive(session, batch.claim))
        for answer in jobprocess.answers(request, goes_on, self.settings.heartbeat_s):
            event = result.from_data(answer)
            if isinstance(event, result.RunStarted):
                self._started(recorder, event)
            elif isinstance(event, result.TrialFinished):
                self._trial(recorder, event, folder / str(batch.claim))
            else:
                ended = event
        return ended

    def _started(self, recorder: claims.Recorder, event: result.RunStarted) -> None:
        self._patiently(lambda session: recorder.started(session, event))

    def _trial(self, recorder: claims.Recorder, event: result.TrialFinished, folder: Path) -> None:
        log = _log_of(folder, event)
        self._patiently(lambda session: recorder.trial(session, event, log))

    def _goes_on(self) -> bool:
        return not self.stopping.is_set()

    def _still(self, held: Callable[[Session], bool]) -> Callable[[], bool]:
        """Asks whether work shall go on; while the database does not answer, it does."""

        def ask() -> bool:
            if self.stopping.is_set():
                return False
            try:
                with self.database.session() as session:
                    return held(session)
            except DBAPIError as error:
                if not _outage(error):
                    raise
                return True

        return ask

    def _now(self, slot: str, what: str) -> None:
        with self._lock:
            if what:
                self._doing[slot] = what
            else:
                self._doing.pop(slot, None)


_UNTRUSTED = (
    "a fork's code is built and run in containers only: start a worker with --sandbox docker"
)


def _prepared_build(data: dict[str, Any]) -> PreparedBuild:
    initialize = data["initialize"]
    return PreparedBuild(
        **{
            **data,
            "outcome": Outcome(data["outcome"]) if data["outcome"] else None,
            "initialize": None if initialize is None else tuple(initialize),
        }
    )


def _device(data: dict[str, Any]) -> result.Device:
    return result.Device(
        **{
            **data,
            "compute_capability": tuple(data["compute_capability"]),
            "ids": tuple(data["ids"]),
        }
    )


def _architecture(queue: str) -> str:
    return queue.removeprefix("sm") if queue.startswith("sm") else ""


def _log_of(folder: Path, event: result.TrialFinished) -> str:
    """What a trial printed. Its end is in the evidence, which no trial can write elsewhere."""
    return read_log(os.fspath(folder / event.log)) if event.log else ""


def _outage(error: DBAPIError) -> bool:
    """Whether the database went away, as opposed to refusing what it was asked."""
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


def _short(error: DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else repr(error.orig)
