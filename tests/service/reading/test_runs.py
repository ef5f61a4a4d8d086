"""Runs as pages show them: the list, and one run in the table of the issue."""

from __future__ import annotations

from uuid import uuid4

from runner import result
from service import rows
from service.database import Database
from service.reading import runs
from service.reading.builds import build_lines
from service.reading.rate import Mark
from service.reading.runs import RunFilter, RunPage
from service.tables import BuildState, CommitBuild, Run, RunState
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def read(shown: Shown, name: str) -> RunPage:
    database, made = shown
    with database.session() as session:
        found = runs.read(session, made.runs[name])
    assert found is not None
    return found


def test_the_table_has_the_issue_s_rows_in_its_order(shown: Shown) -> None:
    run = read(shown, "race")
    assert [row.name for row in run.rows[:3]] == [
        "stock, background",
        "stock, alone",
        "unregistered, background",
    ]
    first = run.rows[0]
    assert (first.rate.n, first.rate.k) == (10, 10)
    assert first.rate.counts == (("capture_error", 9), ("crash", 1))
    assert (first.mark, first.rate.rate) == (Mark.RACES, 1.0)
    assert 0.69 < first.rate.low < 0.70


def test_infrastructure_errors_are_shown_and_count_for_no_rate(shown: Shown) -> None:
    row = read(shown, "race").rows[2]
    assert (row.rate.n, row.rate.trials) == (10, 11)
    assert ("infra_error", 1) in row.rate.counts


def test_failures_are_grouped_by_signature_and_lead_to_a_trial(shown: Shown) -> None:
    failures = read(shown, "race").failures
    assert [(f.count, f.outcome) for f in failures[:2]] == [(14, "capture_error"), (2, "data_loss")]
    assert failures[0].signature == "cudaErrorStreamCaptureInvalidated"
    assert "stock, background" in failures[0].cells
    assert failures[0].trial > 0


def test_parity_is_told(shown: Shown) -> None:
    parity = read(shown, "race").parity
    assert parity is not None
    assert parity["status"] == "identical"


def test_a_broken_commit_has_nothing_to_run_and_its_builds_have_the_reason(shown: Shown) -> None:
    run = read(shown, "broken")
    assert (run.done, run.wanted) == (0, 0)
    assert {row.mark for row in run.rows} == {Mark.BUILD_ERROR}
    assert all(build.mark is Mark.BUILD_ERROR and build.has_log for build in run.builds)


def test_a_run_under_way_shows_progress_and_who_holds_what(shown: Shown) -> None:
    run = read(shown, "running")
    assert run.is_open
    assert (run.done, run.wanted) == (4, 15)
    (claim,) = run.claims
    assert (claim.worker, claim.trials, claim.recorded) == ("gpu-host-7", 15, 4)
    assert [(row.done, row.wanted, row.held) for row in run.rows] == [
        (2, 6, 4),
        (2, 3, 1),
        (0, 6, 6),
    ]
    assert run.rows[2].mark is Mark.RUNNING


def test_a_run_that_waits_for_an_approval_says_of_which_commit(shown: Shown) -> None:
    run = read(shown, "awaiting")
    assert run.approval is not None
    assert (run.approval.pull, run.approval.sha) == (2800, run.sha)
    assert {row.mark for row in run.rows} == {Mark.AWAITING}
    assert read(shown, "queued").approval is None


def test_an_emulated_run_says_so(shown: Shown) -> None:
    assert read(shown, "emulated").emulated
    assert not read(shown, "race").emulated


def test_a_run_that_is_not_there_is_none(shown: Shown) -> None:
    database, _ = shown
    with database.session() as session:
        assert runs.read(session, uuid4()) is None


def test_the_list_is_newest_first_and_counts_what_cells_say(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = runs.read_list(session, RunFilter(subject="te"))
    times = [run.created_at for run in found.runs]
    assert times == sorted(times, reverse=True)
    race = next(run for run in found.runs if run.id == made.runs["race"])
    assert race.marks == ((Mark.RACES, 4), (Mark.UNDERSAMPLED, 7))
    assert (race.done, race.wanted) == (94, 94)
    assert found.older is None


def test_filters_all_have_to_fit(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        waiting = runs.read_list(session, RunFilter(state=RunState.AWAITING_APPROVAL)).runs
        pull = runs.read_list(session, RunFilter(pull=2801)).runs
        both = runs.read_list(session, RunFilter(subject="demo", pull=2801)).runs
        emulated = runs.read_list(session, RunFilter(queue="emulated")).runs
    assert [run.id for run in waiting] == [made.runs["awaiting"]]
    assert [run.id for run in pull] == [made.runs["queued"]]
    assert both == ()
    assert all(run.emulated for run in emulated)


def test_the_list_goes_on_where_a_page_ended(db: Database) -> None:
    with db.session() as session:
        for n in range(runs.RUNS + 5):
            session.add(Run(subject="te", matrix_name=f"m{n}", queue="sm90"))
            session.flush()
    with db.session() as session:
        first = runs.read_list(session, RunFilter())
        assert first.older == first.runs[-1].id
        rest = runs.read_list(session, RunFilter(before=first.older))
    assert len(rest.runs) == 5
    assert rest.older is None
    assert not {run.id for run in first.runs} & {run.id for run in rest.runs}


def test_a_build_that_the_infrastructure_never_made_is_marked(db: Database) -> None:
    with db.session() as session:
        commit = rows.commit_row(session, "te", result.Commit("a" * 40, "main"))
        session.add(
            CommitBuild(
                commit_id=commit.id, name="stock", toolchain="cu13", architecture="sm90",
                state=BuildState.FAILED, attempts=3, reason="no space left on device",
            )
        )  # fmt: skip
        session.flush()
        assert commit.id is not None
        (line,) = build_lines(session, commit.id)
    assert (line.mark, line.reason, line.attempts) == (
        Mark.INFRA_ERROR,
        "no space left on device",
        3,
    )
