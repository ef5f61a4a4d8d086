"""The verdict of a cell and the status of a commit, as pages, API and GitHub show them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.rates import judge
from runner.statistics.control import ControlVerdict, judge_control
from runner.statistics.counts import Counts
from runner.statistics.kinds import Kind
from runner.statistics.verdict import (
    STATUS_LENGTH,
    CellVerdict,
    State,
    StatusCell,
    judge_cell,
    status_of,
)

counts = st.integers(0, 120).flatmap(lambda n: st.builds(Counts, st.integers(0, n), st.just(n)))

PROVEN = judge_control(Counts(6, 6), Counts(0, 6))
HIDES = judge_control(Counts(0, 6), Counts(0, 6))
FAILS_ALONE = judge_control(Counts(6, 6), Counts(1, 6))
UNKNOWN = judge_control(Counts(), Counts())


def verdict(
    head: tuple[int, int],
    base: tuple[int, int] | None = None,
    control: ControlVerdict | None = None,
    adaptive: bool = False,
) -> CellVerdict:
    compared = None if base is None else Counts(*base)
    return judge_cell(Counts(*head), compared, 0.05, control, adaptive)


def cell(
    head: tuple[int, int],
    base: tuple[int, int] | None = None,
    name: str = "stock",
    ships: bool = True,
    errors: int = 0,
    unsupported: int = 0,
    control: ControlVerdict | None = None,
) -> StatusCell:
    return StatusCell(name, ships, verdict(head, base, control), errors, unsupported)


@given(counts, st.sampled_from([0.3, 0.05]))
def test_without_a_base_the_verdict_is_the_runners(head: Counts, bound: float) -> None:
    ours, runners = judge_cell(head, None, bound), judge(head.k, head.n, bound)
    assert ours.kind == runners.verdict.value
    assert ours.trials_needed == runners.trials_needed
    assert ours.interval == head.interval


@pytest.mark.parametrize(
    ("head", "base", "label", "text"),
    [
        ((3, 20), None, "races", "races: 3 of 20 failed (3.2 to 37.9 %)"),
        ((0, 100), None, "clean below 5 %", "clean below 5 %: 0 of 100 failed (0 to 3.6 %)"),
        (
            (0, 10),
            None,
            "undersampled",
            "undersampled: 0 of 10 failed (0 to 30.8 %); 62 more for clean below 5 %",
        ),
        ((0, 0), None, "not measured", "not measured"),
        (
            (5, 5),
            (0, 5),
            "newly failing",
            "newly failing: 5 of 5 failed (47.8 to 100 %), base 0 of 5 (0 to 52.2 %), p = 0.004",
        ),
    ],
)
def test_labels_and_sentences(
    head: tuple[int, int], base: tuple[int, int] | None, label: str, text: str
) -> None:
    judged = verdict(head, base)
    assert (judged.label, judged.text) == (label, text)


@pytest.mark.parametrize("base", [None, (10, 10)])
def test_adaptive_trials_are_marked(base: tuple[int, int] | None) -> None:
    judged = verdict((0, 100), base, adaptive=True)
    assert judged.adaptive
    assert judged.text.endswith(" (adaptive trials)")
    assert not verdict((0, 100), base).adaptive


def test_adaptive_trials_have_the_interval_that_allows_for_it() -> None:
    assert verdict((0, 74)).kind is Kind.CLEAN
    adaptive = verdict((0, 74), adaptive=True)
    assert adaptive.kind is Kind.UNDERSAMPLED
    assert adaptive.interval[1] > 0.05
    assert verdict((0, 74 + adaptive.trials_needed), adaptive=True).kind is Kind.CLEAN


@pytest.mark.parametrize(
    ("head", "base"), [((0, 100), None), ((0, 100), (10, 10)), ((10, 10), (10, 10))]
)
def test_on_a_device_that_hides_races_passes_prove_nothing(
    head: tuple[int, int], base: tuple[int, int] | None
) -> None:
    plain, judged = verdict(head, base), verdict(head, base, HIDES)
    assert judged.kind is Kind.UNPROVEN
    assert not judged.no_worse
    assert judged.text == f"{HIDES.text}; otherwise {plain.text}"


@pytest.mark.parametrize(("head", "base"), [((3, 20), None), ((5, 5), (0, 5))])
def test_on_a_device_that_hides_races_failures_still_count(
    head: tuple[int, int], base: tuple[int, int] | None
) -> None:
    assert verdict(head, base, HIDES) == verdict(head, base)


@pytest.mark.parametrize(
    ("head", "base"), [((3, 20), None), ((5, 5), (0, 5)), ((10, 10), (10, 10))]
)
def test_on_a_device_that_fails_by_itself_failures_prove_nothing(
    head: tuple[int, int], base: tuple[int, int] | None
) -> None:
    assert verdict(head, base, FAILS_ALONE).kind is Kind.UNPROVEN


def test_on_a_device_that_fails_by_itself_passes_still_count() -> None:
    assert verdict((0, 100), None, FAILS_ALONE).kind is Kind.CLEAN


@pytest.mark.parametrize("control", [PROVEN, UNKNOWN])
@given(head=counts, base=st.none() | counts)
@settings(deadline=None, max_examples=30)
def test_a_device_that_is_not_found_wanting_changes_nothing(
    control: ControlVerdict, head: Counts, base: Counts | None
) -> None:
    judged = judge_cell(head, base, 0.05, control, base_control=control)
    assert judged == judge_cell(head, base, 0.05)


@pytest.mark.parametrize("control", [HIDES, FAILS_ALONE])
@pytest.mark.parametrize("head", [(0, 0), (0, 10)])
def test_what_is_open_stays_open_on_any_device(
    control: ControlVerdict, head: tuple[int, int]
) -> None:
    assert verdict(head, None, control).kind is verdict(head).kind


def test_passes_on_a_device_that_hides_races_are_no_ground_to_call_it_no_worse() -> None:
    assert verdict((0, 10), (10, 10), PROVEN).no_worse
    assert not verdict((0, 10), (10, 10), HIDES).no_worse
    assert status_of([cell((0, 10), (10, 10), control=HIDES)]).state is State.PENDING


@pytest.mark.parametrize("base_control", [HIDES, FAILS_ALONE])
@pytest.mark.parametrize(
    ("head", "base", "kind"),
    [
        ((100, 100), (0, 100), Kind.UNPROVEN),  # else regressed
        ((100, 100), (100, 100), Kind.UNPROVEN),  # else no worse
        ((0, 100), (100, 100), Kind.CLEAN),  # else fixed
        ((0, 10), (10, 10), Kind.UNDERSAMPLED),  # else fixed
        ((0, 100), (0, 100), Kind.CLEAN),
    ],
)
def test_a_base_on_a_device_that_failed_its_controls_compares_with_nothing(
    base_control: ControlVerdict, head: tuple[int, int], base: tuple[int, int], kind: Kind
) -> None:
    judged = judge_cell(Counts(*head), Counts(*base), 0.05, PROVEN, base_control=base_control)
    assert (judged.kind, judged.no_worse) == (kind, False)
    if kind is Kind.UNPROVEN:
        assert judged.text.startswith("its base is unproven on this device: known-")


@pytest.mark.parametrize(
    ("cells", "state", "text"),
    [
        (
            [cell((5, 5), (0, 5)), cell((0, 100), (0, 100), name="stock, alone")],
            State.FAILURE,
            "stock: newly failing: 5 of 5, base 0 of 5; 1 clean",
        ),
        (
            [cell((20, 20), (5, 20))],
            State.FAILURE,
            "stock: worse: 20 of 20, base 5 of 20",
        ),
        ([cell((3, 20))], State.FAILURE, "stock: races: 3 of 20"),
        (
            [cell((0, 100), (0, 100)), cell((0, 80), (0, 100), name="stock, alone")],
            State.SUCCESS,
            "stock: clean below 5 %: 0 of 100, base 0 of 100; 1 clean",
        ),
        (
            [cell((0, 100), (0, 100)), cell((10, 10), (10, 10), name="stock, background")],
            State.SUCCESS,
            "stock, background: no worse, the base already races: 10 of 10, base 10 of 10; 1 clean",
        ),
        (
            [cell((0, 10), (10, 10))],
            State.SUCCESS,
            "stock: no worse, undersampled: 0 of 10, base 10 of 10; 62 more for clean below 5 %",
        ),
        (
            [cell((0, 100), (10, 10))],
            State.SUCCESS,
            "stock: fixed, clean below 5 %: 0 of 100, base 10 of 10",
        ),
        (
            [cell((1, 100), (0, 100)), cell((0, 100), (0, 100), name="stock, alone")],
            State.PENDING,
            "stock: undersampled: 1 of 100, base 0 of 100; about 550 more of each to tell; 1 clean",
        ),
        ([cell((0, 0))], State.PENDING, "stock: not measured"),
        ([cell((0, 0), errors=1)], State.ERROR, "stock: could not run (1 error)"),
        (
            [cell((0, 0), errors=3), cell((0, 100), name="stock, alone")],
            State.ERROR,
            "stock: could not run (3 errors); 1 clean",
        ),
        (
            [cell((0, 100), control=HIDES)],
            State.ERROR,
            "stock: unproven on this device: clean below 5 %: 0 of 100",
        ),
        ([cell((0, 0), unsupported=4)], State.ERROR, "stock: unsupported"),
        ([cell((5, 5), (0, 5), ships=False)], State.ERROR, "no cell of the matrix ships"),
        ([], State.ERROR, "no cell of the matrix ships"),
    ],
)
def test_states_and_their_texts(cells: list[StatusCell], state: State, text: str) -> None:
    decision = status_of(cells)
    assert (decision.state, decision.text) == (state, text)


CLEAN, OPEN = cell((0, 100), (0, 100)), cell((0, 10), (0, 10))
WORSE, BROKEN = cell((5, 5), (0, 5)), cell((0, 0), errors=2)


@pytest.mark.parametrize(
    ("cells", "state"),
    [
        ([CLEAN, BROKEN, OPEN, WORSE], State.FAILURE),
        ([CLEAN, BROKEN, OPEN], State.PENDING),
        ([CLEAN, BROKEN], State.ERROR),
        ([CLEAN], State.SUCCESS),
    ],
)
def test_the_worst_news_first_then_what_is_open(cells: list[StatusCell], state: State) -> None:
    assert status_of(cells).state is state


def test_cells_that_do_not_ship_and_unsupported_ones_do_not_count() -> None:
    aside = [
        cell((10, 10), (0, 10), name="ffi13", ships=False),
        cell((0, 0), name="softmax", unsupported=4),
    ]
    assert status_of([CLEAN, *aside]) == status_of([CLEAN])


def test_of_several_failing_cells_the_surest_is_named() -> None:
    surest = cell((20, 20), (0, 20), name="surest")
    decision = status_of([WORSE, cell((3, 20), name="alone"), surest])
    assert decision.text == "surest: newly failing: 20 of 20, base 0 of 20; 1 regressed, 1 races"


def test_a_long_name_is_cut_before_the_numbers_are() -> None:
    decision = status_of([cell((1, 100), (0, 10), name="n" * 80), CLEAN])
    assert len(decision.text) == STATUS_LENGTH
    assert "…: undersampled: 1 of 100, base 0 of 10;" in decision.text
    assert decision.text.endswith("(+1 more)")


status_cells = st.builds(
    cell,
    counts.map(lambda c: (c.k, c.n)),
    st.none() | counts.map(lambda c: (c.k, c.n)),
    name=st.text(min_size=1, max_size=120),
    ships=st.booleans(),
    errors=st.integers(0, 3),
    unsupported=st.integers(0, 3),
    control=st.sampled_from([None, PROVEN, HIDES, FAILS_ALONE]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(status_cells, max_size=6))
def test_a_status_always_fits_and_does_not_depend_on_what_does_not_ship(
    cells: list[StatusCell],
) -> None:
    decision = status_of(cells)
    assert 0 < len(decision.text) <= STATUS_LENGTH
    assert decision == status_of([cell for cell in cells if cell.ships])
