"""A worker: takes builds and trials from the queue, carries them out, and stores what comes."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlmodel import Session

from runner import matrix as matrices
from runner import result
from runner.errors import InfrastructureError, InputError, RacewatchError
from runner.outcome import Outcome
from runner.run import BuildId, PreparedBuild
from runner.sandbox import docker_engine
from runner.settings import Settings
from runner.trial.supervise import read_log
from service import advance, bisection, builds, claims, jobprocess, rows
from service.database import Database, clock
from service.events import publish
from service.github.effects import watched_branches
from service.jobprocess import JobStopped
from service.queue import build_queue, environment_queue, git_queue, trial_queue
from service.settings import ServiceSettings
from service.tables import Bisection, BuildState, ClaimState, CommitBuild, Run, Worker, WorkerState

_LOG = logging.getLogger("racewatch.worker")
OUTAGE_S = 900.0
"""How long a worker waits for a database that does not answer, before it drops what it holds."""
LOOK_S = 1800.0
"""How long git may take to find something out; the first look fetches the whole repository."""
LAST_WORD_S = 10.0
"""How long it waits where it only wants to say that it ends."""
_T = TypeVar("_T")
_Name = TypeVar("_Name", str, int)


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker does.

    subjects: whose commits it builds and tries. devices: of this host, empty for all. sandbox:
    `process` or `docker`; a fork's code runs in `docker` only. image, build_image: of its
    containers, empty for the subject's own. parallel: trials at a time on one device, None for as
    many as suit it.
    """

    name: str = ""
    subjects: tuple[str, ...] = ("te",)
    devices: tuple[str, ...] = ()
    sandbox: str = "process"
    image: str = ""
    build_image: str = ""
    parallel: int | None = None
    build: bool = True
    trials: bool = True


class WorkerProcess:
    """One worker: its row in the database, its heartbeat, and its kinds of work.

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
        self.git_lane: list[str] = []
        self.build_lane: list[str] = []
        self.trial_lane: list[str] = []
        self._state = WorkerState.LIVE
        self._environment: int | None = None
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None
        self._doing: dict[str, str] = {}
        self._lock = threading.Lock()

    # Its row

    def register(self) -> None:
        """Find out what this host can do, and say so. Raises InfrastructureError, InputError."""
        described = {name: self._describe(name) for name in self.options.subjects}
        if self.options.build:
            self.git_lane += [git_queue(name) for name in described]
            self.build_lane += self._with_forks(build_queue, described)
        devices = {name: one for name, one in described.items() if one.get("device")}
        if self.options.trials:
            kinds = {one["queue"] for one in devices.values()}
            if len(kinds) > 1:
                raise InputError(
                    f"--subject: a worker's trials run on one kind of device, got "
                    f"{', '.join(sorted(kinds))}: start a worker for each"
                )
            self.trial_lane += self._with_forks(trial_queue, kinds)
        if not self.queues:
            reasons = "; ".join(str(one.get("reason")) for one in described.values())
            raise InfrastructureError(f"this worker could do nothing here: {reasons}")
        first = next(iter(devices.values()), None)
        with self.database.session() as session:
            session.add(self._row(session, first))
            publish(session, "worker", worker=self.id)
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    @property
    def lanes(self) -> list[list[str]]:
        """What it takes from, a job at a time from each; a lane may still get further queues."""
        return [lane for lane in (self.git_lane, self.build_lane, self.trial_lane) if lane]

    @property
    def queues(self) -> list[str]:
        """All queues that it takes from."""
        return [queue for lane in self.lanes for queue in lane]

    @property
    def contained(self) -> bool:
        """Whether a fork's code may run here."""
        return self.options.sandbox == "docker"

    def _with_forks(self, queue: Callable[[_Name, bool], str], names: Iterable[_Name]) -> list[str]:
        """The queues of these names, with those of forks where their code is contained."""
        trusts = (True, False) if self.contained else (True,)
        return [queue(name, trusted) for name in names for trusted in trusts]

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
        moment = clock(session)
        row = Worker(
            id=self.id,
            name=self.options.name or f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("racewatch"),
            started_at=moment,
            heartbeat_at=moment,
        )
        if described is not None and self.options.trials:
            device = _device(described["device"])
            environment = rows.environment_row(
                session, device, described["toolchain"], described["harness"]
            )
            row.device, row.parallel = described["device"], described["parallel"]
            self._goes_on_in(row, environment.id)
        row.queues = self.queues
        return row

    def _goes_on_in(self, row: Worker, environment: int | None) -> None:
        """Take trials of runs that began in that environment, and of no other."""
        assert environment is not None
        self.trial_lane[:] = [
            *(queue for queue in self.trial_lane if queue not in self._environment_queues()),
            *self._with_forks(environment_queue, [environment]),
        ]
        self._environment = row.environment_id = environment
        row.queues = self.queues

    def _environment_queues(self) -> list[str]:
        known = [] if self._environment is None else [self._environment]
        return self._with_forks(environment_queue, known)

    def _beat(self) -> None:
        """Says every few seconds that this worker lives, on connections of its own."""
        while not self._closed.wait(self.settings.heartbeat_s):
            try:
                with self.database.session() as session:
                    self._say(session)
            except DBAPIError as error:
                _LOG.warning("no heartbeat: the database does not answer: %s", _short(error))
            except Exception:
                _LOG.exception("no heartbeat")  # the next one may be heard: this must not end

    def _say(self, session: Session) -> None:
        row = session.get(Worker, self.id)
        if row is None:
            return
        with self._lock:
            row.doing = "; ".join(self._doing.values())
        # It is what it says that it is, also where its silence made others call it lost.
        row.heartbeat_at, row.state = clock(session), self._state
        session.add(row)

    def drain(self) -> None:
        """Say that this worker takes nothing new."""
        self._end_as(WorkerState.DRAINING)

    def close(self) -> None:
        """Say that this worker has ended."""
        self._closed.set()
        if self._heart is not None:
            self._heart.join()
        self._end_as(WorkerState.STOPPED)

    def _end_as(self, state: WorkerState) -> None:
        self._state = state
        try:
            self._patiently(self._say, LAST_WORD_S)
        except DBAPIError as error:
            _LOG.warning("the database does not hear that this worker is %s: %s", state,
                         _short(error))  # fmt: skip

    def _patiently(self, work: Callable[[Session], _T], for_s: float | None = None) -> _T:
        """Do it in a transaction; while the database does not answer, again, for a long time.

        Not so long once the worker shall end at once.
        """
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                with self.database.session() as session:
                    return work(session)
            except DBAPIError as error:
                patience = OUTAGE_S if for_s is None else for_s
                if self.stopping.is_set():
                    patience = min(patience, LAST_WORD_S)
                if not _outage(error) or time.monotonic() - began + pause > patience:
                    raise
                _LOG.warning("the database does not answer, trying again: %s", _short(error))
            time.sleep(pause)
            pause = min(5.0, pause * 2)

    def _request(self, what: str, subject: str) -> dict[str, Any]:
        tracked = self.settings.subject(subject)
        return {
            "do": what,
            "subject": subject,
            "repository": tracked.source,
            "toolchain": tracked.toolchain,
            "sandbox": self.options.sandbox,
            "image": self.options.image,
            "build_image": self.options.build_image,
        }

    # What it does

    def prepare(self, run_id: UUID) -> None:
        """Find out a run's commit, and order its builds."""
        claim = self._patiently(lambda session: claims.hold(session, run_id, self.id))
        if claim is None:
            return
        run = self._patiently(lambda session: session.get_one(Run, run_id))
        state, reason = ClaimState.DONE, ""
        try:
            self._now("git", f"resolving {run.ref or run.head_sha[:12]}")
            self._resolve(run, claim)
        except InputError as error:
            said = str(error)
            self._patiently(lambda s: advance.not_prepared(s, run_id, claim, said))
        except JobStopped:
            state, reason = ClaimState.CANCELLED, _STOPPED
        except RacewatchError as error:
            reason = str(error)
        except Exception as error:
            reason = _unforeseen(error)
        finally:
            self._now("git", "")
        self._patiently(lambda session: claims.release(session, claim, state, reason))
        self._patiently(lambda session: advance.advance(session, run_id))

    def _resolve(self, run: Run, claim: UUID) -> None:
        tracked = self.settings.subject(run.subject)
        request = self._request("resolve", run.subject) | {
            "ref": run.ref,
            "sha": run.head_sha,
            "trusted": run.trusted,
            "title": run.facts.get("probe", {}).get("commit", {}).get("title", ""),
            "version": run.facts.get("version", ""),
            "branches": self._patiently(lambda s: watched_branches(s, tracked)),
            "controls": bool(run.matrix.get("controls")),
        }
        answer = self._look(request, lambda s: claims.alive(s, claim))

        def store(session: Session) -> None:
            for name, history in answer["branches"].items():
                advance.record_history(session, run.subject, name, history)
            advance.prepared(session, run.id, claim, answer)

        self._patiently(store)

    def _look(self, request: dict[str, Any], held: Callable[[Session], bool]) -> dict[str, Any]:
        """What a job finds out in git. held: asks whether that is still wanted.

        Raises what `jobprocess.answers` does, and InfrastructureError where it takes too long.
        """
        end = time.monotonic() + LOOK_S
        goes_on = self._still(lambda s: time.monotonic() < end and held(s))
        try:
            (answer,) = jobprocess.answers(request, goes_on, self.settings.heartbeat_s)
        except JobStopped:
            if time.monotonic() < end:
                raise
            raise InfrastructureError(f"git gave no answer in {LOOK_S:g} s") from None
        return answer

    def bisect(self, identity: UUID, what: str, place: int) -> None:
        """Find out in git what a bisection asks for."""
        row = self._patiently(lambda session: session.get(Bisection, identity))
        if row is None or row.state not in bisection.OPEN:
            return
        request = self._request(what, row.subject) | {
            "good": row.good,
            "bad": row.bad,
            "build": str(BuildId.of(bisection.cell_of(row))),
            "place": place,
        }
        asked = self._patiently(lambda session: bisection.asked(session, identity, what))
        if asked is None:  # what is wanted by now may be something else
            self._patiently(lambda session: bisection.advance(session, identity))
            return
        try:
            self._now("git", f"reading the history of {row.good}..{row.bad}")
            answer = self._look(request | asked, lambda s: bisection.is_open(s, identity))
        except JobStopped:
            self._patiently(lambda session: bisection.advance(session, identity))
            return
        except InputError as error:
            reason = str(error)
            self._patiently(lambda session: bisection.refused(session, identity, what, reason))
            return
        except Exception as error:
            reason = str(error) if isinstance(error, RacewatchError) else _unforeseen(error)
            self._patiently(lambda session: bisection.held_up(session, identity, what, reason))
            return
        finally:
            self._now("git", "")
        take_in = {
            "range": bisection.ranged,
            "enter": bisection.entered,
            "revert": bisection.reverted,
        }[what]
        self._patiently(lambda session: take_in(session, identity, answer))

    def build(self, commit_build: int) -> None:
        """Make a build that waits, and move on the runs that need it."""
        if away := self._away():
            self._patiently(lambda session: builds.postpone(session, commit_build, away))
            return
        job = self._patiently(
            lambda session: builds.take(session, commit_build, self.id, self.contained)
        )
        if job is None:
            return
        what = f"building {job.name} of {job.commit['sha'][:12]}"
        try:
            self._now("build", what)
            self._make(job)
        finally:
            self._now("build", "")
        for run in self._patiently(lambda session: self._needing(session, job.id)):
            self._patiently(partial(advance.advance, run_id=run))

    def _make(self, job: builds.BuildJob) -> None:
        try:
            request = self._request("build", job.subject) | {
                "commit": job.commit,
                "build": job.name,
                "architecture": _architecture(job.architecture),
                "trusted": job.trusted,
                "attempt": str(job.token),
            }
            goes_on = self._still(lambda session: builds.alive(session, job))
            (answer,) = jobprocess.answers(request, goes_on, self.settings.heartbeat_s)
            build = _prepared_build(answer["build"])
        except JobStopped:
            self._patiently(lambda session: builds.stopped(session, job))
            return
        except Exception as error:
            ours = isinstance(error, RacewatchError)
            reason, final = (
                str(error) if ours else _unforeseen(error),
                isinstance(error, InputError),
            )
            self._patiently(lambda session: builds.gave_up(session, job, reason, final))
            return
        self._patiently(lambda session: builds.done(session, job, build))

    def _away(self) -> str:
        """Why nothing can be run here now, empty where it can: an engine that is restarted costs
        its jobs no attempt but those that it cut off."""
        if not self.contained:
            return ""
        try:
            docker_engine.connect().close()
        except InfrastructureError as error:
            return str(error)
        return ""

    def _needing(self, session: Session, commit_build: int) -> list[UUID]:
        """The runs that a build, if it is made, lets go on."""
        wanted = session.get(CommitBuild, commit_build)
        if wanted is None or wanted.state not in (BuildState.DONE, BuildState.FAILED):
            return []
        return [run.id for run in builds.needing(session, wanted)]

    def trials(self, run_id: UUID) -> None:
        """Claim a share of a run's trials and carry it out."""
        if away := self._away():
            self._patiently(lambda session: advance.postpone(session, run_id, away))
            return

        def take(session: Session) -> claims.Batch | None:
            worker = session.get_one(Worker, self.id)
            return claims.take(session, run_id, worker, self.settings.batch_s, self.contained)

        batch = self._patiently(take)
        if batch is not None:
            count = sum(cell.trials for cell in batch.matrix.cells)
            what = f"{count} trials of {batch.commit['sha'][:12]} ({batch.matrix.name})"
            try:
                self._now("trials", what)
                self._carry_out(batch)
            finally:
                self._now("trials", "")
        self._patiently(lambda session: advance.advance(session, run_id))

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
            state, reason = ClaimState.CANCELLED, _STOPPED
        except RacewatchError as error:
            reason = str(error)
        except Exception as error:
            reason = _unforeseen(error)
        self._patiently(lambda session: claims.release(session, batch.claim, state, reason, notes))

    def _store_all(self, batch: claims.Batch) -> result.RunEnded:
        """Run a batch and store each trial as it ends; how the run ended."""
        folder = Settings.load().runs
        request = self._request("trials", batch.subject) | {
            "commit": batch.commit,
            "base": batch.base,
            "control": batch.control,
            "matrix": matrices.as_data(batch.matrix),
            "keys": batch.keys,
            "devices": list(self.options.devices),
            "without": list(batch.without),
            "parallel": self.options.parallel,
            "folder": os.fspath(folder),
            "run": str(batch.claim),
            "of_run": str(batch.run),
        }
        recorder = claims.Recorder(batch, self.id)
        ended = result.RunEnded(str(batch.claim), "failed", "its process gave no end")
        goes_on = self._still(lambda session: claims.alive(session, batch.claim))
        with closing(jobprocess.answers(request, goes_on, self.settings.heartbeat_s)) as answers:
            for answer in answers:
                event = result.from_data(answer)
                if isinstance(event, result.RunStarted):
                    self._started(recorder, event)
                elif isinstance(event, result.TrialFinished):
                    self._trial(recorder, event, folder / str(batch.claim))
                else:
                    ended = event
        return ended

    def _started(self, recorder: claims.Recorder, event: result.RunStarted) -> None:
        def store(session: Session) -> None:
            environment = recorder.started(session, event)
            row = session.get_one(Worker, self.id)
            if row.environment_id != environment:  # described before its trials imported JAX
                self._goes_on_in(row, environment)
                session.add(row)

        self._patiently(store)

    def _trial(self, recorder: claims.Recorder, event: result.TrialFinished, folder: Path) -> None:
        log = _log_of(folder, event)
        self._patiently(lambda session: recorder.trial(session, event, log))

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


_STOPPED = "the worker stops, or the run was cancelled"


def _unforeseen(error: Exception) -> str:
    """A reason for what is a fault of Racewatch's own; where it lies is in the log.

    Raises the error again where it is an outage of the database: there is nobody to tell.
    """
    if isinstance(error, DBAPIError) and _outage(error):
        raise error
    _LOG.error("a job failed for a reason that nobody foresaw", exc_info=error)
    return f"a fault of Racewatch itself, see the worker's log: {error!r}"


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
