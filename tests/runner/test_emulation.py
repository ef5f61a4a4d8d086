"""The emulated CUDA runtime keeps the rules of stream capture that the race is made of."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.demo_build import DETECTOR, EMULATION, find_compiler
from runner.detector import record
from runner.detector.record import Swallow

SUCCESS, INVALID_HANDLE, ILLEGAL_STATE, NOT_READY = 0, 400, 401, 600
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED = 900, 901, 902, 903, 904
ISOLATION, CAPTURED_EVENT, WRONG_THREAD = 905, 907, 908
THREAD_LOCAL, RELAXED = 1, 2
HOST_TO_DEVICE = 1
HANG_S = 0.3
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@dataclass
class Stream:
    """A stream, and what ran on it so far."""

    library: ctypes.CDLL
    handle: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)
    ran: list[object] = field(default_factory=list)
    callbacks: list[object] = field(default_factory=list)

    def put(self, item: object) -> int:
        """Enqueue work that appends `item` to `ran`."""
        callback = HOST_FUNCTION(lambda _: self.ran.append(item))
        self.callbacks.append(callback)
        return int(self.library.cudaLaunchHostFunc(self.handle, callback, None))

    def begin(self, mode: int = RELAXED) -> int:
        return int(self.library.cudaStreamBeginCapture(self.handle, mode))

    def end(self) -> tuple[int, ctypes.c_void_p]:
        graph = ctypes.c_void_p()
        error = self.library.cudaStreamEndCapture(self.handle, ctypes.byref(graph))
        return int(error), graph

    def wait(self, event: ctypes.c_void_p) -> int:
        return int(self.library.cudaStreamWaitEvent(self.handle, event, 0))

    def synchronize(self) -> int:
        return int(self.library.cudaStreamSynchronize(self.handle))


class Cuda:
    """The emulated runtime, loaded into this process."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.cudaGetErrorString.restype = ctypes.c_char_p
        self.library.cudaGetErrorName.restype = ctypes.c_char_p

    def stream(self) -> Stream:
        stream = Stream(self.library)
        error = self.library.cudaStreamCreateWithFlags(ctypes.byref(stream.handle), 1)
        assert error == SUCCESS
        return stream

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        assert self.library.cudaEventCreate(ctypes.byref(event)) == SUCCESS
        return event

    def record(self, event: ctypes.c_void_p, stream: Stream) -> int:
        return int(self.library.cudaEventRecord(event, stream.handle))

    def destroy(self, graph: ctypes.c_void_p) -> int:
        return int(self.library.cudaGraphDestroy(graph))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("emulation") / "cuda.so"
    command = [*find_compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread"]
    command += [f"-I{EMULATION / 'include'}", f"-I{DETECTOR}"]
    command += [str(EMULATION / "src/cuda_runtime.cpp")]
    subprocess.run([*command, "-shared", "-o", str(path)], check=True)
    return path


@pytest.fixture
def cuda(library: Path) -> Cuda:
    return Cuda(library)


@pytest.fixture
def xla(cuda: Cuda) -> Iterator[Stream]:
    """The stream that a capture is begun on."""
    stream = cuda.stream()
    yield stream
    error, graph = stream.end()
    if error == SUCCESS:
        cuda.destroy(graph)
    assert stream.synchronize() == SUCCESS


def died_of(body: Callable[[], None]) -> int:
    """Run `body` in a process of its own; the signal that ended it, 0 if it came to its end."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.alarm(20)
        body()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def ends_in(seconds: float, body: Callable[[], object]) -> bool:
    """Whether `body`, on a thread of its own, is done within that time."""
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_work_runs_in_order_and_beside_the_thread_that_enqueues_it(cuda: Cuda) -> None:
    stream = cuda.stream()
    gate = threading.Event()
    callback = HOST_FUNCTION(lambda _: gate.wait(10) and None)
    stream.library.cudaLaunchHostFunc(stream.handle, callback, None)
    assert [stream.put(n) for n in range(3)] == [SUCCESS] * 3
    assert stream.ran == []
    assert stream.library.cudaStreamQuery(stream.handle) == NOT_READY
    gate.set()
    assert stream.synchronize() == SUCCESS
    assert stream.ran == [0, 1, 2]


def test_what_another_thread_enqueues_during_a_capture_never_runs(cuda: Cuda, xla: Stream) -> None:
    xla.begin()
    other = threading.Thread(target=xla.put, args=("other thread's",))
    other.start()
    other.join()
    error, graph = xla.end()
    assert (error, cuda.destroy(graph)) == (SUCCESS, SUCCESS)
    xla.put("later")
    xla.synchronize()
    assert xla.ran == ["later"]


def test_a_captured_copy_leaves_its_destination_alone(cuda: Cuda, xla: Stream) -> None:
    source, target = ctypes.create_string_buffer(b"new"), ctypes.create_string_buffer(b"old")
    xla.begin()
    copied = xla.library.cudaMemcpyAsync(target, source, 4, HOST_TO_DEVICE, xla.handle)
    cuda.destroy(xla.end()[1])
    xla.synchronize()
    assert (copied, target.value) == (SUCCESS, b"old")


def test_a_copy_to_the_device_takes_its_bytes_when_it_is_enqueued(cuda: Cuda) -> None:
    stream, gate = cuda.stream(), threading.Event()
    source, target = ctypes.create_string_buffer(b"one"), ctypes.create_string_buffer(4)
    callback = HOST_FUNCTION(lambda _: gate.wait(10) and None)
    stream.library.cudaLaunchHostFunc(stream.handle, callback, None)
    stream.library.cudaMemcpyAsync(target, source, 4, HOST_TO_DEVICE, stream.handle)
    source.value = b"two"
    gate.set()
    stream.synchronize()
    assert target.value == b"one"


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=8))
def test_exactly_what_no_capture_was_open_for_runs(
    library: Path, rounds: list[tuple[bool, int]]
) -> None:
    cuda = Cuda(library)
    stream, other = cuda.stream(), cuda.stream()
    expected: list[object] = []
    for at, (captured, count) in enumerate(rounds):
        if captured:
            stream.begin()
        for item in range(count):
            stream.put((at, item))
            other.put((at, item))
        if captured:
            assert cuda.destroy(stream.end()[1]) == SUCCESS
        else:
            expected += [(at, item) for item in range(count)]
    for one in (stream, other):
        one.synchronize()
        one.library.cudaStreamDestroy(one.handle)
    assert stream.ran == expected
    assert other.ran == [
        (at, item) for at, (_, count) in enumerate(rounds) for item in range(count)
    ]


def test_synchronizing_a_capturing_stream_fails_and_spoils_the_capture(xla: Stream) -> None:
    xla.begin()
    assert xla.synchronize() == UNSUPPORTED
    assert xla.put("more") == INVALIDATED
    assert xla.end()[0] == INVALIDATED
    assert xla.put("after it") == SUCCESS


def test_a_spoiled_capture_stays_open_until_it_is_ended(xla: Stream) -> None:
    xla.begin()
    xla.synchronize()
    assert xla.synchronize() == INVALIDATED
    status = ctypes.c_int()
    xla.library.cudaStreamIsCapturing(xla.handle, ctypes.byref(status))
    assert status.value == 2


def test_the_last_error_is_kept_for_its_own_thread_and_given_once(xla: Stream) -> None:
    xla.begin()
    seen: list[int] = []
    last = xla.library.cudaGetLastError

    def fail_on_another_thread() -> None:
        xla.synchronize()
        seen.append(last())

    other = threading.Thread(target=fail_on_another_thread)
    last()
    other.start()
    other.join()
    assert seen == [UNSUPPORTED]
    assert last() == SUCCESS


def test_an_event_recorded_during_a_capture_cannot_be_waited_for(cuda: Cuda, xla: Stream) -> None:
    event = cuda.event()
    xla.begin()
    assert cuda.record(event, xla) == SUCCESS
    assert cuda.library.cudaEventSynchronize(event) == CAPTURED_EVENT
    assert xla.end()[0] == INVALIDATED


def test_an_event_recorded_outside_a_capture_is_reached_with_its_work(cuda: Cuda) -> None:
    stream, event = cuda.stream(), cuda.event()
    stream.put("before")
    cuda.record(event, stream)
    assert cuda.library.cudaEventSynchronize(event) == SUCCESS
    assert stream.ran == ["before"]
    assert cuda.library.cudaEventQuery(event) == SUCCESS


def test_a_stream_waits_for_another_by_an_event(cuda: Cuda) -> None:
    first, second, event, gate = cuda.stream(), cuda.stream(), cuda.event(), threading.Event()
    callback = HOST_FUNCTION(lambda _: gate.wait(10) and None)
    first.library.cudaLaunchHostFunc(first.handle, callback, None)
    cuda.record(event, first)
    second.wait(event)
    second.put("second")
    assert second.library.cudaStreamQuery(second.handle) == NOT_READY
    gate.set()
    second.synchronize()
    assert second.ran == ["second"]


def test_waiting_for_a_captured_event_pulls_the_stream_into_the_capture(
    cuda: Cuda, xla: Stream
) -> None:
    copies, event = cuda.stream(), cuda.event()
    xla.begin()
    cuda.record(event, xla)
    copies.wait(event)
    copies.put("swallowed")
    assert copies.synchronize() == UNSUPPORTED
    assert xla.end()[0] == INVALIDATED
    assert copies.synchronize() == SUCCESS
    assert copies.ran == []


def test_a_forked_stream_that_does_not_come_back_is_unjoined_work(cuda: Cuda, xla: Stream) -> None:
    copies, event = cuda.stream(), cuda.event()
    xla.begin()
    cuda.record(event, xla)
    copies.wait(event)
    copies.put("forked")
    error, graph = xla.end()
    assert (error, graph.value) == (UNJOINED, None)
    assert xla.put("after it") == SUCCESS


def test_a_forked_stream_that_comes_back_is_joined(cuda: Cuda, xla: Stream) -> None:
    copies, forked, joined = cuda.stream(), cuda.event(), cuda.event()
    xla.begin()
    cuda.record(forked, xla)
    copies.wait(forked)
    copies.put("forked")
    cuda.record(joined, copies)
    assert xla.wait(joined) == SUCCESS
    assert xla.end()[0] == SUCCESS
    copies.put("after it")
    copies.synchronize()
    assert copies.ran == ["after it"]


def test_work_after_the_join_is_unjoined_again(cuda: Cuda, xla: Stream) -> None:
    copies, forked, joined = cuda.stream(), cuda.event(), cuda.event()
    xla.begin()
    cuda.record(forked, xla)
    copies.wait(forked)
    copies.put("joined")
    cuda.record(joined, copies)
    xla.wait(joined)
    copies.put("not joined")
    assert xla.end()[0] == UNJOINED


def test_a_capture_cannot_wait_for_uncaptured_work(cuda: Cuda, xla: Stream) -> None:
    copies, event = cuda.stream(), cuda.event()
    cuda.record(event, copies)
    xla.begin()
    assert xla.wait(event) == ISOLATION
    assert xla.end()[0] == INVALIDATED


def test_two_captures_cannot_be_merged(cuda: Cuda, xla: Stream) -> None:
    second, event = cuda.stream(), cuda.event()
    xla.begin()
    second.begin()
    cuda.record(event, xla)
    assert second.wait(event) == MERGE
    assert (xla.end()[0], second.end()[0]) == (INVALIDATED, INVALIDATED)


def test_only_the_stream_that_began_a_capture_ends_it(cuda: Cuda, xla: Stream) -> None:
    copies, event = cuda.stream(), cuda.event()
    xla.begin()
    cuda.record(event, xla)
    copies.wait(event)
    assert copies.end()[0] == UNMATCHED
    assert xla.end()[0] == INVALIDATED


def test_only_a_relaxed_capture_may_be_ended_by_another_thread(xla: Stream) -> None:
    errors: list[int] = []
    for mode in (THREAD_LOCAL, RELAXED):
        xla.begin(mode)
        other = threading.Thread(target=lambda: errors.append(xla.end()[0]))
        other.start()
        other.join()
        xla.end()
    assert errors == [WRONG_THREAD, SUCCESS]


def test_a_stream_captures_once_at_a_time(xla: Stream) -> None:
    assert (xla.begin(), xla.begin()) == (SUCCESS, ILLEGAL_STATE)


def test_there_is_no_null_stream(cuda: Cuda) -> None:
    assert cuda.library.cudaStreamSynchronize(None) == INVALID_HANDLE


def test_recording_an_event_anew_whose_capture_is_gone_is_a_segmentation_fault(cuda: Cuda) -> None:
    def record_twice() -> None:
        stream, event = cuda.stream(), cuda.event()
        stream.begin()
        cuda.record(event, stream)
        cuda.destroy(stream.end()[1])
        cuda.record(event, stream)

    assert died_of(record_twice) == signal.SIGSEGV


def test_recording_an_event_anew_while_its_capture_lasts_is_fine(cuda: Cuda) -> None:
    def record_twice() -> None:
        stream, event = cuda.stream(), cuda.event()
        stream.begin()
        cuda.record(event, stream)
        cuda.record(event, stream)
        cuda.destroy(stream.end()[1])

    assert died_of(record_twice) == 0


def test_waiting_on_the_host_for_captured_work_never_ends(cuda: Cuda, xla: Stream) -> None:
    reached = threading.Event()
    callback = HOST_FUNCTION(lambda _: reached.set())
    xla.begin()
    xla.library.cudaLaunchHostFunc(xla.handle, callback, None)
    cuda.destroy(xla.end()[1])
    xla.synchronize()
    assert not ends_in(HANG_S, reached.wait)
    reached.set()


def test_a_synchronization_ends_though_another_thread_keeps_enqueueing(cuda: Cuda) -> None:
    stream, stop = cuda.stream(), threading.Event()

    def keep_enqueueing() -> None:
        while not stop.is_set():
            stream.put("more")

    busy = threading.Thread(target=keep_enqueueing)
    busy.start()
    try:
        assert ends_in(10, stream.synchronize)
    finally:
        stop.set()
        busy.join()
        stream.synchronize()


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [
        (
            900,
            "cudaErrorStreamCaptureUnsupported",
            "operation not permitted when stream is capturing",
        ),
        (
            901,
            "cudaErrorStreamCaptureInvalidated",
            "operation failed due to a previous error during capture",
        ),
        (
            902,
            "cudaErrorStreamCaptureMerge",
            "operation would result in a merge of separate capture sequences",
        ),
        (903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"),
        (904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"),
        (
            905,
            "cudaErrorStreamCaptureIsolation",
            "dependency created on uncaptured work in another stream",
        ),
        (
            906,
            "cudaErrorStreamCaptureImplicit",
            "operation would make the legacy stream depend on a capturing blocking stream",
        ),
        (
            907,
            "cudaErrorCapturedEvent",
            "operation not permitted on an event last recorded in a capturing stream",
        ),
        (
            908,
            "cudaErrorStreamCaptureWrongThread",
            "attempt to terminate a thread-local capture sequence from another thread",
        ),
    ],
)
def test_errors_have_cuda_s_own_names_and_texts(
    cuda: Cuda, number: int, name: str, text: str
) -> None:
    assert cuda.library.cudaGetErrorName(number).decode() == name
    assert cuda.library.cudaGetErrorString(number).decode() == text


@pytest.mark.parametrize(
    ("devices", "chosen", "error"), [("2", 1, 0), ("2", 2, 101), ("0", 0, 100)]
)
def test_there_are_as_many_devices_as_the_environment_says(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, devices: str, chosen: int, error: int
) -> None:
    monkeypatch.setenv("EMULATION_DEVICES", devices)
    try:
        assert cuda.library.cudaSetDevice(chosen) == error
    finally:
        monkeypatch.setenv("EMULATION_DEVICES", "1")
        cuda.library.cudaSetDevice(0)


# What captures swallow ----------------------------------------------------------------------------


@dataclass
class Watched:
    """A runtime of its own, which tells what its captures take in."""

    cuda: Cuda
    path: Path

    @property
    def seen(self) -> Swallow:
        return record.parse(self.path.read_bytes())


@pytest.fixture
def watched(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    # A copy of the library is another library: its record begins with its first device.
    shutil.copy(library, tmp_path / "cuda.so")
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "record"))
    watched = Watched(Cuda(tmp_path / "cuda.so"), tmp_path / "record")
    assert watched.cuda.library.cudaSetDevice(0) == SUCCESS
    return watched


def on_another_thread(body: Callable[[], object]) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def test_a_process_that_captures_nothing_swallows_nothing(watched: Watched) -> None:
    stream = watched.cuda.stream()
    on_another_thread(lambda: stream.put("work"))
    stream.synchronize()
    assert watched.seen == Swallow()


def test_the_record_tells_whose_work_went_into_which_capture(watched: Watched) -> None:
    stream, other = watched.cuda.stream(), watched.cuda.stream()
    for foreign in (0, 2):
        assert stream.begin() == SUCCESS
        stream.put("own")
        for _ in range(foreign):
            on_another_thread(lambda: stream.put("foreign"))
        on_another_thread(lambda: other.put("on a stream that nobody captures"))
        watched.cuda.destroy(stream.end()[1])
    other.synchronize()
    seen = watched.seen
    assert (seen.windows, seen.own, seen.foreign) == (2, 2, 2)
    assert [(one.api, one.count) for one in seen.calls] == [("cudaLaunchHostFunc", 2)]
    assert [one.window for one in seen.first] == [2, 2]


def test_work_that_a_capture_refuses_is_told_and_not_swallowed(watched: Watched) -> None:
    stream = watched.cuda.stream()
    stream.begin()
    on_another_thread(stream.synchronize)
    on_another_thread(lambda: stream.put("refused"))
    stream.put("refused to who captures, too")
    stream.end()
    seen = watched.seen
    assert (seen.windows, seen.own, seen.foreign, seen.refused) == (1, 0, 0, 2)
    assert {one.api for one in seen.calls} == {
        "cudaStreamSynchronize (refused)",
        "cudaLaunchHostFunc (refused)",
    }


def test_a_stream_that_joins_a_capture_swallows_too(watched: Watched) -> None:
    origin, joined, event = watched.cuda.stream(), watched.cuda.stream(), watched.cuda.event()
    origin.begin()
    origin.put("own")
    watched.cuda.record(event, origin)
    joined.wait(event)
    on_another_thread(lambda: joined.put("foreign"))
    origin.end()
    assert (watched.seen.own, watched.seen.foreign) == (1, 1)
