"""Storing trials: once each, counted with them, whatever they printed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlmodel import Session, col, func, select

from runner.detector.record import Swallow
from runner.outcome import Outcome
from runner.result import TrialFinished
from service import schema
from service.database import Database
from service.recording import TEXT_CHARACTERS, Finished, record_trial, record_trials
from service.tables import Measurement, RunCell, Trial, TrialEvidence
from tests.service import seeds

CELL = seeds.MATRIX.cells[0].name


def record(
    session: Session, seed: seeds.Seeded, event: TrialFinished, log: str = "", **more: Any
) -> bool:
    return record_trial(
        session,
        claim_id=seed.claim,
        run_id=seed.run,
        run_cell_id=seed.cells[CELL],
        measurement_id=seed.measurements[CELL],
        event=event,
        log=log,
        **more,
    )


def counts(session: Session, seed: seeds.Seeded) -> dict[str, int]:
    row = session.get_one(Measurement, seed.measurements[CELL])
    return {outcome: count for outcome, count in row.counts.items() if count}


def test_a_trial_is_stored_with_its_evidence_and_counted(db: Database) -> None:
    event = seeds.trial(
        7, Outcome.HANG, handlers=("ActLu",), background_updates=12, evidence={"stage": "execute"}
    )
    with db.session() as session:
        seed = seeds.running(session)
        assert record(session, seed, event, "last words\n", finished_at=seeds.NOON)
    with db.session() as session:
        row = session.exec(select(Trial)).one()
        assert (row.index, row.outcome, row.signature) == (7, "hang", "hang somewhere")
        assert (row.digests, row.handlers, row.background_updates) == (["d1", "d1"], ["ActLu"], 12)
        assert row.times == {"compile": 0.5, "execute": 2.0}
        kept = session.get_one(TrialEvidence, row.id)
        assert (kept.evidence, kept.log) == ({"stage": "execute"}, "last words\n")
        assert counts(session, seed) == {"hang": 1}
        measurement = session.get_one(Measurement, seed.measurements[CELL])
        assert measurement.first_trial_at == measurement.last_trial_at == seeds.NOON
        assert session.get_one(RunCell, seed.cells[CELL]).recorded == 1


def test_a_trial_that_comes_twice_counts_once(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
        assert record(session, seed, seeds.trial(0))
        assert not record(session, seed, seeds.trial(0, Outcome.CRASH))
    with db.session() as session:
        assert counts(session, seed) == {"pass": 1}
        assert session.get_one(RunCell, seed.cells[CELL]).recorded == 1


def test_a_trial_whose_transaction_is_undone_is_not_counted(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
    with pytest.raises(ZeroDivisionError), db.session() as session:  # noqa: PT012
        record(session, seed, seeds.trial(0))
        raise ZeroDivisionError
    with db.session() as session:
        assert counts(session, seed) == {}
        assert session.exec(select(func.count()).select_from(Trial)).one() == 0
        assert record(session, seed, seeds.trial(0))


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_count(db: Database, outcome: Outcome) -> None:
    with db.session() as session:
        seed = seeds.running(session)
        record(session, seed, seeds.trial(0, outcome))
    with db.session() as session:
        assert counts(session, seed) == {str(outcome): 1}


def test_a_reference_trial_counts_for_its_measurement_and_no_cell_of_the_run(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
        record_trial(
            session, claim_id=seed.claim, run_id=seed.run, run_cell_id=None,
            measurement_id=seed.measurements[CELL], event=seeds.trial(0), log="",
        )  # fmt: skip
    with db.session() as session:
        assert counts(session, seed) == {"pass": 1}
        assert session.get_one(RunCell, seed.cells[CELL]).recorded == 0


SWALLOWS = (
    (Outcome.PASS, Swallow(windows=2, foreign=5)),
    (Outcome.PASS, Swallow(windows=2)),
    (Outcome.CAPTURE_ERROR, Swallow(windows=1, refused=3)),
    (Outcome.CRASH, Swallow(reason="no CUPTI here")),
    (Outcome.HANG, None),
    (Outcome.INFRA_ERROR, Swallow(windows=1, foreign=1)),
)


def swallow_counts(db: Database, seed: seeds.Seeded) -> tuple[tuple[int, int, int], list[object]]:
    """Watched, swallowed and swallowed passes of a cell, and what each trial's windows took in."""
    with db.session() as session:
        row = session.get_one(Measurement, seed.measurements[CELL])
        trials = session.exec(select(Trial.foreign_nodes).order_by(col(Trial.id))).all()
        return (row.watched, row.swallowed, row.swallowed_passes), list(trials)


def test_foreign_work_is_counted_over_watched_trials(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
        for index, (outcome, swallow) in enumerate(SWALLOWS):
            record(session, seed, replace(seeds.trial(index, outcome), swallow=swallow))
    assert swallow_counts(db, seed) == ((3, 2, 1), [5, 0, 3, None, None, 1])
    # An older database has it in the evidence only.
    schema.downgrade(db.url, "0002")
    schema.upgrade(db.url)
    assert swallow_counts(db, seed) == ((3, 2, 1), [5, 0, 3, None, None, 1])


def test_first_and_last_trial_are_the_earliest_and_the_latest(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
        for index, hours in enumerate((2, 1, 3)):
            at = seeds.NOON + timedelta(hours=hours)
            record(session, seed, seeds.trial(index), finished_at=at)
    with db.session() as session:
        measurement = session.get_one(Measurement, seed.measurements[CELL])
        assert measurement.first_trial_at == seeds.NOON + timedelta(hours=1)
        assert measurement.last_trial_at == seeds.NOON + timedelta(hours=3)


def test_rows_that_the_session_holds_show_the_new_counts_and_keep_their_changes(
    db: Database,
) -> None:
    with db.session() as session:
        seed = seeds.running(session)
    with db.session() as session:
        cell = session.get_one(RunCell, seed.cells[CELL])
        measurement = session.get_one(Measurement, seed.measurements[CELL])
        cell.decided = "enough"
        record(session, seed, seeds.trial(0))
        assert (cell.recorded, cell.decided, measurement.passed) == (1, "enough", 1)


def test_recorders_at_once_lose_no_count_and_count_nothing_twice(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
    begin = threading.Barrier(4)
    new: list[bool] = []

    def work(number: int) -> None:
        begin.wait()
        for index in range(10 * number, 10 * number + 20):  # half of them is another's too
            with db.session() as session:
                new.append(record(session, seed, seeds.trial(index)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(new), sum(new)) == (80, 50)
    with db.session() as session:
        assert counts(session, seed) == {"pass": 50}
        assert session.get_one(RunCell, seed.cells[CELL]).recorded == 50


def test_many_at_once_are_counted_as_one_by_one(db: Database) -> None:
    outcomes = [Outcome.PASS, Outcome.CRASH, Outcome.PASS, Outcome.INFRA_ERROR] * 300
    events = [seeds.trial(index, outcome) for index, outcome in enumerate(outcomes)]
    with db.session() as session:
        seed = seeds.running(session)
        many = [
            Finished(
                seed.claim, seed.run, seed.cells[CELL], seed.measurements[CELL], event, "log",
                None, seeds.NOON,
            )
            for event in [*events, *events[:5]]
        ]  # fmt: skip
        assert [one.event.index for one in record_trials(session, many[:600])] == list(range(600))
        assert [one.event.index for one in record_trials(session, many)] == list(range(600, 1200))
    with db.session() as session:
        assert counts(session, seed) == {"pass": 600, "crash": 300, "infra_error": 300}
        assert session.get_one(RunCell, seed.cells[CELL]).recorded == 1200
        pairs = session.exec(
            select(Trial.index, TrialEvidence.log).join(
                TrialEvidence, col(TrialEvidence.trial_id) == col(Trial.id)
            )
        ).all()
        assert len(pairs) == 1200


def test_a_huge_log_keeps_both_ends(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
        record(session, seed, seeds.trial(0), "begin" + "x" * 5_000_000 + "end")
    with db.session() as session:
        log = session.exec(select(TrialEvidence.log)).one()
        assert log.startswith("begin")
        assert log.endswith("end")
        assert len(log) < 70_000


def test_what_postgresql_refuses_is_replaced_not_lost(db: Database) -> None:
    event = seeds.trial(
        0,
        Outcome.CRASH,
        signature="a\x00b\ud800" + "s" * 5000,
        seconds=float("nan"),
        background_updates=2**40,
        times={"compile": float("inf"), "execute": 1.5},
        evidence={
            "out\x00put": "nul \x00, half \udc80",
            "nan": float("nan"),
            "deep": [{"list": [float("-inf"), None, True, 10**40]}],
            "path": seeds.NOON,
        },
    )
    with db.session() as session:
        seed = seeds.running(session)
        assert record(session, seed, event, "log \x00 \ud83d end")
    with db.session() as session:
        row = session.exec(select(Trial)).one()
        assert row.signature.startswith("a�b�sss")
        assert len(row.signature) == TEXT_CHARACTERS
        assert row.seconds == 0.0
        assert row.times == {"execute": 1.5}
        kept = session.get_one(TrialEvidence, row.id)
        assert kept.log == "log � � end"
        assert kept.evidence["out�put"] == "nul �, half �"
        assert kept.evidence["nan"] == "NaN"
        assert kept.evidence["deep"][0]["list"] == ["-Infinity", None, True, hex(10**40)]
        assert kept.evidence["path"] == str(seeds.NOON)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    ),
    st.text(st.characters()),
)
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_evidence_and_any_log_can_be_stored(db: Database, evidence: Any, log: str) -> None:
    event = seeds.trial(0, Outcome.CRASH, signature=log, evidence={"it": evidence})
    with db.session() as session:
        seed = seeds.running(session)
        assert record(session, seed, event, log)
    with db.session() as session:
        assert session.exec(
            select(TrialEvidence.trial_id).join(Trial).where(Trial.claim_id == seed.claim)
        ).one()


def test_evidence_nested_without_end_is_stored_as_text(db: Database) -> None:
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    with db.session() as session:
        seed = seeds.running(session)
        assert record(session, seed, seeds.trial(0, evidence={"nested": nested}))
