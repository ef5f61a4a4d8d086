"""The supervisor: hands trials to parents, ends those that hang, and loses none."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.errors import InfrastructureError
from runner.outcome import Outcome
from runner.sandbox import process
from runner.sandbox.process import ProcessSandbox
from runner.trial import supervise
from runner.trial.program import ParentConfig, TrialSpec
from runner.trial.supervise import Assignment, Deadlines, Finished, Lane, Supervisor

Spec = Callable[..., TrialSpec]
Eventually = Callable[[Callable[[], object], str], None]
HANG = {"EMULATION_BACKGROUND": "wait"}
PATIENT = Deadlines(progress=60)


class Watched(ProcessSandbox):
    """A sandbox that remembers its parents and what was sent to them."""

    def __init__(self, folder: Path, python: str = sys.executable, devices: int = 2) -> None:
        super().__init__(folder, python, {"EMULATION_DEVICES": str(devices)})
        self.parents: list[tuple[str, Any]] = []

    def start(self, config: ParentConfig) -> Any:
        handle = super().start(config)
        self.parents.append((config.device, handle))
        return handle

    def pids(self, device: str = "0") -> list[int]:
        return [handle._process.pid for on, handle in self.parents if on == device]


@pytest.fixture
def assign(build: Callable[..., Any], spec: Spec) -> Callable[..., Assignment]:
    folder = build("race").folder

    def one(index: int, silent: float = 0.0, **options: Any) -> Assignment:
        return Assignment(spec(index, **options), folder, "registered", silent)

    return one


Supervise = Callable[..., Supervisor]


@pytest.fixture
def supervise_on() -> Iterator[Supervise]:
    opened: list[Supervisor] = []

    def start(
        sandbox: ProcessSandbox,
        devices: tuple[str, ...] = ("0",),
        deadlines: Deadlines = PATIENT,
        parallel: int = 1,
        python_path: tuple[str, ...] = (),
    ) -> Supervisor:
        def config_for(assignment: Assignment, device: str) -> ParentConfig:
            return ParentConfig("demo", assignment.build_dir, assignment.registration, device)

        lanes = [
            Lane(device, parallel, sandbox, config_for, deadlines, lambda versions: None)
            for device in devices
        ]
        opened.append(Supervisor(lanes))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def outcome(finished: Finished) -> Outcome:
    return finished.judge(finished.evidence).outcome


def test_every_assignment_finishes_once(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise_on(Watched(tmp_path), ("0", "1"), parallel=2)
    finished = list(supervisor.run(deque(assign(n) for n in range(12))))
    assert sorted(f.assignment.spec.index for f in finished) == list(range(12))
    assert {outcome(f) for f in finished} == {Outcome.PASS}
    assert {f.device for f in finished} == {"0", "1"}


def test_what_is_appended_meanwhile_is_run_too(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    queue = deque([assign(0)])
    seen = []
    for finished in supervise_on(Watched(tmp_path)).run(queue):
        seen.append(finished.assignment.spec.index)
        if len(seen) < 4:
            queue.append(assign(len(seen)))
    assert seen == [0, 1, 2, 3]


def test_parents_stay_up_between_two_calls(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    sandbox = Watched(tmp_path)
    supervisor = supervise_on(sandbox)
    assert len(list(supervisor.run(deque([assign(0)])))) == 1
    assert len(list(supervisor.run(deque([assign(1)])))) == 1
    assert len(sandbox.parents) == 1


def test_a_trial_without_progress_is_a_hang(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise_on(Watched(tmp_path), deadlines=Deadlines(progress=0.7))
    (finished,) = supervisor.run(deque([assign(0, background=True, **HANG)]))
    assert finished.evidence.killed
    assert finished.evidence.signal == signal.SIGKILL
    assert outcome(finished) is Outcome.HANG
    assert finished.seconds < 30


def test_a_capture_held_open_is_no_lack_of_progress(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    slow = assign(0, silent=60, EMULATION_LOAD_MS="100")
    supervisor = supervise_on(Watched(tmp_path), deadlines=Deadlines(progress=0.05))
    (finished,) = supervisor.run(deque([slow]))
    assert outcome(finished) is Outcome.PASS


def test_a_trial_that_never_came_to_execute_is_no_hang(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    # Nobody reads this pipe, so the trial waits for its log to open.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stuck = assign(0)
    stuck = replace(stuck, spec=replace(stuck.spec, log=str(pipe)))
    (finished,) = supervise_on(Watched(tmp_path), deadlines=Deadlines(start=0.3)).run(
        deque([stuck])
    )
    assert finished.evidence.killed
    assert outcome(finished) is Outcome.INFRA_ERROR


def wrapper(folder: Path, code: str) -> str:
    """A Python that does something else than what it is asked for."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(0o755)
    return str(script)


def test_a_parent_that_is_not_ready_in_time_is_infrastructure(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "CLOSE_S", 0.1)
    stuck = wrapper(tmp_path, "import threading; threading.Event().wait()")
    sandbox = Watched(tmp_path, stuck)
    supervisor = supervise_on(sandbox, deadlines=Deadlines(ready=0.3))
    (finished,) = supervisor.run(deque([assign(0)]))
    assert outcome(finished) is Outcome.INFRA_ERROR
    assert sandbox.parents[0][1]._process.returncode == -signal.SIGKILL


def test_a_parent_that_cannot_be_started_is_infrastructure(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise_on(Watched(tmp_path, "/nowhere/python"))
    (finished,) = supervisor.run(deque([assign(0)]))
    assert "/nowhere/python" in finished.evidence.error
    assert outcome(finished) is Outcome.INFRA_ERROR


def test_a_signal_while_a_lane_is_started_is_what_is_raised(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    supervisor = supervise_on(Watched(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(supervisor.run(deque([assign(0)])))


def test_the_reason_of_a_parent_that_cannot_import_is_kept(
    spec: Spec, supervise_on: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise_on(Watched(tmp_path))
    (finished,) = supervisor.run(deque([Assignment(spec(0), "/nowhere", "registered")]))
    assert "/nowhere" in finished.evidence.error
    assert outcome(finished) is Outcome.INFRA_ERROR


def test_events_that_are_none_cost_the_parent_and_nothing_else(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    garbage = wrapper(tmp_path, "import os, sys; os.write(int(sys.argv[-1]), b'no JSON\\n')")
    (finished,) = supervise_on(Watched(tmp_path, garbage)).run(deque([assign(0)]))
    assert "no JSON" in finished.lost
    assert outcome(finished) is Outcome.INFRA_ERROR


@pytest.mark.parametrize(
    "written",
    ["""'{"event": "stage", "trial": 0, "stage": 5}\\n'""", "'x' * 200_000"],
    ids=["a field of another type", "a line that does not end"],
)
def test_a_trial_that_writes_no_events_is_lost_and_the_run_goes_on(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path, written: str
) -> None:
    code = f"import sys; open(int(sys.argv[-1]), 'w').write({written})"
    hostile = wrapper(tmp_path, code)
    (finished,) = supervise_on(Watched(tmp_path, hostile)).run(deque([assign(0)]))
    assert "events are broken" in finished.lost
    assert outcome(finished) is Outcome.INFRA_ERROR


READY = '{"event": "ready", "versions": {}, "fresh_reason": ""}\\n'
"""An event that a parent writes once, and that code of its commit can write as well."""


def test_who_says_ready_again_and_again_does_not_put_off_its_end(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "CLOSE_S", 0.1)
    code = f"""import sys, time
events = open(int(sys.argv[-1]), "w", buffering=1)
while True:
    events.write('{READY}')
    time.sleep(0.05)"""
    limits = Deadlines(start=1.0, kill=0.3)
    supervisor = supervise_on(Watched(tmp_path, wrapper(tmp_path, code)), deadlines=limits)
    (finished,) = supervisor.run(deque([assign(0)]))
    assert "ready" in finished.lost
    assert outcome(finished) is Outcome.INFRA_ERROR


def test_a_killed_parent_costs_the_trial_in_flight_only(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    sandbox = Watched(tmp_path)
    supervisor = supervise_on(sandbox)
    hanging = assign(1, background=True, **HANG)
    finished = []
    for one in supervisor.run(deque([assign(0), hanging, assign(2)])):
        finished.append(one)
        if one.assignment.spec.index == 0:
            eventually(Path(hanging.spec.log).exists, "the trial is in flight")
            os.kill(sandbox.pids()[0], signal.SIGKILL)
    assert [f.assignment.spec.index for f in finished] == [0, 1, 2]
    assert [outcome(f) for f in finished] == [Outcome.PASS, Outcome.INFRA_ERROR, Outcome.PASS]
    assert len(sandbox.parents) == 2


def test_a_parent_that_does_not_answer_is_killed_and_its_trial_still_a_hang(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    monkeypatch.setattr(process, "CLOSE_S", 0.1)
    sandbox = Watched(tmp_path)
    supervisor = supervise_on(sandbox, deadlines=Deadlines(progress=0.7, kill=0.3))
    hanging = assign(1, background=True, **HANG)
    finished = []
    # Only the one that hangs is on such short terms.
    first, last = assign(0, silent=60), assign(2, silent=60)
    for one in supervisor.run(deque([first, hanging, last])):
        finished.append(one)
        if one.assignment.spec.index == 0:
            eventually(Path(hanging.spec.log).exists, "the trial is in flight")
            os.kill(sandbox.pids()[0], signal.SIGSTOP)
    assert [f.assignment.spec.index for f in finished] == [0, 1, 2]
    assert finished[1].evidence.killed
    assert outcome(finished[2]) is Outcome.PASS


def test_a_device_whose_parent_is_lost_is_taken_out_where_another_remains(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    sandbox = Watched(tmp_path)
    supervisor = supervise_on(sandbox, ("0", "1"))
    hanging = {n: assign(n, background=True, **HANG) for n in (0, 1)}
    queue = deque([*hanging.values(), *(assign(n) for n in range(2, 8))])

    def kill_when_both_fly() -> None:
        for assignment in hanging.values():
            eventually(Path(assignment.spec.log).exists, "both devices have a trial in flight")
        os.kill(sandbox.pids("0")[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_when_both_fly)
    killer.start()
    finished = {}
    for one in supervisor.run(queue):
        assert one.assignment.spec.index not in finished
        finished[one.assignment.spec.index] = one
        if len(finished) == 1:
            # The other device is released only now, so it cannot have been idle by chance, and
            # the first is taken out by then, so it cannot be the last that remains.
            eventually(lambda: supervisor.notes, "the device is taken out")
            os.kill(sandbox.pids("1")[0], signal.SIGKILL)
    killer.join()
    assert sorted(finished) == list(range(8))
    assert finished[0].device != finished[1].device
    assert {outcome(finished[n]) for n in (0, 1)} == {Outcome.INFRA_ERROR}
    assert {(finished[n].device, outcome(finished[n])) for n in range(2, 8)} == {
        ("1", Outcome.PASS)
    }
    (note,) = supervisor.notes
    assert note == "device 0 was taken out: a parent process of its trials ended"


class Refusing(Watched):
    """A sandbox whose host has lost device 0."""

    def start(self, config: ParentConfig) -> Any:
        if config.device == "0":
            raise InfrastructureError("GPU 0 has fallen off the bus")
        return super().start(config)


def test_a_device_that_takes_no_parent_is_taken_out_at_once(
    assign: Callable[..., Assignment], supervise_on: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise_on(Refusing(tmp_path), ("0", "1"), parallel=2)
    finished = list(supervisor.run(deque(assign(n) for n in range(8))))
    assert sorted(f.assignment.spec.index for f in finished) == list(range(8))
    lost = [f for f in finished if f.device == "0"]
    assert [outcome(f) for f in lost] == [Outcome.INFRA_ERROR]
    assert supervisor.notes == ("device 0 was taken out: GPU 0 has fallen off the bus",)


def test_a_build_that_cannot_be_imported_takes_out_no_device(
    assign: Callable[..., Assignment], spec: Spec, supervise_on: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise_on(Watched(tmp_path), ("0", "1"))
    broken = Assignment(spec(0), "/nowhere", "registered")
    finished = list(supervisor.run(deque([broken, *(assign(n) for n in range(1, 8))])))
    passed = {f.assignment.spec.index for f in finished if outcome(f) is Outcome.PASS}
    assert passed == set(range(1, 8))
    assert supervisor.notes == ()


def test_the_last_device_is_never_taken_out(supervise_on: Supervise, tmp_path: Path) -> None:
    supervisor = supervise_on(Watched(tmp_path), ("0", "1", "2"))
    for device in ("0", "1", "2"):
        supervisor.retire(device, "it is hot")
    assert len(supervisor.notes) == 2


def test_a_stopped_run_leaves_no_process_and_reports_nothing_in_flight(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    sandbox = Watched(tmp_path)
    supervisor = supervise_on(sandbox)
    hanging = assign(1, background=True, **HANG)
    events = supervisor.run(deque([assign(0), hanging]))
    assert next(events).assignment.spec.index == 0
    eventually(Path(hanging.spec.log).exists, "the trial is in flight")
    events.close()
    supervisor.close()
    assert list(events) == []
    assert sandbox.parents[0][1]._process.returncode == 0


def test_an_error_of_a_lane_reaches_the_caller(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Lane, *_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Lane, "_start", broken)
    with pytest.raises(ZeroDivisionError):
        list(supervise_on(Watched(tmp_path)).run(deque([assign(0)])))


def test_of_a_long_log_both_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOG_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("the first " + "x" * 1000 + " the last!")
    assert supervise.read_log(str(log)) == "the first \n[...]\n the last!"


def test_no_link_that_a_trial_left_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the runner")
    (tmp_path / "log").symlink_to(secret)
    assert supervise.read_log(str(tmp_path / "log")) == ""


def test_a_pipe_that_a_trial_left_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    assert supervise.read_log(str(tmp_path / "log")) == ""


def test_a_folder_that_a_trial_left_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert supervise.read_log(str(tmp_path / "log")) == ""


def test_no_more_of_a_trace_is_read_than_a_trial_can_need(
    assign: Callable[..., Assignment],
    supervise_on: Supervise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "TRACE_BYTES", 12)
    trace = tmp_path / "trace"
    trace.write_bytes(b"Second\n\xff\nFirst\nThird\n")
    assigned = assign(0)
    assigned = replace(assigned, spec=replace(assigned.spec, trace=str(trace)))
    (finished,) = supervise_on(Watched(tmp_path)).run(deque([assigned]))
    assert finished.handlers == ("Second", "\ufffd")
