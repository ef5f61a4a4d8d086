"""Importing what a runner wrote: every count exact, however often and in what parts it comes."""

from __future__ import annotations

import copy
import json
import threading
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlmodel import Session, SQLModel, col, func, select

from runner import matrix, result
from runner.errors import InputError, ResultError
from runner.outcome import Outcome
from runner.result import Commit, RunEnded, RunStarted, TrialFinished
from service import rows
from service.database import Database
from service.imports import import_all, import_text
from service.runfile import read
from service.tables import (
    Build,
    BuildState,
    Cell,
    Claim,
    CommitBuild,
    Environment,
    Measurement,
    Run,
    RunCell,
    RunState,
    Trial,
    TrialEvidence,
)
from service.tables import Commit as CommitRow
from tests.service import seeds

RESULTS = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*.json"))
RUN = "11111111-2222-4333-8444-555555555555"
MATRIX = matrix.parse(
    """
    title = "three cells"
    [[cells]]
    name = "stock, background"
    variant = "stock"
    trials = 4
    [[cells]]
    name = "owned-stream"
    variant = "owned-stream"
    trials = 4
    [[cells]]
    name = "ffi13"
    variant = "ffi13"
    trials = 4
    """,
    "three",
)
STARTED = RunStarted(
    run=RUN,
    subject="te",
    commit=Commit("a" * 40, "main", "A title", "An author", "2026-07-01T10:00:00+02:00"),
    device=seeds.H200,
    matrix=MATRIX,
    parallel=4,
    sandbox="process",
    toolchain="cu13",
    harness="2",
    started="2026-07-01T12:00:00+00:00",
    trial_mode="fork",
    trials_planned=6,
    builds={
        "stock": {"key": "k-stock", "initialize": ["ActLu"], "facts": {"core": "release"}},
        "instrumented": {"key": "k-instrumented"},
        "ffi13": {"key": "", "outcome": "build_error", "signature": "error: x", "reason": "no"},
    },
)
ENDED = RunEnded(RUN, "complete", finished="2026-07-01T12:05:00+00:00", seconds=300.0)


def trial(index: int, cell: str, outcome: Outcome = Outcome.PASS, **more: Any) -> TrialFinished:
    build = {"stock, background": "k-stock", "owned-stream": "k-instrumented"}.get(cell, "k-stock")
    values = {"run": RUN, "cell": cell, "build": build, **more}
    return seeds.trial(index, outcome, **values)


TRIALS = [
    trial(0, "reference: norm-act-gemm"),
    trial(1, "stock, background", Outcome.CRASH, evidence={"kind": "trial", "output": "bang"}),
    trial(2, "owned-stream"),
    trial(3, "stock, background"),
    trial(4, "owned-stream"),
    trial(5, "ffi13", Outcome.BUILD_ERROR, reason="the compiler says no", build="",
          signature="error: x", evidence={"kind": "build", "output": "x.cpp:1: error: x"}),
]  # fmt: skip


def stream(*events: result.Event) -> str:
    return "".join(result.dump(event) + "\n" for event in events)


def as_result(*events: result.Event) -> str:
    return json.dumps(result.fold(events).as_json(), default=str)


WHOLE = (STARTED, *TRIALS, ENDED)


def counts(session: Session, run: UUID | str = RUN) -> dict[str, dict[str, int]]:
    """Of each cell of a run, as its measurement has them; the outcome of one that could not run."""
    found = {}
    for cell in session.exec(
        select(RunCell).where(RunCell.run_id == UUID(str(run))).order_by(col(RunCell.position))
    ):
        measurement = session.get(Measurement, cell.measurement_id) if cell.measurement_id else None
        shown = {cell.outcome: 1} if cell.outcome else measurement.counts if measurement else {}
        found[cell.name] = {outcome: count for outcome, count in shown.items() if count}
    return found


def stored(db: Database) -> dict[str, int]:
    """How many rows each table has."""
    with db.session() as session:
        return {
            table.name: session.connection()
            .execute(select(func.count()).select_from(table))
            .scalar_one()
            for table in SQLModel.metadata.sorted_tables
        }


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_result_of_a_gpu_has_exactly_its_counts(db: Database, file: Path) -> None:
    text = file.read_text()
    data = json.loads(text)
    with db.session() as session:
        imported = import_text(session, text)
    assert str(imported.run) == data["run"]
    assert (imported.new_trials, imported.created) == (len(data["trials"]), True)
    with db.session() as session:
        assert counts(session, data["run"]) == {
            row["name"]: {outcome: n for outcome, n in row["counts"].items() if n}
            for row in data["cells"]
        }
        run = session.get_one(Run, imported.run)
        assert (run.state, run.queue, run.origin) == ("complete", "sm90", "import")
        assert run.parity == data["parity"]
        assert run.notes == data["notes"]
        recorded = sum(session.exec(select(RunCell.recorded)).all())
        added = [t for t in data["trials"] if t["cell"].startswith(("reference: ", "control: "))]
        assert recorded == len(data["trials"]) - len(added)
        references = session.exec(
            select(Trial.index)
            .join(Measurement, col(Measurement.id) == col(Trial.measurement_id))
            .join(Cell, col(Cell.id) == col(Measurement.cell_id))
            .where(col(Cell.reference).is_(True))
        ).all()
        assert sorted(references) == [t["index"] for t in added]
        kept = session.exec(
            select(Trial.signature, func.count())
            .where(Trial.outcome != "pass")
            .group_by(col(Trial.signature))
        ).all()
        assert dict(kept) == Counter(
            t["signature"] for t in data["trials"] if t["outcome"] != "pass"
        )


def test_results_of_one_build_add_up_and_each_run_shows_them(db: Database) -> None:
    two = [f for f in RESULTS if "harness" not in f.stem and "two-at-a-time" in f.stem]
    assert len(two) == 2
    with db.session() as session:
        for file in two:
            import_text(session, file.read_text())
    with db.session() as session:
        assert session.exec(select(func.count()).select_from(Environment)).one() == 1
        per_run = [counts(session, json.loads(file.read_text())["run"]) for file in two]
        assert per_run[0] == per_run[1]
        assert all(sum(cell.values()) == 18 for cell in per_run[0].values())


def test_a_stream_of_events_and_its_result_are_the_same_run(db: Database) -> None:
    with db.session() as session:
        first = import_text(session, stream(*WHOLE))
        assert (first.new_trials, first.known_trials, first.created) == (5, 0, True)
    before = stored(db)
    with db.session() as session:
        again = import_text(session, as_result(*WHOLE))
        assert (again.new_trials, again.known_trials, again.created) == (0, 5, False)
    assert stored(db) == before
    with db.session() as session:
        assert counts(session) == {
            "stock, background": {"pass": 1, "crash": 1},
            "owned-stream": {"pass": 2},
            "ffi13": {"build_error": 1},
        }


def test_what_a_run_was_is_kept(db: Database) -> None:
    with db.session() as session:
        import_text(session, stream(*WHOLE), requested_by="ci")
    with db.session() as session:
        run = session.get_one(Run, UUID(RUN))
        assert (run.state, run.queue, run.toolchain) == (RunState.COMPLETE, "sm90", "cu13")
        assert (run.ref, run.head_sha, run.requested_by) == ("main", "a" * 40, "ci")
        assert run.started_at == rows.moment_of(STARTED.started)
        assert run.finished_at == rows.moment_of(ENDED.finished)
        assert run.facts["parallel"] == 4
        assert matrix.from_data(run.matrix) == MATRIX
        commit = session.get_one(CommitRow, run.commit_id)
        assert (commit.sha, commit.title, commit.author) == ("a" * 40, "A title", "An author")
        claim = session.get_one(Claim, UUID(RUN))
        assert (claim.state, claim.run_id) == ("done", run.id)
        wanted = session.exec(
            select(RunCell.name, RunCell.wanted, RunCell.recorded).order_by(col(RunCell.position))
        ).all()
        assert wanted == [("stock, background", 4, 2), ("owned-stream", 4, 2), ("ffi13", 4, 0)]
        crash = session.exec(select(Trial).where(Trial.outcome == "crash")).one()
        evidence = session.get_one(TrialEvidence, crash.id)
        assert (evidence.log, evidence.evidence["output"]) == ("bang", "bang")


def test_a_cell_that_could_not_run_says_why(db: Database) -> None:
    with db.session() as session:
        import_text(session, stream(*WHOLE))
    with db.session() as session:
        cell = session.exec(select(RunCell).where(RunCell.name == "ffi13")).one()
        assert (cell.outcome, cell.signature) == ("build_error", "error: x")
        assert cell.decided == "the compiler says no"
        assert cell.measurement_id is None
        build = session.exec(select(Build).where(col(Build.outcome).is_not(None))).one()
        assert build.key == f"none:{'a' * 40} ffi13"


def test_the_commit_has_its_builds(db: Database) -> None:
    with db.session() as session:
        import_text(session, stream(*WHOLE))
    with db.session() as session:
        found = session.exec(
            select(CommitBuild.name, CommitBuild.architecture, CommitBuild.state, Build.key)
            .join(Build, col(Build.id) == col(CommitBuild.build_id))
            .order_by(CommitBuild.name)
        ).all()
        assert found == [
            ("ffi13", "sm90", "done", f"none:{'a' * 40} ffi13"),
            ("instrumented", "sm90", "done", "k-instrumented"),
            ("stock", "sm90", "done", "k-stock"),
        ]


def test_a_build_whose_key_the_run_does_not_tell_has_a_row_too(db: Database) -> None:
    event = replace(STARTED, builds={})
    with db.session() as session:
        import_text(session, stream(event, *TRIALS[:3], ENDED))
    with db.session() as session:
        assert set(session.exec(select(Build.key))) == {"k-stock", "k-instrumented"}
        assert counts(session)["stock, background"] == {"crash": 1}


def test_a_build_that_is_known_to_run_is_not_replaced_by_a_file(db: Database) -> None:
    with db.session() as session:
        import_text(session, stream(*WHOLE))
    worse = {"stock": {"key": "k-stock", "outcome": "build_error", "reason": "not here"}}
    other = str(uuid4())
    event = replace(STARTED, run=other, builds=worse)
    with db.session() as session:
        import_text(session, stream(event, replace(ENDED, run=other)))
    with db.session() as session:
        build = session.exec(select(Build).where(Build.key == "k-stock")).one()
        assert (build.outcome, build.initialize, build.facts) == (
            None,
            ["ActLu"],
            {"core": "release"},
        )


def test_a_build_that_this_service_is_about_to_make_is_left_alone(db: Database) -> None:
    with db.session() as session:
        commit = rows.commit_row(session, "te", STARTED.commit)
        for name, state in (("stock", BuildState.BUILDING), ("instrumented", BuildState.FAILED)):
            session.add(
                CommitBuild(
                    commit_id=commit.id,
                    name=name,
                    toolchain="cu13",
                    architecture="sm90",
                    state=state,
                )
            )
    with db.session() as session:
        import_text(session, stream(*WHOLE))
    with db.session() as session:
        states = session.exec(select(CommitBuild.name, CommitBuild.state)).all()
        assert dict(states) == {"stock": "building", "instrumented": "done", "ffi13": "done"}


def test_the_base_of_a_fixed_commit_is_kept_with_its_trials(db: Database) -> None:
    base = Commit("b" * 40, "", "Its base")
    event = replace(STARTED, base=base)
    added = trial(6, "base: norm-act-gemm", build="k-base")
    with db.session() as session:
        import_text(session, stream(event, TRIALS[0], added, ENDED))
    with db.session() as session:
        run = session.get_one(Run, UUID(RUN))
        assert session.get_one(CommitRow, run.base_commit_id).sha == "b" * 40
        found = session.exec(
            select(Build.key, Cell.variant, Cell.background, Measurement.passed)
            .join(Measurement, col(Measurement.build_id) == col(Build.id))
            .join(Cell, col(Cell.id) == col(Measurement.cell_id))
            .where(col(Cell.reference).is_(True))
            .order_by(Build.key)
        ).all()
        assert found == [("k-base", "stock", False, 1), ("k-stock", "stock", False, 1)]
        of_base = session.exec(
            select(CommitBuild.name).where(CommitBuild.commit_id == run.base_commit_id)
        ).all()
        assert of_base == ["stock"]
        assert run.parity is not None
        assert run.parity["status"] == "identical"


def test_emulated_results_stay_emulated(db: Database) -> None:
    with db.session() as session:
        import_text(session, stream(*WHOLE))
        other = str(uuid4())
        events = [replace(e, run=other) for e in (STARTED, *TRIALS, ENDED)]
        events[0] = replace(
            events[0], device=seeds.EMULATED, subject="demo", toolchain="host compiler"
        )  # type: ignore[call-arg]
        import_text(session, stream(*events))
    with db.session() as session:
        run = session.get_one(Run, UUID(other))
        assert run.queue == "emulated"
        assert session.get_one(Environment, run.environment_id).emulated
        assert session.exec(select(func.count()).select_from(Environment)).one() == 2
        assert counts(session, other) == counts(session)
        assert counts(session, other)["owned-stream"] == {"pass": 2}


@pytest.mark.parametrize("write", [stream, as_result], ids=["events", "result"])
def test_a_stream_that_stops_early_is_taken_as_far_as_it_goes(db: Database, write: Any) -> None:
    with db.session() as session:
        part = import_text(session, write(STARTED, *TRIALS[:3]))
        assert part.new_trials == 3
    with db.session() as session:
        run = session.get_one(Run, UUID(RUN))
        assert (run.state, run.reason) == ("cancelled", "the stream of events stops early")
        assert counts(session)["ffi13"] == {}
        assert run.finished_at is None
    with db.session() as session:
        whole = import_text(session, write(*WHOLE))
        assert (whole.new_trials, whole.known_trials, whole.created) == (2, 3, False)
    with db.session() as session:
        run = session.get_one(Run, UUID(RUN))
        assert (run.state, run.reason) == ("complete", "")
        assert run.parity == json.loads(as_result(*WHOLE))["parity"]
        assert counts(session)["ffi13"] == {"build_error": 1}
    with db.session() as session:
        assert import_text(session, write(STARTED, *TRIALS[:3])).known_trials == 3
    with db.session() as session:
        assert session.get_one(Run, UUID(RUN)).state == "complete"


def test_a_torn_last_line_counts_for_nothing(db: Database) -> None:
    text = stream(STARTED, *TRIALS[:2])
    with db.session() as session:
        assert import_text(session, text[:-40]).new_trials == 1
    with db.session() as session:
        assert import_text(session, text).new_trials == 1


@pytest.mark.parametrize(
    ("status", "state"),
    [("complete", "complete"), ("interrupted", "cancelled"), ("failed", "failed")],
)
def test_the_end_of_a_run_is_its_state(db: Database, status: str, state: str) -> None:
    ended = replace(ENDED, status=status, reason="so it was")
    with db.session() as session:
        import_text(session, as_result(STARTED, *TRIALS, ended))
    with db.session() as session:
        run = session.get_one(Run, UUID(RUN))
        assert (run.state, run.reason) == (state, "so it was")


def test_a_file_that_two_runs_were_written_to_gives_both(db: Database) -> None:
    other = str(uuid4())
    text = stream(*WHOLE) + stream(*(replace(event, run=other) for event in WHOLE))
    with db.session() as session, pytest.raises(ResultError, match=f"this has 2: {RUN}, {other}"):
        import_text(session, text)
    with db.session() as session:
        both = import_all(session, text)
        assert [(str(one.run), one.new_trials) for one in both] == [(RUN, 5), (other, 5)]
    with db.session() as session:
        assert counts(session)["owned-stream"] == {"pass": 4}


def test_a_recipe_that_only_the_run_resolved_is_the_cell_that_was_ordered(db: Database) -> None:
    # A result of before it told the ordered recipe says fp8, and the matrix that shipped auto.
    data = json.loads(next(f for f in RESULTS if f.stem == "h200-te-2.20.2-issue-3863").read_text())
    assert "ordered_recipe" not in data["cells"][0]
    assert data["cells"][0]["recipe"] == "fp8-current-scaling"
    assert read(json.dumps(data))[0].started.matrix.cells == matrix.load("issue-3863").cells
    other = copy.deepcopy(data)
    other["cells"][0]["recipe"] = "bf16"
    assert read(json.dumps(other))[0].started.matrix.cells[0].recipe == "bf16"


def test_the_reference_of_a_recipe_is_of_that_recipe() -> None:
    cells = (replace(MATRIX.cells[0], recipe=matrix.Recipe.BF16), *MATRIX.cells[1:])
    event = replace(STARTED, matrix=replace(MATRIX, cells=cells))
    (written,) = read(stream(event))
    of = {recipe: trial(0, "reference: norm-act-gemm", recipe=recipe) for recipe in ("bf16", "")}
    of["fp8-current-scaling"] = trial(0, "reference: norm-act-gemm")
    found = {recipe: written.reference(event) for recipe, event in of.items()}
    recipes = {recipe: str(cell.recipe) if cell else "" for recipe, cell in found.items()}
    assert recipes == {"bf16": "bf16", "": "bf16", "fp8-current-scaling": "auto"}


def test_runs_of_this_service_are_not_imported_into_it(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
    for known in (seed.run, seed.claim):
        events = [replace(event, run=str(known)) for event in WHOLE]
        with (
            db.session() as session,
            pytest.raises(InputError, match=f"this service ran it itself, as run {seed.run}"),
        ):
            import_text(session, stream(*events))


def test_a_known_run_with_other_cells_or_another_device_is_refused(db: Database) -> None:
    with db.session() as session:
        import_text(session, stream(*WHOLE))
    fewer = replace(STARTED, matrix=replace(MATRIX, cells=MATRIX.cells[:2]))
    elsewhere = replace(STARTED, device=replace(seeds.H200, driver="581.0"))
    with db.session() as session:
        with pytest.raises(ResultError, match="with other cells"):
            import_text(session, stream(fewer))
        with pytest.raises(ResultError, match="in another environment"):
            import_text(session, stream(elsewhere))


def line(event: result.Event, **changed: Any) -> str:
    return json.dumps({**json.loads(result.dump(event)), **changed}) + "\n"


BAD = {
    "empty": ("", "neither a result nor events of a run: it is empty"),
    "blank": (" \n\n", "it is empty"),
    "text": ("hello\nworld\n", "no JSON object"),
    "list": ("[1, 2]", "no JSON object"),
    "object": ("{}", "not a result of a run: it has no 'run'"),
    "too deep": ("[" * 100_000, "no JSON object"),
    "no run": (stream(TRIALS[1]), "line 1: its run event is missing"),
    "torn within": (stream(STARTED) + '{"event": "tri\n' + stream(ENDED), "line 2: not an event"),
    "unknown event": (stream(STARTED) + '{"event": "x", "schema": 1}\n', "line 2: not an event"),
    "no uuid": (line(STARTED, run="x"), "line 1: run must be a UUID, got 'x'"),
    "newer": (line(STARTED, schema=2), "line 1: an event of schema 2, newer than 1"),
    "newer result": (json.dumps({"schema": 2}), "a result of schema 2, newer than 1"),
    "subject": (line(STARTED, subject="llvm"), "unknown subject 'llvm'; known: demo, te"),
    "number for text": (line(STARTED, toolchain=5), "line 1: toolchain: .* got 5"),
    "no toolchain": (line(STARTED, toolchain=""), "toolchain must be 1 to 200 characters, got ''"),
    "device": (line(STARTED, device=7), "line 1: not an event"),
    "device kind": (
        line(STARTED, device={**asdict(seeds.H200), "kind": "tpu", "compute_capability": "9.0"}),
        "device kind must be cuda or emulated, got 'tpu'",
    ),
    "sha": (line(STARTED, commit={"sha": "x" * 300, "ref": ""}), "commit must be 1 to 200"),
    "matrix": (line(STARTED, matrix={"cells": []}), r"needs at least one \[\[cells\]\] table"),
    "build name": (line(STARTED, builds={"best": {"key": "k"}}), "unknown build 'best'"),
    "build key": (line(STARTED, builds={"stock": {"key": "k" * 300}}), "stock's key must be"),
    "no build": (line(STARTED, builds={"stock": {"key": ""}}), "neither a key nor an outcome"),
    "cell": (stream(STARTED, trial(0, "nothing")), "line 2: no cell 'nothing' in its matrix three"),
    "program": (stream(STARTED, trial(0, "reference: x")), "no cell of its matrix runs 'x'"),
    "index": (stream(STARTED, trial(-1, "owned-stream")), "line 2: index must be 0 to"),
    "huge index": (stream(STARTED, trial(2**40, "owned-stream")), "line 2: index must be 0 to"),
    "outcome": (stream(STARTED) + line(TRIALS[1], outcome="maybe"), "line 2: not an event"),
    "seconds": (stream(STARTED) + line(TRIALS[1], seconds="soon"), "line 2: seconds: .* 'soon'"),
    "digests": (stream(STARTED) + line(TRIALS[1], digests=[1]), r"line 2: digests.0: .* got 1"),
    "status": (stream(STARTED) + line(ENDED, status="fine"), "status must be one of complete"),
    "changed": (stream(STARTED, replace(STARTED, parallel=9)), "begins a second time, differently"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence_and_stores_nothing(db: Database, name: str) -> None:
    text, sentence = BAD[name]
    with db.session() as session:
        with pytest.raises(ResultError, match=sentence) as raised:
            import_all(session, text)
        assert "\n" not in str(raised.value)
    assert set(stored(db).values()) == {0}


def test_a_file_whose_second_run_is_refused_stores_nothing_of_the_first(db: Database) -> None:
    with db.session() as session:
        seed = seeds.running(session)
    before = stored(db)
    own = [replace(event, run=str(seed.run)) for event in WHOLE]
    with db.session() as session, pytest.raises(InputError, match="not imported"):
        import_all(session, stream(*WHOLE) + stream(*own))
    # That ends inside of the transaction, which goes on and commits without what was refused.
    assert stored(db) == before


def test_what_postgresql_refuses_is_replaced(db: Database) -> None:
    event = replace(STARTED, commit=replace(STARTED.commit, title="a\x00b\ud800"))
    odd = trial(1, "owned-stream", Outcome.CRASH, signature="nul\x00", seconds=float("nan"),
                evidence={"kind": "trial", "output": "x\x00\udfff"})  # fmt: skip
    with db.session() as session:
        import_text(session, stream(event, odd, replace(ENDED, notes=("\x00",))))
    with db.session() as session:
        assert session.exec(select(CommitRow.title)).one() == "a�b�"
        row = session.exec(select(Trial)).one()
        assert (row.signature, row.seconds) == ("nul�", 0.0)
        assert session.get_one(Run, UUID(RUN)).notes == ["�"]


def test_imports_at_once_count_once(db: Database) -> None:
    begin = threading.Barrier(3)
    other = str(uuid4())
    texts = [stream(*WHOLE), as_result(*WHOLE), stream(*(replace(e, run=other) for e in WHOLE))]
    new: list[int] = []

    def work(text: str) -> None:
        begin.wait()
        with db.session() as session:
            new.append(import_text(session, text).new_trials)

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new) == [0, 5, 5]
    with db.session() as session:
        assert counts(session)["owned-stream"] == {"pass": 4}


def test_ten_thousand_trials_take_few_statements(db: Database) -> None:
    evidence = {"kind": "trial", "output": "line\n" * 200, "error": "e" * 500}
    names = ["stock, background", "owned-stream"]
    many = [
        trial(n, names[n % 2], Outcome.CRASH if n % 4 == 0 else Outcome.PASS, evidence=evidence)
        for n in range(10_000)
    ]
    text = stream(STARTED, *many, ENDED)
    asked: list[str] = []
    sqlalchemy.event.listen(db.engine, "before_cursor_execute", lambda *what: asked.append(what[2]))
    with db.session() as session:
        assert import_text(session, text).new_trials == 10_000
    assert len(asked) < 300, "one by one it would be ten thousand at least"
    with db.session() as session:
        assert counts(session)["stock, background"] == {"pass": 2500, "crash": 2500}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in JSON data."""
    found = [path] if path else []
    items = enumerate(data) if isinstance(data, list) else ()
    for key, inner in data.items() if isinstance(data, dict) else items:
        found += places(inner, (*path, key))
    return found


EVENTS = [json.loads(result.dump(event)) for event in (STARTED, *TRIALS[:2], TRIALS[5], ENDED)]
RESULT = json.loads(as_result(STARTED, *TRIALS[:2], TRIALS[5], ENDED))


@given(st.data(), st.sampled_from([EVENTS, RESULT]), JSON)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_a_file_says_it_is_stored_or_refused_in_a_sentence(
    db: Database, draw: st.DataObject, whole: Any, value: Any
) -> None:
    data = copy.deepcopy(whole)
    *path, last = draw.draw(st.sampled_from(places(data)))
    inner = data
    for key in path:
        inner = inner[key]
    if draw.draw(st.booleans()):
        inner[last] = value
    else:
        del inner[last]
    text = "".join(json.dumps(e) + "\n" for e in data) if whole is EVENTS else json.dumps(data)
    with db.session() as session:
        try:
            import_all(session, text)
        except InputError as error:
            assert str(error)
        session.rollback()
