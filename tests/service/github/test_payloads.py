"""Payloads: what is used of them is read exactly, the rest is not looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.errors import InputError
from service.github import payloads
from service.github.payloads import IssueCommentEvent, Other, Ping, PullRequestEvent, Push
from tests.service.github.deliveries import REPOSITORY, comment, pull, push, repository, sha


def parsed(event: str, payload: Any) -> payloads.Payload:
    return payloads.parse(event, json.dumps(payload).encode())


def test_a_push_has_its_head_commit() -> None:
    read = parsed("push", push(sha("a"), commits=3))

    assert isinstance(read, Push)
    assert read.head_commit is not None
    assert (read.head_commit.id, read.head_commit.title) == (sha("a"), "Change 3")
    assert read.head_commit.author.name == "Ada"


@pytest.mark.parametrize(
    ("theirs", "fork"),
    [
        (repository(REPOSITORY), False),
        (repository(REPOSITORY.upper()), False),
        (repository("mallory/TransformerEngine"), True),
        (None, True),
    ],
)
def test_a_fork_is_whatever_is_not_the_bases_own_repository(
    theirs: dict[str, Any] | None, fork: bool
) -> None:
    read = parsed("pull_request", pull("opened", sha("a"), head_repository=theirs))

    assert isinstance(read, PullRequestEvent)
    assert read.pull_request.fork is fork


def test_a_pull_request_whose_two_repositories_are_gone_is_a_forks() -> None:
    payload = pull("opened", sha("a"), head_repository=None)
    payload["pull_request"]["base"]["repo"] = None

    read = parsed("pull_request", payload)

    assert isinstance(read, PullRequestEvent)
    assert read.pull_request.fork


def test_an_author_who_is_gone_is_nobody() -> None:
    payload = comment("/racewatch help")
    payload["comment"]["user"] = None

    read = parsed("issue_comment", payload)

    assert isinstance(read, IssueCommentEvent)
    assert read.comment.user is None


def test_what_a_comment_says_is_not_stored() -> None:
    stored = payloads.as_stored(parsed("issue_comment", comment("my private address is ...")))

    assert "private" not in json.dumps(stored)
    assert stored["comment"]["user"]["login"] == "maria"


def test_what_is_not_used_is_neither_required_nor_stored() -> None:
    read = parsed("star", {"action": "created", "starred_at": None, "novelty": [1, {}]})

    assert read == Other(action="created")
    assert payloads.as_stored(read) == {"action": "created", "repository": None}


def test_an_event_without_an_action_or_a_repository() -> None:
    assert parsed("meta", {}) == Other()
    assert parsed("ping", {"zen": "Design for failure.", "hook_id": 1}) == Ping(
        zen="Design for failure."
    )


def test_nul_is_dropped_which_postgresql_cannot_hold() -> None:
    payload = pull("opened", sha("a"))
    payload["pull_request"]["title"] = "a\x00b"

    read = parsed("pull_request", payload)

    assert isinstance(read, PullRequestEvent)
    assert read.pull_request.title == "ab"


@pytest.mark.parametrize(
    ("event", "payload", "path", "sentence"),
    [
        ("push", push(sha("a")), ("after",), "push delivery, after: field required"),
        ("push", push(sha("a")), ("repository",), "push delivery, repository: field required"),
        (
            "pull_request",
            pull("opened", sha("a")),
            ("pull_request", "head", "sha"),
            "pull_request delivery, pull_request.head.sha: field required",
        ),
        (
            "issue_comment",
            comment("x"),
            ("comment", "created_at"),
            "issue_comment delivery, comment.created_at: field required",
        ),
    ],
)
def test_a_missing_field_is_named(
    event: str, payload: dict[str, Any], path: tuple[str, ...], sentence: str
) -> None:
    inner = payload
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]

    with pytest.raises(InputError) as refused:
        parsed(event, payload)

    assert str(refused.value) == sentence


@pytest.mark.parametrize("value", ["", "a" * 39, "A" * 40, "main", "--upload-pack=x", 5, None])
def test_a_commit_is_forty_hexadecimal_digits(value: object) -> None:
    with pytest.raises(InputError, match="push delivery, after: "):
        parsed("push", push(sha("a")) | {"after": value})


@pytest.mark.parametrize("number", [0, -1, 2**31, "x"])
def test_a_number_is_one_that_a_pull_request_can_have(number: object) -> None:
    payload = pull("opened", sha("a"))
    payload["pull_request"]["number"] = number

    with pytest.raises(InputError, match=r"pull_request\.number"):
        parsed("pull_request", payload)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"ref": "x"',
        b"\xff\xfe",
        b'{"zen": "\xff"}',
        b'{"zen": "\\ud800"}',
        b"[" * 100_000,
        b"NaN",
    ],
)
@pytest.mark.parametrize("event", ["ping", "push", "star"])
def test_what_is_no_json_says_so(event: str, body: bytes) -> None:
    with pytest.raises(InputError):
        payloads.parse(event, body)


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null"])
def test_a_body_that_is_no_object_says_so(body: bytes) -> None:
    with pytest.raises(InputError, match="star delivery, the body: "):
        payloads.parse("star", body)
