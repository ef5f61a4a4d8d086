"""Outside the sandbox: hands trials to parents, owns the deadlines, collects what each left."""

from __future__ import annotations

import errno
import os
import queue
import selectors
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from runner.detector import record
from runner.detector.record import Swallow
from runner.errors import InfrastructureError
from runner.outcome import Classification, Evidence, Outcome, classify
from runner.sandbox.base import ParentHandle, Sandbox
from runner.trial.events import BrokenEvent, Lines, parse
from runner.trial.program import ParentConfig, TrialSpec

LOG_BYTES = 200_000
"""How much of either end of a trial's log is read."""
TRACE_BYTES = 200_000
"""How much of a trial's trace is read: a thousand times what one that enters every handler has."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds after which a trial is ended.

    start: until its first execution. progress: without a sign of life once it executes.
    trial: in all. ready: for a parent to import its subject. kill: for a trial to end when told to.
    """

    start: float = 300.0
    progress: float = 10.0
    trial: float = 900.0
    ready: float = 300.0
    kill: float = 10.0


@dataclass(frozen=True)
class Assignment:
    """A trial with the parent that it needs (its device filled in by the lane that takes it).

    silent: seconds that it may show no sign of life besides, for captures that are held open.
    device: the only one that it may run on, empty for any.
    """

    spec: TrialSpec
    build_dir: str
    registration: str
    silent: float = 0.0
    device: str = ""


@dataclass
class Finished:
    """What one trial left: `facts` of its device, `result` the child's own report (if any).

    swallow: what a detector saw of its capture windows, None where none was to watch.
    lost: why nobody saw how the trial ended, so that whatever it left proves nothing.
    """

    assignment: Assignment
    device: str
    evidence: Evidence
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    handlers: tuple[str, ...] = ()
    swallow: Swallow | None = None
    fresh_reason: str = ""
    lost: str = ""

    def judge(self, evidence: Evidence) -> Classification:
        """The outcome that this evidence of the trial supports."""
        verdict = classify(evidence)
        if self.lost and verdict.outcome is not Outcome.INFRA_ERROR:
            return Classification(Outcome.INFRA_ERROR, "lost", self.lost)
        return verdict


@dataclass
class _Running:
    assignment: Assignment
    parent: _Parent
    started: float
    progressed: float
    stage: str = ""
    executing: bool = False
    fresh_reason: str = ""
    killed: str = ""
    killed_at: float = 0.0
    lost: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    updates: int = 0


@dataclass
class _Parent:
    config: ParentConfig
    handle: ParentHandle
    started: float
    lines: Lines = field(default_factory=Lines)
    ready: bool = False
    unready: bool = False
    error: str = ""
    fresh_reason: str = ""
    versions: dict[str, str] = field(default_factory=dict)


ConfigFor = Callable[[Assignment, str], ParentConfig]


class Lane:
    """The trials of one device: K at a time, over one parent for each build and registration."""

    def __init__(
        self,
        device: str,
        parallel: int,
        sandbox: Sandbox,
        config_for: ConfigFor,
        deadlines: Deadlines,
        on_versions: Callable[[dict[str, str]], None],
    ) -> None:
        self.device = device
        self._parallel = parallel
        self._sandbox = sandbox
        self._config_for = config_for
        self._deadlines = deadlines
        self._on_versions = on_versions
        self._parents: dict[tuple[str, str], _Parent] = {}
        self._running: dict[int, _Running] = {}
        self.retired = ""
        self._lost_parent = ""

    def run(
        self,
        take: Callable[[], Assignment | None],
        emit: Callable[[Finished], None],
        stopped: threading.Event,
        retire: Callable[[str], None],
    ) -> None:
        """Run what `take` gives until it gives None and nothing runs, or until `stopped`.

        A lane that loses a parent, or can start none, asks to `retire`: a device that is gone must
        not cost a run more than the trials that were on it.
        """
        while not stopped.is_set():
            if self._lost_parent:
                retire(self._lost_parent)
                self._lost_parent = ""
            while (
                not (self.retired or self._lost_parent)
                and len(self._running) < self._parallel
                and (assignment := take())
            ):
                self._start(assignment, emit)
            if self._running:
                self._wait(emit)
            elif not self._lost_parent:
                return

    def close(self) -> None:
        """End every parent and its trials, also where one of them cannot be ended in order."""
        with ExitStack() as stack:
            for parent in self._parents.values():
                stack.callback(parent.handle.close)
        self._parents.clear()
        self._running.clear()

    def _start(self, assignment: Assignment, emit: Callable[[Finished], None]) -> None:
        key = (assignment.build_dir, assignment.registration)
        now = time.monotonic()
        try:
            parent = self._parents.get(key) or self._start_parent(key, assignment)
        except InfrastructureError as error:
            self._lost_parent = str(error)
            evidence = Evidence(stage="start", output=str(error), error=str(error))
            emit(Finished(assignment, self.device, evidence, 0.0, lost=str(error)))
            return
        running = _Running(assignment, parent, now, now)
        self._running[assignment.spec.index] = running
        if parent.ready:
            self._send_start(running)

    def warm(self, assignments: Iterable[Assignment]) -> None:
        """Start the parents that these will need, all at once: each imports for seconds.

        One that cannot be started is left to the first trial that needs it, which says so.
        """
        for assignment in assignments:
            key = (assignment.build_dir, assignment.registration)
            if key not in self._parents:
                try:
                    self._start_parent(key, assignment)
                except InfrastructureError:
                    return

    def _start_parent(self, key: tuple[str, str], assignment: Assignment) -> _Parent:
        config = self._config_for(assignment, self.device)
        parent = _Parent(config, self._sandbox.start(config), time.monotonic())
        self._parents[key] = parent
        return parent

    def _send_start(self, running: _Running) -> None:
        spec = running.assignment.spec
        running.started = running.progressed = time.monotonic()
        running.parent.handle.send({"op": "start", "spec": _as_json(spec)})

    def _wait(self, emit: Callable[[Finished], None]) -> None:
        with selectors.DefaultSelector() as selector:
            for key, parent in self._parents.items():
                selector.register(parent.handle.fileno(), selectors.EVENT_READ, (key, parent))
            timeout = max(0.01, min(self._next_deadline() - time.monotonic(), 1.0))
            ready = selector.select(timeout)
        for selected, _ in ready:
            key, parent = selected.data
            data = parent.handle.read()
            if not data:
                self._lost(key, parent, emit)
                continue
            try:
                for line in parent.lines.of(data):
                    self._take_in(parent, parse(line), emit)
            except BrokenEvent as error:
                parent.error = f"its trials' events are broken: {error}"
                self._lost(key, parent, emit)
        self._enforce(emit)

    def _take_in(
        self, parent: _Parent, event: dict[str, Any], emit: Callable[[Finished], None]
    ) -> None:
        kind = event["event"]
        if kind in ("ready", "unready") and parent.ready:
            # Of its trials' making: each time, their deadlines would begin anew.
            raise BrokenEvent(f"{kind!r} of a parent that was ready")
        if kind == "ready":
            parent.ready, parent.versions = True, event["versions"]
            parent.fresh_reason = event["fresh_reason"]
            self._on_versions(parent.versions)
            for waiting in self._running.values():
                if waiting.parent is parent:
                    self._send_start(waiting)
            return
        if kind == "unready":
            parent.unready, parent.error = True, event["error"]
            return
        running = self._running.get(event["trial"])
        if running is None or running.parent is not parent:
            return
        running.progressed = time.monotonic()
        if kind == "started":
            running.fresh_reason = event["fresh"]
        elif kind == "versions":
            self._on_versions(event["versions"])
        elif kind == "stage":
            running.stage = event["stage"]
            running.executing = running.executing or running.stage == "execute"
        elif kind == "device":
            running.facts = {k: v for k, v in event.items() if k not in ("event", "trial")}
        elif kind == "beat":
            running.updates = event["updates"]
        elif kind == "result":
            running.result = {k: v for k, v in event.items() if k not in ("event", "trial")}
        elif kind == "exit":
            del self._running[event["trial"]]
            emit(self._finish(running, event["exit_status"], event["signal"]))

    def _lost(
        self, key: tuple[str, str], parent: _Parent, emit: Callable[[Finished], None]
    ) -> None:
        """The parent is gone: what it ran is lost, and the next trial gets a new one."""
        del self._parents[key]
        if not parent.unready:  # what a build's import fails at, it fails at on every device
            self._lost_parent = parent.error or "a parent process of its trials ended"
        # What a parent said explains trials that it could not start, never one that was under way.
        last_words = "" if parent.ready else parent.handle.last_words()
        parent.handle.close()
        for index, running in list(self._running.items()):
            if running.parent is not parent:
                continue
            del self._running[index]
            if parent.unready:
                running.stage = "import"
                running.result = {"error": parent.error}
            elif not running.killed:
                running.lost = parent.error or "the parent process of this trial is gone"
            emit(self._finish(running, None, None, last_words))

    def _next_deadline(self) -> float:
        return min((self._deadline(r)[0] for r in self._running.values()), default=float("inf"))

    def _deadline(self, running: _Running) -> tuple[float, str]:
        limits = self._deadlines
        if running.killed:
            return running.killed_at + limits.kill, running.killed
        if not running.parent.ready:
            return running.parent.started + limits.ready, "the parent was not ready in time"
        whole = (running.started + limits.trial, f"not finished after {limits.trial:g} s")
        if running.executing:
            silent = limits.progress + running.assignment.silent
            quiet = f"no sign of life for {silent:g} s in stage {running.stage!r}"
            return min(whole, (running.progressed + silent, quiet))
        late = f"not executing after {limits.start:g} s, in stage {running.stage!r}"
        return min(whole, (running.started + limits.start, late))

    def _enforce(self, emit: Callable[[Finished], None]) -> None:
        now = time.monotonic()
        for index, running in list(self._running.items()):
            deadline, reason = self._deadline(running)
            if now < deadline or index not in self._running:
                continue
            if running.parent.ready and not running.killed:
                running.killed, running.killed_at = reason, now
                running.parent.handle.send({"op": "kill", "trial": index})
                continue
            if not running.killed:
                running.killed = reason
            else:
                running.parent.error = "a parent process of its trials does not answer"
            key = next(k for k, p in self._parents.items() if p is running.parent)
            self._lost(key, running.parent, emit)

    def _finish(
        self,
        running: _Running,
        exit_status: int | None,
        signal: int | None,
        last_words: str = "",
    ) -> Finished:
        spec, result = running.assignment.spec, running.result
        background = result.get("background_error", "")
        alive = tuple(result.get("threads_alive", ()))
        if running.killed and running.executing and not result:
            alive = _threads_at(running.stage, spec.background)
        evidence = Evidence(
            exit_status=exit_status,
            signal=signal,
            killed=bool(running.killed),
            finished=bool(result.get("finished")),
            stage=running.stage.removesuffix(" again") or "start",
            output=(read_log(spec.log) if spec.log else "") + last_words,
            error=result.get("error", "") or background,
            stale_rows=result.get("stale_rows"),
            threads_alive=alive,
            platform=running.facts.get("platform"),
        )
        return Finished(
            assignment=running.assignment,
            device=self.device,
            evidence=evidence,
            seconds=round(time.monotonic() - running.started, 3),
            facts=running.facts,
            result={"updates": running.updates, **result},
            handlers=_read_trace(spec.trace) if spec.trace else (),
            swallow=_read_swallow(spec.swallow) if spec.swallow else None,
            fresh_reason=running.fresh_reason,
            lost=running.lost,
        )


def _threads_at(stage: str, background: bool) -> tuple[str, ...]:
    """Which threads cannot have finished when a trial is killed in that stage."""
    if stage == "background":
        return ("background",)
    return ("main", "background") if background else ("main",)


class Supervisor:
    """Spreads assignments over the lanes, a thread for each, and yields trials as they finish.

    Parents stay up between two calls of `run`, until `close`.
    """

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self._retiring = threading.Lock()
        self._taking = threading.Lock()

    def run(self, assignments: deque[Assignment]) -> Iterator[Finished]:
        """Yield each finished trial. The caller may append to `assignments` meanwhile.

        Closing the generator (or an exception in its caller) stops every lane before it returns.
        """
        finished: queue.Queue[Finished | BaseException | Lane] = queue.Queue()
        stopped = threading.Event()

        def work(lane: Lane) -> None:
            def take() -> Assignment | None:
                return self._take(lane, assignments)

            try:
                lane.run(take, finished.put, stopped, lambda why: self.retire(lane.device, why))
            except BaseException as error:
                finished.put(error)
            finally:
                finished.put(lane)

        threads: dict[Lane, threading.Thread] = {}
        try:
            while True:
                for lane in self._lanes:
                    if lane not in threads and self._may_take(lane, assignments):
                        threads[lane] = threading.Thread(target=work, args=(lane,))
                        threads[lane].start()
                if not threads and finished.empty():
                    return
                item = finished.get()
                if isinstance(item, Lane):
                    threads.pop(item).join()
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            stopped.set()
            for thread in threads.values():
                # A signal may have come while one was started: that one finds that it is stopped.
                if thread.is_alive():
                    thread.join()

    def _take(self, lane: Lane, assignments: deque[Assignment]) -> Assignment | None:
        """The first that the lane may run. Others may append meanwhile, at the end."""
        passed_over: list[Assignment] = []
        with self._taking:
            try:
                while assignments:
                    one = assignments.popleft()
                    if one.device in ("", lane.device):
                        return one
                    passed_over.append(one)
                return None
            finally:
                assignments.extendleft(reversed(passed_over))

    def _may_take(self, lane: Lane, assignments: deque[Assignment]) -> bool:
        """Whether anything is left for a lane. What only a retired one might run is dropped."""
        retired = self.retired
        with self._taking:
            if retired:
                kept = [one for one in assignments if one.device not in retired]
                assignments.clear()
                assignments.extend(kept)
            wanted = ("", lane.device)
            return not lane.retired and any(one.device in wanted for one in assignments)

    def warm(self, assignments: Sequence[Assignment]) -> None:
        """Start every parent that these will need on every device."""
        for lane in self._lanes:
            lane.warm([one for one in assignments if one.device in ("", lane.device)])

    def retire(self, device: str, reason: str) -> None:
        """Give a device no more trials, unless it is the last."""
        with self._retiring:  # two lanes that lose their devices at once must not both go
            for lane in self._lanes:
                if lane.device == device and self._others(lane):
                    lane.retired = lane.retired or f"device {device} was taken out: {reason}"

    def _others(self, lane: Lane) -> bool:
        return any(not one.retired for one in self._lanes if one is not lane)

    @property
    def retired(self) -> frozenset[str]:
        """Devices that get no more trials."""
        return frozenset(lane.device for lane in self._lanes if lane.retired)

    @property
    def notes(self) -> tuple[str, ...]:
        """What happened to lanes, a sentence each."""
        return tuple(lane.retired for lane in self._lanes if lane.retired)

    def close(self) -> None:
        """End every parent and every trial."""
        with ExitStack() as stack:
            for lane in self._lanes:
                stack.callback(lane.close)


def _as_json(spec: TrialSpec) -> dict[str, Any]:
    return {**vars(spec), "environment": dict(spec.environment)}


def read_log(path: str) -> str:
    """What a trial printed; of a long log both ends."""
    with _left_by_trial(path) as log:
        size = os.fstat(log.fileno()).st_size
        if size <= 2 * LOG_BYTES:
            return log.read(2 * LOG_BYTES).decode(errors="replace")
        head = log.read(LOG_BYTES)
        log.seek(size - LOG_BYTES)
        return (head + b"\n[...]\n" + log.read(LOG_BYTES)).decode(errors="replace")


def _read_trace(path: str) -> tuple[str, ...]:
    """The names in a trial's trace, a line each, once each."""
    with _left_by_trial(path) as trace:
        names = trace.read(TRACE_BYTES).decode(errors="replace").split("\n")
    return tuple(sorted(set(names[:-1])))


def _read_swallow(path: str) -> Swallow:
    """What a detector recorded of a trial, however the trial ended."""
    with _left_by_trial(path) as file:
        return record.parse(file.read(record.SIZE))


def _left_by_trial(path: str) -> BinaryIO:
    """A file that a trial may have left, empty where it left none.

    In a container the folder is its own, so whatever stands there is not followed or waited for,
    and its size is not trusted.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            return open(os.devnull, "rb")
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return open(os.devnull, "rb")
    return open(descriptor, "rb")


_NO_FILE = {errno.ENOENT, errno.EACCES, errno.ELOOP, errno.ENXIO}
"""Nothing there, no permission, a symbolic link, a socket. Source: open(2)."""
