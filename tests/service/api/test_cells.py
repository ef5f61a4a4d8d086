"""Commits along a branch, their cells, and two of them compared."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import select
from starlette.testclient import TestClient

from runner import matrix, result
from service import rows
from service.database import Database
from service.tables import BranchCommit, Build, CommitBuild, Environment, Measurement
from tests.service.api.history import BROKEN, FIX, GOOD, RACE, History
from tests.service.seeds import EMULATED, MATRIX


def get(client: TestClient, path: str) -> Any:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_commits_come_newest_first_in_pages(client: TestClient, history: History) -> None:
    seen, url = [], "/api/v1/commits?subject=te&branch=main&limit=3"
    while url:
        answer = client.get(url).json()
        seen += [(item["position"], item["sha"]) for item in answer["items"]]
        url = answer["next"]
    assert seen == [(3, BROKEN), (2, FIX), (1, RACE), (0, GOOD)]


@pytest.mark.parametrize("path", ["commits", "cells"])
def test_a_branch_or_subject_of_which_nothing_is_known(
    client: TestClient, history: History, path: str
) -> None:
    answer = client.get(f"/api/v1/{path}?subject=te&branch=dev")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "branch 'dev' of subject 'te' is not known; known: main"
    answer = client.get(f"/api/v1/{path}?subject=other")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no branch of subject 'other' is known"


def verdicts(client: TestClient, query: str = "") -> dict[str, list[tuple[str, int, int]]]:
    found = get(client, f"cells?subject=te{query}")["items"]
    return {
        item["commit"]["sha"]: [(c["verdict"], c["k"], c["n"]) for c in item["cells"]]
        for item in found
    }


def test_cells_of_a_branch(client: TestClient, history: History) -> None:
    assert verdicts(client) == {
        BROKEN: [("not measured", 0, 0)],
        FIX: [("undersampled", 0, 10)],
        RACE: [("races", 6, 10)],
        GOOD: [("clean", 0, 72)],
    }


def test_a_cell_that_no_build_could_give_says_why(client: TestClient, history: History) -> None:
    (cell,) = get(client, "cells?subject=te&limit=1")["items"][0]["cells"]
    assert (cell["outcome"], cell["environment"]) == ("build_error", None)
    assert cell["verdict_text"] == "not measured: build_error: the compiler failed"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"&from={RACE}&to={FIX[:8]}", [FIX, RACE]),
        (f"&from={FIX}", [BROKEN, FIX]),
        (f"&to={GOOD}", [GOOD]),
        (f"&from={FIX}&to={RACE}", []),
    ],
)
def test_a_range_has_both_its_ends(
    client: TestClient, history: History, query: str, expected: list[str]
) -> None:
    assert list(verdicts(client, query)) == expected


def test_cells_come_in_pages(client: TestClient, history: History) -> None:
    seen, url = [], f"/api/v1/cells?subject=te&limit=1&to={FIX}"
    while url:
        answer = client.get(url).json()
        seen += [item["commit"]["sha"] for item in answer["items"]]
        url = answer["next"]
    assert seen == [FIX, RACE, GOOD]


def test_the_bound_may_be_another_one(client: TestClient, history: History) -> None:
    assert verdicts(client, "&clean_below=0.5")[FIX] == [("clean", 0, 10)]
    for bad in ("0", "1", "nan", "x", "-1"):
        assert client.get(f"/api/v1/cells?subject=te&clean_below={bad}").status_code == 422


def test_commits_that_share_a_build_share_its_counts(
    client: TestClient, history: History, db: Database
) -> None:
    with db.session() as session:
        commit = rows.commit_row(session, "te", result.Commit("9" * 40, "main"))
        assert commit.id is not None
        session.add(BranchCommit(subject="te", branch="main", position=4, commit_id=commit.id))
        # Here the build that raced is also what a pull request merged onto the commit would be.
        for name in ("stock", "pr-7+stock"):
            session.add(
                CommitBuild(
                    commit_id=commit.id,
                    name=name,
                    toolchain="cu13",
                    architecture="sm90",
                    state="done",
                    build_id=history.builds[RACE],
                )
            )
    assert verdicts(client)["9" * 40] == [("races", 6, 10)]


def test_what_says_nothing_of_a_commit_is_left_out(
    client: TestClient, history: History, db: Database
) -> None:
    with db.session() as session:
        build = session.get_one(Build, history.builds[RACE])
        environment = session.exec(select(Environment)).one()
        cell = rows.cell_row(session, MATRIX.cells[0])
        adaptive = rows.measurement_row(session, build, cell, environment, adaptive=True)
        adaptive.passed = 50
        alone = matrix.Cell("", MATRIX.cells[0].variant, background=False)
        reference = rows.measurement_row(
            session, build, rows.cell_row(session, alone, reference=True), environment
        )
        reference.passed = 50
        bound = rows.measurement_row(session, build, rows.cell_row(session, alone), environment)
        assert not any(bound.counts.values())
    assert verdicts(client)[RACE] == [("races", 6, 10)]


def test_emulated_trials_stand_apart(client: TestClient, history: History, db: Database) -> None:
    with db.session() as session:
        commit = session.exec(
            select(CommitBuild.commit_id).where(CommitBuild.build_id == history.builds[RACE])
        ).one()
        environment = rows.environment_row(session, EMULATED, "host", "2")
        build = session.get_one(Build, history.builds[RACE])
        session.add(
            CommitBuild(
                commit_id=commit,
                name="stock",
                toolchain="host",
                architecture="emulated",
                state="done",
                build_id=build.id,
            )
        )
        cell = rows.cell_row(session, MATRIX.cells[0])
        rows.measurement_row(session, build, cell, environment).passed = 30
    both = get(client, f"cells?subject=te&from={RACE}&to={RACE}")["items"][0]["cells"]
    assert sorted((c["queue"], c["environment"]["emulated"], c["n"]) for c in both) == [
        ("emulated", True, 30),
        ("sm90", False, 10),
    ]
    one = get(client, f"cells?subject=te&from={RACE}&to={RACE}&queue=emulated")
    assert [c["n"] for c in one["items"][0]["cells"]] == [30]


def test_cells_take_a_fixed_number_of_questions(
    client: TestClient, history: History, db: Database
) -> None:
    asked: list[str] = []

    def note(*arguments: Any) -> None:
        asked.append(arguments[2])

    get(client, "cells?subject=te&limit=1")  # what is kept for a moment is there then
    event.listen(db.engine, "before_cursor_execute", note)
    counts = []
    for limit in (1, 4):
        asked.clear()
        get(client, f"cells?subject=te&limit={limit}")
        counts.append(len(asked))
        # But those of control cells, which have an index of their own.
        trials = [statement for statement in asked if "FROM trials" in statement]
        assert all("WHERE trials.control !=" in statement for statement in trials)
    assert counts[0] == counts[1] <= 8


def test_cells_as_csv(client: TestClient, history: History) -> None:
    answer = client.get("/api/v1/cells?subject=te&format=csv")
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["sha"] for row in found] == [BROKEN, FIX, RACE, GOOD]
    race = found[2]
    assert (race["k"], race["n"], race["rate"], race["capture_error"]) == ("6", "10", "0.6", "6")
    assert (race["device_name"], race["emulated"]) == ("NVIDIA H200", "false")
    assert found[0]["outcome"] == "build_error"
    limited = client.get(f"/api/v1/cells?subject=te&format=csv&limit=1&to={FIX}")
    assert [row["sha"] for row in csv.DictReader(io.StringIO(limited.text))] == [FIX]


# Two commits


def test_a_race_against_a_good_commit(client: TestClient, history: History) -> None:
    found = get(client, f"compare?subject=te&a={GOOD}&b={RACE[:7]}")
    assert (found["a"]["sha"], found["b"]["sha"]) == (GOOD, RACE)
    (cell,) = found["cells"]
    assert (cell["a"]["k"], cell["a"]["n"], cell["b"]["k"], cell["b"]["n"]) == (0, 72, 6, 10)
    assert cell["comparison"]["verdict"] == "regressed"
    assert cell["comparison"]["p"] < 0.01


def test_the_other_way_round_it_is_fixed(client: TestClient, history: History) -> None:
    (cell,) = get(client, f"compare?subject=te&a={RACE}&b={GOOD}&queue=sm90")["cells"]
    assert cell["comparison"]["verdict"] == "fixed"


def test_a_commit_with_itself(client: TestClient, history: History) -> None:
    found = get(client, f"compare?subject=te&a={GOOD}&b={GOOD}")
    assert found["cells"][0]["comparison"]["verdict"] == "clean"
    assert found["outputs_equal"] is True


def test_outputs_are_compared_bit_by_bit(client: TestClient, history: History) -> None:
    same = get(client, f"compare?subject=te&a={GOOD}&b={RACE}")
    assert same["outputs_equal"] is True
    assert same["outputs"][0]["of"] == "stock norm-act-gemm, bf16"
    other = get(client, f"compare?subject=te&a={GOOD}&b={FIX}")
    assert other["outputs_equal"] is False
    assert (other["outputs"][0]["a"], other["outputs"][0]["b"]) == (["d1"], ["d2"])


def test_what_was_measured_at_one_of_them_only_is_not_compared(
    client: TestClient, history: History
) -> None:
    cells = get(client, f"compare?subject=te&a={GOOD}&b={BROKEN}")["cells"]
    assert [cell["comparison"] for cell in cells] == [None, None]
    assert [cell["b"] is None for cell in cells] == [True, False]
    assert get(client, f"compare?subject=te&a={GOOD}&b={RACE}&queue=emulated")["cells"] == []


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        (f"a={GOOD}&b=9", 404, "there is no commit of te '9'"),
        (f"a={GOOD}", 422, "query parameter b: is required"),
        (f"a={GOOD}&b=%00", 422, "query parameter b: must be a commit's hash"),
        (f"a={GOOD}&b={'a' * 65}", 422, "query parameter b: must have at most 64 characters"),
    ],
)
def test_commits_that_are_none(
    client: TestClient, history: History, query: str, status: int, sentence: str
) -> None:
    answer = client.get(f"/api/v1/compare?subject=te&{query}")
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(sentence)


def test_a_beginning_that_several_commits_share(
    client: TestClient, history: History, db: Database
) -> None:
    with db.session() as session:
        rows.commit_row(session, "te", result.Commit("aa" + "0" * 38, "main"))
    answer = client.get(f"/api/v1/compare?subject=te&a=aa&b={RACE}")
    assert answer.status_code == 409
    assert (
        "'aa' is ambiguous, give more of it: aa0000000000, aaaaaaaaaaaa" in answer.json()["detail"]
    )
    assert client.get(f"/api/v1/compare?subject=te&a={GOOD}&b={RACE}").status_code == 200


def test_measurements_stay_what_they_are(history: History, db: Database) -> None:
    """The history that these tests look at counts what its trials were."""
    with db.session() as session:
        counted = sorted((m.k, m.n) for m in session.exec(select(Measurement)))
    assert counted == [(0, 10), (0, 72), (6, 10)]
