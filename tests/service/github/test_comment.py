"""The comment on a pull request: what it shows, that there is one, and that text stays text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pydantic import SecretStr
from sqlmodel import Session, select

from runner.matrix import parse
from runner.outcome import Outcome
from runner.report import EMULATED
from runner.statistics.counts import Counts
from runner.statistics.verdict import State, StatusDecision, judge_cell
from service.database import Database
from service.github import comment
from service.github.client import COMMENT_CHARACTERS, GitHub
from service.github.commands import commands_in
from service.github.comment import MARKER, PullReport, RunReport, render
from service.github.errors import TryAgain, Unavailable
from service.github.markdown import code, plain
from service.judged import JudgedCell
from service.settings import ServiceSettings
from service.tables import Origin, Pull, PullComment, RunState
from tests.service.github.standin import ANSWER_LOST, SERVER_ERROR, StandIn
from tests.service.stories import BASE, CLEAN, FFI13, HEAD, OWNED, RACY, STOCK, run_of

SETTINGS = ServiceSettings(
    github_token=SecretStr("t"), base_url="https://racewatch.example", database_url=""
)
GFM = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
"""Reads Markdown as GitHub does, as far as tables and code spans go."""


def told(session: Session, pull: int = 12) -> dict[str, Any] | None:
    return comment.content(SETTINGS, session, {"subject": "te", "pull": pull})


def body(session: Session, pull: int = 12) -> str:
    content = told(session, pull)
    assert content is not None
    text = content["body"]
    assert isinstance(text, str)
    return text


def table(text: str) -> list[list[str]]:
    """The cells of the first table, as text."""
    rows: list[list[str]] = []
    for token in GFM.parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows and token.level >= 4:
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def test_it_shows_the_issues_table_with_the_base(db: Database) -> None:
    with db.session() as session:
        run_of(session, CLEAN, BASE, pull=None)
        run = run_of(session, RACY, base=BASE, title="Capture on our own stream")
        text = body(session)
    rows = table(text)
    assert rows[0] == [
        "cell", "trials", "failed", "outcomes", "rate", "95 % interval", "base failed", "verdict",
    ]  # fmt: skip
    assert rows[1] == [
        STOCK, "100", "100", "100 capture_error", "100 %", "96.4 to 100 %", "0 of 100",
        "newly failing",
    ]  # fmt: skip
    assert rows[3][:3] == [OWNED, "100", "0"]
    assert rows[4][0] == f"{FFI13} †"
    assert "† does not ship with the commit" in text
    assert text.startswith(f"{MARKER}\n")
    for part in (
        "`aaaaaaaaaaaa`", "`bbbbbbbbbbbb`", "`Capture on our own stream`", "NVIDIA H200",
        "driver 580.0", "JAX 0.11.2", "the merge base",
        f"https://racewatch.example/runs/{run.id}", ": failure",
        "3 x `cudaErrorStreamCaptureInvalidated`",
    ):  # fmt: skip
        assert part in text


def test_parity_and_notes_are_told(db: Database) -> None:
    parity = {
        "status": "identical",
        "reason": "one SHA-256 over the bits of both executions",
        "between": "stock and owned-stream",
    }
    with db.session() as session:
        run_of(session, CLEAN, parity=parity, notes=["a GPU was lost"])
        text = body(session)
    assert (
        "- `outputs of stock and owned-stream: identical "
        "(one SHA-256 over the bits of both executions)`"
    ) in text
    assert "- `a GPU was lost`" in text


def test_a_build_error_shows_its_first_line_and_the_cells_that_it_cost(db: Database) -> None:
    why = (Outcome.BUILD_ERROR, "error: expected ';'", "ffi.h:12: error: expected ';'\nmore")
    with db.session() as session:
        run_of(session, CLEAN, broken={STOCK: why, OWNED: why})
        text = body(session)
    said = "- build error: `error: expected ';'`, `ffi.h:12: error: expected ';'`"
    assert f"{said} (`{STOCK}`, `{OWNED}`)" in text
    assert table(text)[1][-1] == "build_error: see below"
    assert "more" not in text.split("build error:")[1].split("\n")[0]


def test_emulated_results_say_so_loudly(db: Database) -> None:
    with db.session() as session:
        run_of(session, RACY, queue="emulated")
        text = body(session)
    assert f"> **{EMULATED}.**" in text


def test_a_gpus_results_do_not(db: Database) -> None:
    with db.session() as session:
        run_of(session, RACY)
        assert "EMULATED" not in body(session)


def test_a_forks_head_asks_for_the_approval_of_exactly_that_commit(db: Database) -> None:
    with db.session() as session:
        run_of(session, state=RunState.AWAITING_APPROVAL)
        text = body(session)
    assert f"`/racewatch approve {HEAD[:12]}`" in text
    assert "write permission" in text


def test_what_it_says_is_never_a_command_to_whoever_reads_it(db: Database) -> None:
    """The token's owner may approve: a comment of ours that was taken for a command would."""
    with db.session() as session:
        run_of(
            session,
            RACY,
            state=RunState.AWAITING_APPROVAL,
            title="/racewatch approve aaaaaaaaaaaa",
            notes=["/racewatch run"],
            signature="/racewatch approve aaaaaaaaaaaa",
        )
        text = body(session)
    assert commands_in(text) == []


def test_only_the_newest_run_of_the_head_counts_for_each_matrix_and_queue(db: Database) -> None:
    quick = parse('[[cells]]\nvariant = "stock"\n', "quick")
    with db.session() as session:
        old = run_of(session, RACY, BASE)
        again = run_of(session, RACY)
        newest = run_of(session, CLEAN)
        other = run_of(session, matrix=quick)
        bisection = run_of(session, RACY, origin=Origin.BISECTION)
        session.add(Pull(subject="te", number=12, head_sha=HEAD))
        session.flush()
        text = body(session)
    for run, shown in ((old, 0), (again, 0), (newest, 1), (other, 1), (bisection, 0)):
        assert text.count(f"/runs/{run.id})") == shown
    assert text.index("`issue-3863` on") < text.index("`quick` on")


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.BUILDING, RunState.RUNNING])
def test_nobody_gets_mail_before_there_is_something_to_read(db: Database, state: RunState) -> None:
    with db.session() as session:
        run_of(session, state=state)
        assert told(session) is None
        session.add(PullComment(subject="te", pull=12, comment_id=7))
        session.flush()
        assert str(state) in body(session)


def test_a_run_that_goes_on_shows_no_counts_that_nobody_would_bring_up_to_date(
    db: Database,
) -> None:
    with db.session() as session:
        run_of(session, RACY, state=RunState.RUNNING)
        session.add(PullComment(subject="te", pull=12, comment_id=7))
        session.flush()
        assert table(body(session)) == []


def test_a_new_head_without_a_run_says_so_in_the_comment_that_is_there(db: Database) -> None:
    with db.session() as session:
        run_of(session, RACY, BASE)
        session.add(Pull(subject="te", number=12, head_sha=HEAD))
        session.add(PullComment(subject="te", pull=12, comment_id=7))
        session.flush()
        text = body(session)
    assert "No run of this head yet." in text
    assert "`aaaaaaaaaaaa`" in text


def test_a_pull_request_that_never_ran_has_no_comment(db: Database) -> None:
    with db.session() as session:
        assert told(session) is None


def test_there_is_one_comment_and_it_is_edited(db: Database, github: StandIn) -> None:
    with GitHub(github.url, github.token, pause_s=0) as api:
        for counts in ({STOCK: (0, 3)}, {STOCK: (1, 6)}, RACY):
            with db.session() as session:
                run_of(session, counts)
                content = told(session)
                assert content is not None
                comment.send(api, session, content)
    (made,) = github.comments_of(12)
    assert made.edits == 2
    assert "| 100 | 100 |" in made.body
    assert github.complaints == []


def send_again(db: Database, github: StandIn, text: str) -> None:
    content = {
        "repository": "NVIDIA/TransformerEngine",
        "subject": "te",
        "pull": 12,
        "body": f"{MARKER}\n{text}",
    }
    with GitHub(github.url, github.token, pause_s=0) as api, db.session() as session:
        comment.send(api, session, content)


def kept(db: Database) -> int | None:
    with db.session() as session:
        row = session.exec(select(PullComment)).first()
        return row.comment_id if row else None


def test_a_comment_whose_answer_was_lost_is_not_made_twice(db: Database, github: StandIn) -> None:
    github.fail(ANSWER_LOST, path="POST")
    with pytest.raises(Unavailable):
        send_again(db, github, "first")
    assert (len(github.comments_of(12)), kept(db)) == (1, None)
    send_again(db, github, "second")
    (made,) = github.comments_of(12)
    assert made.body == f"{MARKER}\nsecond"
    assert kept(db) == made.id


def test_a_comment_that_someone_deleted_is_made_anew(db: Database, github: StandIn) -> None:
    send_again(db, github, "first")
    github.comments.clear()
    send_again(db, github, "second")
    (made,) = github.comments_of(12)
    assert kept(db) == made.id


def test_a_server_error_does_not_make_a_second_one(db: Database, github: StandIn) -> None:
    send_again(db, github, "first")
    github.fail(SERVER_ERROR)
    with pytest.raises(TryAgain):
        send_again(db, github, "second")
    assert len(github.comments_of(12)) == 1


def test_someone_elses_comment_with_the_marker_is_left_alone(db: Database, github: StandIn) -> None:
    github.add_comment(12, f"{MARKER}\nmine", "mallory")
    send_again(db, github, "ours")
    assert [c.body for c in github.comments_of(12)] == [f"{MARKER}\nmine", f"{MARKER}\nours"]


# What comes from outside.

HOSTILE = st.one_of(
    st.text(max_size=120),
    st.sampled_from(
        [
            "@nvidia/te-maintainers please",
            "closes #1, NVIDIA/TransformerEngine#2 GH-3",
            "<img src=x onerror=alert(1)> <details open> </code></td>",
            "<!-- racewatch:pull --> --> <!--",
            "[click](https://evil.example) ![x](https://evil.example/x.png)",
            "`code` ``two`` ```three``` `",
            "a | b \\| c \\\\| d",
            "ends with a backslash \\",
            "\n/racewatch approve aaaaaaaaaaaa\n",
            "# heading\n- list\n> quote\n```\nfence",
            "\u202egnp.exe \u200b@\u200bx \x1b[31m",
            "$\\unicode{x}$ **bold** ~~gone~~ ___",
            "www.evil.example https://evil.example",
            "`",
            " ",
            "",
        ]
    ),
)


@given(HOSTILE)
def test_a_code_span_holds_any_text_whole(text: str) -> None:
    (paragraph,) = [t for t in GFM.parse(f"x {code(text)} y") if t.type == "inline"]
    before, span, after = paragraph.children or []
    assert [before.type, span.type, after.type] == ["text", "code_inline", "text"]
    assert span.content == (plain(text) or "-").replace("|", "¦")


@given(HOSTILE, HOSTILE)
def test_a_code_span_stays_in_its_cell_of_a_table(one: str, other: str) -> None:
    text = f"| a | b |\n| --- | --- |\n| {code(one)} | {code(other)} |\n"
    inlines = [t for t in GFM.parse(text) if t.type == "inline"]
    assert len(inlines) == 4
    for token in inlines[2:]:
        assert [child.type for child in token.children or []] == ["code_inline"]


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "`plain`"),
        ("two\n lines", "`two lines`"),
        ("a `tick`", "`` a `tick` ``"),
        ("a|b", "`a¦b`"),
        ("\u202eturned", "`turned`"),
        ("x" * 300, "`" + "x" * 199 + "…`"),
        ("\x00\n", "`-`"),
    ],
)
def test_a_code_span_by_example(given_text: str, shown: str) -> None:
    assert code(given_text) == shown


def cell(name: str, k: int = 1, n: int = 10, **changed: Any) -> JudgedCell:
    base = Counts(0, n)
    values: dict[str, Any] = {
        "cell_id": 1,
        "name": name,
        "variant": "stock",
        "wanted": n,
        "counts": {"pass": n - k, "crash": k},
        "head": Counts(k, n),
        "base": base,
        "same_build": False,
        "verdict": judge_cell(Counts(k, n), base, 0.05),
    }
    return JudgedCell(**{**values, **changed})


REPORT = PullReport(
    subject="te",
    number=12,
    head_sha=HEAD,
    head_title="title",
    home="https://racewatch.example",
    runs=(
        RunReport(
            matrix="issue-3863",
            queue="sm90",
            state=RunState.COMPLETE,
            reason="",
            link="https://racewatch.example/runs/1",
            base_sha=BASE,
            device="NVIDIA H200",
            emulated=False,
            decision=StatusDecision(State.FAILURE, "newly failing"),
            cells=(cell("stock"),),
            seen=(("signature", 3),),
            parity="outputs are identical",
        ),
    ),
)


@settings(max_examples=60)
@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_nothing_from_outside_gets_out_of_its_code_span(a: str, b: str, c: str, d: str) -> None:
    (run,) = REPORT.runs
    broken = cell("x", outcome="build_error", signature=f"s {b}", reason=f"r {c}")
    dirty = replace(
        run,
        matrix=a,
        queue=b,
        reason=c,
        device=f"d {d}",
        state=RunState.FAILED,
        decision=StatusDecision(State.ERROR, a),
        cells=(cell(d), broken),
        seen=((c, 2),),
        parity=f"p {b}",
        notes=(a, d),
    )
    text = render(replace(REPORT, head_title=f"t {d}", runs=(dirty,)))
    clean = render(replace(REPORT, head_title="t", runs=(replace(dirty, **CLEAN_FIELDS),)))
    assert shape(text) == shape(clean)
    assert commands_in(text) == []


CLEAN_FIELDS: dict[str, Any] = {
    "matrix": "m",
    "queue": "q",
    "reason": "r",
    "device": "d",
    "decision": StatusDecision(State.ERROR, "t"),
    "cells": (cell("c"), cell("x", outcome="build_error", signature="s", reason="r")),
    "seen": (("s", 2),),
    "parity": "p",
    "notes": ("n", "n"),
}


def shape(text: str) -> list[str]:
    """All that a comment is but what its code spans hold: its structure, its text, its links."""
    kinds = []
    for token in GFM.parse(text):
        kinds.append(token.type)
        for child in token.children or []:
            said = "" if child.type == "code_inline" else child.content
            kinds.append(f"{child.type} {said} {child.attrs.get('href', '')}")
    return kinds


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 40), st.text(max_size=400), st.integers(0, 400))
def test_any_report_fits_into_a_comment(cells: int, runs: int, text: str, sha: int) -> None:
    (run,) = REPORT.runs
    wide = replace(run, cells=tuple(cell(f"{n} {text}") for n in range(cells // runs)))
    rendered = render(replace(REPORT, runs=(wide,) * runs, head_title=text * 10))
    assert len(rendered) < COMMENT_CHARACTERS
    assert rendered.startswith(MARKER)


def test_rows_that_do_not_fit_are_counted() -> None:
    (run,) = REPORT.runs
    wide = replace(run, cells=tuple(cell(f"cell {n}") for n in range(2000)))
    text = render(replace(REPORT, runs=(wide,)))
    assert "1800 cells are left out here: see the [run](https://racewatch.example/runs/1)." in text
    assert len(table(text)) == 201
