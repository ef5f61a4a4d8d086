"""Whose a new graph node is: its thread's own, foreign, or of no capture at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.detector.record import Swallow

New = Callable[[], Any]


def test_work_of_the_thread_that_captures_is_its_own(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    here.node("one")
    here.end("one", 1)
    here.node("one")
    assert here.seen == Swallow(windows=1, own=1)


def test_work_of_another_thread_is_foreign(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    here.node("loader", "cuMemcpyHtoDAsync_v2")
    here.node("loader", "cuLaunchKernel")
    here.node("loader", "cuLaunchKernel")
    seen = here.seen
    assert (seen.windows, seen.own, seen.foreign) == (1, 0, 3)
    assert [(one.api, one.thread, one.count) for one in seen.calls] == [
        ("cuLaunchKernel", "loader", 2), ("cuMemcpyHtoDAsync_v2", "loader", 1),
    ]  # fmt: skip


def test_the_first_foreign_calls_are_kept_with_their_time_in_the_window(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    here.end("one", 1)
    here.begin("one", 1)
    for _ in range(25):
        here.node("loader")
    first = here.seen.first
    assert [(one.api, one.thread, one.window) for one in first] == [
        ("cuLaunchKernel", "loader", 2)
    ] * 20
    assert 0 <= first[0].ms < first[-1].ms < 60_000
    assert here.seen.foreign == 25


def test_work_may_go_in_before_the_call_that_begins_the_capture_returns(watched: New) -> None:
    here = watched()
    here.opening("one", 1)
    here.node("loader")
    assert (here.seen.windows, here.seen.foreign) == (0, 1)


def test_a_capture_that_did_not_begin_is_no_window(watched: New) -> None:
    here = watched()
    here.begin("one", 1, succeeded=False)
    here.node("loader")
    assert here.seen == Swallow()


def test_a_capture_that_another_thread_ends_is_over(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    here.end("two", 1)
    here.node("loader")
    assert here.seen == Swallow(windows=1)


def test_two_threads_may_capture_streams_of_one_handle(watched: New) -> None:
    # The per-thread default stream is one handle for as many streams as there are threads.
    here = watched()
    for thread in ("one", "two"):
        here.begin(thread, 2)
    here.end("one", 2)
    here.node("two")
    here.node("one")
    assert (here.seen.own, here.seen.foreign) == (1, 1)


def test_more_pairs_of_api_and_thread_than_a_record_has_rows_share_the_last(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    for number in range(70):
        here.node("loader", f"cuCall{number}")
    calls = here.seen.calls
    assert len(calls) == 64
    assert (calls[0].api, calls[0].count) == ("(other)", 7)
    assert sum(one.count for one in calls) == here.seen.foreign == 70


def test_a_long_name_is_cut_and_stays_one_row(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    for _ in range(2):
        here.node("a-thread-with-a-long-name", "c" * 60)
    assert [(one.api, one.thread, one.count) for one in here.seen.calls] == [
        ("c" * 47, "a-thread-with-a", 2)
    ]


THREADS = ("one", "two", "three")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(THREADS),
        st.sampled_from(("begin", "refused", "end", "node", "node")),
        st.integers(1, 2),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_any_order_of_steps_is_counted_as_said(
    watched: New, steps: list[tuple[str, str, int]]
) -> None:
    here = watched()
    held: list[tuple[int, str]] = []
    windows = own = 0
    foreign: Counter[str] = Counter()
    for thread, step, stream in steps:
        if step in ("begin", "refused"):
            here.begin(thread, stream, succeeded=step == "begin")
            windows += step == "begin"
            held += [(stream, thread)] * (step == "begin")
        elif step == "end":
            here.end(thread, stream)
            mine = [at for at, one in enumerate(held) if one == (stream, thread)]
            any_of_it = [at for at, one in enumerate(held) if one[0] == stream]
            for at in (mine or any_of_it)[-1:]:
                del held[at]
        else:
            here.node(thread)
            own += any(owner == thread for _, owner in held)
            foreign[thread] += bool(held) and all(owner != thread for _, owner in held)
    seen = here.seen
    assert (seen.windows, seen.own, seen.foreign) == (windows, own, foreign.total())
    assert {one.thread: one.count for one in seen.calls} == +foreign


def test_a_call_that_a_window_does_not_allow_is_refused(watched: New) -> None:
    here = watched()
    here.begin("one", 1)
    here.refused("one")
    here.refused("loader")
    here.refused("loader", "cuEventQuery")
    here.refused("loader", "cu" + "Long" * 20)
    seen = here.seen
    assert (seen.foreign, seen.refused, seen.reached) == (0, 3, 3)
    assert {(one.api, one.thread, one.count) for one in seen.calls} == {
        ("cuStreamSynchronize (refused)", "loader", 1),
        ("cuEventQuery (refused)", "loader", 1),
        (("cu" + "Long" * 20)[:37] + " (refused)", "loader", 1),
    }
    assert seen.first[0].api == "cuStreamSynchronize (refused)"
    here.end("one", 1)
    here.refused("loader")
    assert here.seen == seen, "there is no window to be refused for"
