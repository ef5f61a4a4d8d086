"""The status of a commit: which runs give one, of which state, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from sqlmodel import Session

from runner.matrix import Matrix, parse
from runner.outcome import Outcome
from service.database import Database
from service.github import status
from service.github.client import DESCRIPTION_CHARACTERS, GitHub
from service.settings import ServiceSettings
from service.tables import Origin, Run, RunState
from service.tables.columns import now
from tests.service.github.standin import StandIn
from tests.service.stories import (
    ALONE,
    BASE,
    CLEAN,
    FFI13,
    H200,
    HEAD,
    OWNED,
    RACY,
    STOCK,
    run_of,
)

SETTINGS = ServiceSettings(
    github_token=SecretStr("t"), base_url="https://racewatch.example/", database_url=""
)


def told(session: Session, run: Run, settings: ServiceSettings = SETTINGS) -> dict[str, Any]:
    content = status.content(settings, session, {"run": str(run.id)})
    assert content is not None
    return content


def test_a_status_names_its_commit_its_place_and_its_run(db: Database) -> None:
    with db.session() as session:
        run = run_of(session, CLEAN)
        content = told(session, run)
    assert content["repository"] == "NVIDIA/TransformerEngine"
    assert content["sha"] == HEAD
    assert content["context"] == "racewatch/issue-3863/sm90"
    assert content["target_url"] == f"https://racewatch.example/runs/{run.id}"


@pytest.mark.parametrize(
    ("state", "reason", "said", "text"),
    [
        (RunState.AWAITING_APPROVAL, "", "pending", "awaiting approval of aaaaaaaaaaaa"),
        (RunState.QUEUED, "", "pending", "queued"),
        (RunState.BUILDING, "", "pending", "building"),
        (RunState.RUNNING, "", "pending", "running"),
        (RunState.FAILED, "no such ref", "error", "failed: no such ref"),
        (RunState.CANCELLED, "superseded by b", "error", "cancelled: superseded by b"),
    ],
)
def test_before_a_run_is_complete_its_own_state_decides(
    db: Database, state: RunState, reason: str, said: str, text: str
) -> None:
    with db.session() as session:
        content = told(session, run_of(session, RACY, state=state, reason=reason))
    assert (content["state"], content["description"]) == (said, text)


def test_a_race_that_the_base_does_not_have_is_a_failure(db: Database) -> None:
    with db.session() as session:
        run_of(session, CLEAN, BASE, pull=None)
        content = told(session, run_of(session, RACY, base=BASE))
    assert content["state"] == "failure"
    said = "stock, background: newly failing: 100 of 100, base 0 of 100"
    assert content["description"].startswith(said)


def test_a_race_that_the_base_has_too_is_no_failure_and_says_so(db: Database) -> None:
    with db.session() as session:
        run_of(session, RACY, BASE, pull=None)
        content = told(session, run_of(session, RACY, base=BASE))
    assert content["state"] == "success"
    assert "the base already races" in content["description"]


def test_clean_cells_are_a_success(db: Database) -> None:
    with db.session() as session:
        run_of(session, RACY, BASE, pull=None)
        content = told(session, run_of(session, CLEAN, base=BASE))
    assert content["state"] == "success"


def test_too_few_trials_stay_pending_and_say_how_many_are_needed(db: Database) -> None:
    few = dict.fromkeys(CLEAN, (0, 10))
    with db.session() as session:
        run_of(session, few, BASE, pull=None)
        content = told(session, run_of(session, few, base=BASE))
    assert content["state"] == "pending"
    assert "more for clean below 5 %" in content["description"]


def test_what_does_not_ship_decides_nothing(db: Database) -> None:
    with db.session() as session:
        run_of(session, CLEAN, BASE, pull=None)
        content = told(session, run_of(session, {**CLEAN, FFI13: (100, 100)}, base=BASE))
    assert content["state"] == "success"


def test_a_race_with_nothing_to_compare_with_is_a_failure(db: Database) -> None:
    with db.session() as session:
        content = told(session, run_of(session, RACY))
    assert content["state"] == "failure"
    assert content["description"].startswith("stock, background: races: 100 of 100")


def test_while_the_base_is_measured_a_race_waits_for_it(db: Database) -> None:
    with db.session() as session:
        base = run_of(session, None, BASE, pull=None, state=RunState.RUNNING)
        run = run_of(session, RACY, base=BASE)
        waiting = told(session, run)
        base.state = RunState.FAILED
        session.add(base)
        session.flush()
        alone = told(session, run)
    assert waiting["state"] == "pending"
    assert "base not measured" in waiting["description"]
    assert alone["state"] == "failure"


def test_a_base_measured_in_another_environment_is_none(db: Database) -> None:
    with db.session() as session:
        run_of(session, CLEAN, BASE, pull=None, device=replace(H200, driver="570.0"))
        content = told(session, run_of(session, RACY, base=BASE))
    assert "races: 100 of 100" in content["description"]


def test_adaptive_trials_of_the_base_are_no_base(db: Database) -> None:
    with db.session() as session:
        run_of(session, CLEAN, BASE, pull=None, adaptive=True)
        content = told(session, run_of(session, RACY, base=BASE))
    assert "races: 100 of 100" in content["description"]


def test_a_commit_that_shares_the_bases_build_is_no_worse(db: Database) -> None:
    with db.session() as session:
        run_of(session, RACY, BASE, pull=None)
        content = told(session, run_of(session, RACY, base=BASE, builds_of=BASE))
    assert content["state"] == "success"


def test_a_build_that_fails_is_an_error_with_its_first_line(db: Database) -> None:
    why = (Outcome.BUILD_ERROR, "ffi.h:12: error: expected ';'", "the compiler failed")
    broken = dict.fromkeys((STOCK, ALONE, OWNED, FFI13), why)
    with db.session() as session:
        content = told(session, run_of(session, broken=broken, base=BASE))
    assert content["state"] == "error"
    assert content["description"] == "build error: ffi.h:12: error: expected ';'"


def test_a_race_counts_more_than_a_build_that_fails(db: Database) -> None:
    broken = {OWNED: (Outcome.BUILD_ERROR, "error", "why")}
    with db.session() as session:
        content = told(session, run_of(session, RACY, broken=broken))
    assert content["state"] == "failure"


def test_what_the_infrastructure_cost_is_an_error(db: Database) -> None:
    with db.session() as session:
        run = run_of(session, {}, infra=dict.fromkeys(CLEAN, 10))
        content = told(session, run)
    assert content["state"] == "error"
    assert "could not run" in content["description"]


def test_what_is_unsupported_counts_no_more_than_nothing(db: Database) -> None:
    broken = {OWNED: (Outcome.UNSUPPORTED, "not needed", "it captures on its own stream")}
    with db.session() as session:
        content = told(session, run_of(session, CLEAN, broken=broken))
    assert content["state"] == "success"


def test_emulated_is_said_first(db: Database) -> None:
    with db.session() as session:
        content = told(session, run_of(session, RACY, queue="emulated"))
    assert content["description"].startswith("EMULATED: ")
    assert content["context"] == "racewatch/issue-3863/emulated"


def test_of_two_runs_of_a_commit_the_newer_is_told_whichever_changed(db: Database) -> None:
    with db.session() as session:
        older = run_of(session, state=RunState.CANCELLED, reason="run again")
        newer = run_of(session, state=RunState.QUEUED, created_at=now())
        contents = [told(session, older), told(session, newer)]
    assert contents[0] == contents[1]
    assert contents[0]["description"] == "queued"


@pytest.mark.parametrize(
    ("columns", "due"),
    [
        ({"pull": 12, "origin": Origin.PULL_REQUEST}, True),
        ({"pull": 12, "origin": Origin.MANUAL}, True),
        ({"pull": None, "origin": Origin.PUSH}, True),
        ({"pull": None, "origin": Origin.PULL_REQUEST}, False),  # a base
        ({"pull": None, "origin": Origin.MANUAL}, False),
        ({"pull": None, "origin": Origin.BACKFILL}, False),
        ({"pull": 12, "origin": Origin.BISECTION}, False),
        ({"pull": 12, "origin": Origin.IMPORT}, False),
        ({"pull": 12, "origin": Origin.PULL_REQUEST, "head_sha": ""}, False),
    ],
)
def test_github_hears_of_pull_requests_and_branches(
    db: Database, columns: dict[str, Any], due: bool
) -> None:
    with db.session() as session:
        run = run_of(session, CLEAN, **columns)
        assert status.is_due(SETTINGS, run) is due
        assert (status.content(SETTINGS, session, {"run": str(run.id)}) is not None) is due


def test_a_subject_that_is_not_at_github_has_no_status(db: Database) -> None:
    with db.session() as session:
        run = run_of(session, CLEAN)
        run.subject = "elsewhere"
        assert not status.is_due(SETTINGS, run)


def test_a_run_that_is_gone_has_no_status(db: Database) -> None:
    with db.session() as session:
        nobody = "00000000-0000-0000-0000-000000000000"
        assert status.content(SETTINGS, session, {"run": nobody}) is None


def test_what_comes_from_outside_is_one_visible_line(db: Database) -> None:
    reason = "bad\x1b[31m\nref \u202eevil" + "x" * 300
    with db.session() as session:
        run = run_of(session, state=RunState.FAILED)
        run.reason = reason
        content = told(session, run)
    assert content["description"].isprintable()
    assert len(content["description"]) == DESCRIPTION_CHARACTERS


def named(name: str) -> Matrix:
    return parse('[[cells]]\nvariant = "stock"\n', name)


def test_github_takes_every_one_of_these(db: Database, github: StandIn) -> None:
    """Whatever a run is and whatever a matrix is called: the stand-in complains of nothing."""
    with db.session() as session, GitHub(github.url, github.token, pause_s=0) as api:
        runs = [run_of(session, RACY, state=state, reason="é" * 500) for state in RunState]
        runs.append(run_of(session, CLEAN, matrix=named("ünï " * 200)))
        for run in runs:
            content = told(session, run)
            status.send(api, session, content)
    assert github.complaints == []
    assert len(github.statuses) == len(runs)
