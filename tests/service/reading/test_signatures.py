"""Failures by signature: counted, first and last seen, and where."""

from __future__ import annotations

from sqlmodel import col, select

from service.database import Database
from service.reading import signatures
from service.reading.signatures import Group, SignatureFilter, SignaturePage
from service.tables import Trial
from tests.service.reading.showcase import Showcase

Shown = tuple[Database, Showcase]


def groups(shown: Shown, *asked: str) -> dict[tuple[str, str], Group]:
    with shown[0].session() as session:
        found = signatures.find(session, SignatureFilter(*asked))
    return {(group.outcome, group.signature): group for group in found}


def one(shown: Shown, outcome: str, signature: str) -> SignaturePage | None:
    with shown[0].session() as session:
        return signatures.read_one(session, "te", "sm90", outcome, signature)


def test_failures_that_are_alike_are_counted_together(shown: Shown) -> None:
    found = groups(shown, "te")
    assert {key: group.trials for key, group in found.items()} == {
        ("capture_error", "cudaErrorStreamCaptureInvalidated"): 4 * (9 + 4 + 1),
        ("crash", "SIGSEGV in cuEventRecord"): 4,
        ("hang", "hang in execute"): 4,
        ("data_loss", "stale rows"): 4 * 2,
    }
    assert {group.commits for group in found.values()} == {4}


def test_emulated_failures_are_a_group_of_their_own(shown: Shown) -> None:
    with shown[0].session() as session:
        found = signatures.find(session, SignatureFilter())
    same = [group for group in found if group.signature == "cudaErrorStreamCaptureInvalidated"]
    assert {(group.subject, group.queue, group.trials) for group in same} == {
        ("te", "sm90", 56),
        ("demo", "emulated", 5),
    }
    assert set(groups(shown, "", "emulated").values()) == {
        same[0] if same[0].trials == 5 else same[1]
    }


def test_errors_of_the_infrastructure_are_no_failures_but_can_be_asked_for(shown: Shown) -> None:
    key = ("infra_error", "cudaErrorMemoryAllocation")
    assert key not in groups(shown, "te")
    assert groups(shown, "te", "", "infra_error")[key].trials == 4
    assert key in groups(shown, "te", "", "")


def test_first_and_last_seen_are_by_time_whatever_was_stored_first(db: Database) -> None:
    from datetime import timedelta

    from tests.service.reading import showcase

    made = showcase.make(db)
    with db.session() as session:
        crashes = session.exec(
            select(Trial).where(Trial.outcome == "crash").order_by(col(Trial.id))
        ).all()
        oldest = crashes[-1].id
        crashes[-1].finished_at -= timedelta(days=2)
    found = groups((db, made), "te")["crash", "SIGSEGV in cuEventRecord"]
    assert (found.first, found.last) == (oldest, crashes[-2].id)
    page = one((db, made), "crash", "SIGSEGV in cuEventRecord")
    assert page is not None
    assert page.line.first.trial == oldest


def test_one_signature_by_commit_cell_and_device(shown: Shown) -> None:
    found = one(shown, "capture_error", "cudaErrorStreamCaptureInvalidated")
    assert found is not None
    assert found.line.group.trials == 56
    assert [(commit.branch, commit.position, commit.count) for commit in found.commits] == [
        ("main", 9, 14), ("main", 8, 14), ("main", 6, 14), ("main", 4, 14),
    ]  # fmt: skip
    assert [(cell.cell.full, cell.count) for cell in found.cells] == [
        ("norm-act-gemm: stock, background", 36),
        ("norm-act-gemm: stock, background, hold 20 ms", 16),
        ("softmax-quantize-router: ffi13, background", 4),
    ]
    ((device, count),) = [(one.environment.device, one.count) for one in found.devices]
    assert (device, count) == ("NVIDIA H200", 56)
    assert len(found.trials) == signatures.TRIALS
    ids = [trial.trial for trial in found.trials]
    assert ids == sorted(ids, reverse=True)


def test_no_such_failure_is_none(shown: Shown) -> None:
    assert one(shown, "crash", "something else") is None
    assert one(shown, "", "") is None


def test_the_list_names_the_commits_of_first_and_last(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        asked = SignatureFilter("te")
        page = signatures.read(session, asked, signatures.find(session, asked))
    crash = next(line for line in page.lines if line.group.outcome == "crash")
    assert crash.first.sha == made.shas["race"]
    assert crash.last.title == "[JAX] Quantize gradients in one pass (#2250)"
    assert page.queues == ("emulated", "sm90")


def test_words_of_a_log_find_a_signature(shown: Shown) -> None:
    found = list(groups(shown, "te").values())
    alike = signatures.with_text(found, "  CUEVENTRECORD sigsegv ")
    assert [group.signature for group in alike] == ["SIGSEGV in cuEventRecord"]
    assert signatures.with_text(found, "SIGSEGV elsewhere") == []
    assert signatures.with_text(found, "") == found


def test_a_failure_is_known_since_the_first_trial_that_ended_so(shown: Shown) -> None:
    database, made = shown
    with database.session() as session:
        found = signatures.known(session, "te", "sm90", "crash", "SIGSEGV in cuEventRecord")
        assert (
            signatures.known(session, "te", "emulated", "crash", "SIGSEGV in cuEventRecord") is None
        )
    assert found is not None
    assert (found.trials, found.commits, found.first.sha) == (4, 4, made.shas["race"])
