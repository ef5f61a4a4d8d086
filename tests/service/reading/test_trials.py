"""A trial with its evidence, the trials of a measurement, a commit, a build."""

from __future__ import annotations

from sqlmodel import select

from runner import result
from service import rows
from service.database import Database
from service.reading import builds, commits, trials
from service.reading.rate import Mark
from service.reading.trials import TrialFilter
from service.tables import Measurement, Trial, TrialEvidence
from tests.service.reading import showcase
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def test_a_trial_has_its_log_its_evidence_and_where_it_belongs(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        trial = trials.read(session, made.failed_trial)
    assert trial is not None
    assert trial.failed
    assert (trial.subject, trial.sha, trial.run) == ("te", made.shas["race"], made.runs["race"])
    assert trial.log is not None
    assert trial.log.first_error == 6
    assert ("exit status", "1") in trial.facts
    assert ("finished", "no") in trial.facts
    assert [words for words, _ in trial.errors] == ["main thread"]
    assert trial.older is None
    assert trial.newer is not None


def test_once_its_log_is_pruned_a_trial_keeps_its_outcome(db: Database) -> None:
    made = showcase.make(db)
    with db.session() as session:
        session.delete(session.get_one(TrialEvidence, made.failed_trial))
    with db.session() as session:
        trial = trials.read(session, made.failed_trial)
    assert trial is not None
    assert (trial.log, trial.facts, trial.outcome) == (None, (), "capture_error")


def test_an_imported_trial_shows_the_last_lines_that_its_result_kept(shown: Shown) -> None:
    trial = Trial(
        id=1, measurement_id=1, index=0, outcome="crash", signature="SIGSEGV",
        run_id=shown[1].runs["race"], claim_id=shown[1].runs["race"],
    )  # fmt: skip
    view = trials._log(trial, TrialEvidence(trial_id=1, evidence={"output": "only\nthis"}, log=""))
    assert [line.text for line in view.lines] == ["only", "this"]


def test_the_next_failure_is_an_older_one_of_the_same_cell(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        here = session.get_one(Trial, made.failed_trial)
        last = session.exec(
            select(Trial.id).where(Trial.measurement_id == here.measurement_id)
        ).all()[-1]
        assert last is not None
        trial = trials.read(session, last)
    assert trial is not None
    assert trial.next_failure == last - 1


def test_a_measurement_lists_its_trials_by_outcome(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        measurement = session.get_one(Trial, made.failed_trial).measurement_id
        everything = trials.read_measurement(session, measurement, TrialFilter(), 0.05)
        crashes = trials.read_measurement(session, measurement, TrialFilter("crash"), 0.05)
        failed = trials.read_measurement(session, measurement, TrialFilter("failed"), 0.05)
    assert everything is not None
    assert crashes is not None
    assert failed is not None
    assert (len(everything.trials), len(crashes.trials), len(failed.trials)) == (10, 1, 10)
    assert everything.rate.mark is Mark.RACES
    assert {commit.sha for commit in everything.commits} >= {made.shas["race"]}
    assert len(everything.commits) == 2, "a typo in the docs has the same build"


def test_a_measurement_s_trials_go_on_where_a_page_ended(db: Database) -> None:
    made = showcase.make(db)
    with db.session() as session:
        measurement = session.exec(
            select(Measurement.id).where(Measurement.passed > trials.TRIALS // 2)
        ).first()
        assert measurement is not None
    for _ in range(40):
        showcase.one_more(db, made.runs["fix"])
    with db.session() as session:
        first = trials.read_measurement(session, measurement, TrialFilter(), 0.05)
        assert first is not None
        assert first.older == first.trials[-1].id
        rest = trials.read_measurement(session, measurement, TrialFilter(before=first.older), 0.05)
    assert rest is not None
    assert len(first.trials) + len(rest.trials) == 120
    assert rest.older is None


def test_what_is_not_there_is_none(shown: Shown) -> None:
    database, _ = shown
    with database.session() as session:
        assert trials.read(session, 10**9) is None
        assert trials.read_measurement(session, 10**9, TrialFilter(), 0.05) is None
        assert builds.read(session, 10**9) is None
        assert commits.read(session, "te", "f" * 40, 0.05) is None


def test_a_build_has_its_log_at_the_first_error_and_its_commits(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        build = builds.read(session, made.failed_build)
    assert build is not None
    assert build.mark is Mark.BUILD_ERROR
    assert build.log.first_error == 3
    assert [commit.sha for commit in build.commits] == [made.shas["broken"]]


def test_a_commit_has_its_cells_by_environment_its_neighbours_and_runs(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        commit = commits.read(session, "te", made.shas["race"], 0.05)
    assert commit is not None
    (measured,) = commit.measured
    assert measured.environment.device == "NVIDIA H200"
    assert [one.cell.variant for one in measured.cells[:4]] == [
        "stock", "stock", "stock", "unregistered",
    ]  # fmt: skip
    (place,) = commit.places
    assert (place.branch, place.position) == ("main", 4)
    assert place.older
    assert place.newer
    assert [run.id for run in commit.runs] == [made.runs["race"]]
    assert {build.name for build in commit.builds} == {"stock", "instrumented", "ffi13"}


def test_the_beginning_of_a_hash_finds_the_commit_if_it_is_clear(shown: Shown) -> None:
    database, made = shown
    whole = made.shas["race"]
    with database.session() as session:
        assert commits.find(session, "te", whole[:8]) == whole
        assert commits.find(session, "te", whole) == whole
        assert commits.find(session, "te", "ffff") is None
        assert commits.find(session, "te", "%%%%") is None


def test_a_hash_that_is_not_clear_names_those_it_may_be(db: Database) -> None:
    both = ["abcd1" + "0" * 35, "abcd2" + "0" * 35]
    with db.session() as session:
        for sha in both:
            rows.commit_row(session, "te", result.Commit(sha, "main"))
        assert commits.find(session, "te", "abcd") == both
        assert commits.find(session, "te", "abc") is None, "too little to look for"
        assert commits.find(session, "te", "abcd2") == both[1]
