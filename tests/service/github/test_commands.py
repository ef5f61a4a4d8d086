"""Commands in comments: only what someone wrote on a line of their own, and meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.github.commands import MAX_COMMANDS, Command, Verb, commands_in


@pytest.mark.parametrize(
    ("comment", "command"),
    [
        ("/racewatch run", Command(Verb.RUN)),
        ("/racewatch   run  ", Command(Verb.RUN)),
        ("/racewatch\trun issue-3863", Command(Verb.RUN, "issue-3863")),
        ("/racewatch RUN quick", Command(Verb.RUN, "quick")),
        ("/racewatch approve 0a1b2c3", Command(Verb.APPROVE, "0a1b2c3")),
        ("/racewatch cancel", Command(Verb.CANCEL)),
        ("/racewatch help", Command(Verb.HELP)),
        ("/racewatch", Command(Verb.HELP)),
        ("Looks good.\r\n\r\n/racewatch run\r\nThanks!", Command(Verb.RUN)),
        ("```\nmake test\n```\n/racewatch run", Command(Verb.RUN)),
        ("~~~\n```\n~~~\n/racewatch run", Command(Verb.RUN)),
    ],
)
def test_a_line_that_begins_so_is_a_command(comment: str, command: Command) -> None:
    assert commands_in(comment) == [command]


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "run it",
        "please /racewatch run",
        " /racewatch run",
        "> /racewatch run",
        "`/racewatch run`",
        "/racewatcher run",
        "/racewatch-run",
        "```\n/racewatch run\n```",
        "```text\n/racewatch run\n",
        "````\n```\n/racewatch run\n```\n````",
        "~~~\n/racewatch run\n~~~",
        "x\x0b/racewatch run",
        "x\u2028/racewatch run",
    ],
)
def test_anything_else_is_none(comment: str) -> None:
    assert commands_in(comment) == []


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("/racewatch fly", "unknown command 'fly'"),
        ("/racewatch approve", "approve needs the commit"),
        ("/racewatch approve abc1234 def5678", "approve takes 1 word after it"),
        ("/racewatch cancel now", "cancel takes no words after it"),
        ("/racewatch run a b", "run takes 1 word after it"),
    ],
)
def test_what_cannot_be_carried_out_says_why(comment: str, problem: str) -> None:
    (command,) = commands_in(comment)

    assert problem in command.problem


def test_several_are_carried_out_in_order_up_to_a_limit() -> None:
    lines = ["/racewatch cancel", *(f"/racewatch run m{n}" for n in range(10))]

    found = commands_in("\n".join(lines))

    assert len(found) == MAX_COMMANDS
    assert found[:2] == [Command(Verb.CANCEL), Command(Verb.RUN, "m0")]


@given(st.text())
def test_no_comment_is_too_strange(comment: str) -> None:
    commands_in(comment)
    commands_in(f"/racewatch {comment}")
