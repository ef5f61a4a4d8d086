"""What goes to GitHub, checked as GitHub would, and which failures another attempt can mend."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from runner.errors import InputError
from service.github import client
from service.github.client import GitHub, shortened
from service.github.errors import DeliveryError, Refused, TryAgain, Unavailable
from tests.service.github.standin import (
    DROPPED,
    NO_ANSWER,
    SERVER_ERROR,
    UNAVAILABLE,
    Answer,
    Fault,
    StandIn,
    rate_limited,
    secondary_rate_limited,
)

REPOSITORY = "NVIDIA/TransformerEngine"
SHA = "a" * 40
MARKER = "<!-- racewatch:pull -->"


@pytest.fixture
def api(github: StandIn) -> Iterator[GitHub]:
    with GitHub(github.url, github.token, timeout_s=5.0, pause_s=0.0) as made:
        yield made


def set_status(api: GitHub, sha: str = SHA, repository: str = REPOSITORY) -> None:
    api.set_status(repository, sha, "pending", "racewatch/quick/sm90", "queued", "http://h/runs/1")


def test_a_status_arrives_as_it_was_meant(api: GitHub, github: StandIn) -> None:
    set_status(api)
    status = github.status(SHA, "racewatch/quick/sm90")
    assert status is not None
    assert (status.state, status.description) == ("pending", "queued")
    assert status.target_url == "http://h/runs/1"
    assert github.complaints == []


def test_every_request_has_the_headers_that_github_asks_for(api: GitHub, github: StandIn) -> None:
    set_status(api)
    headers = github.requests[0].headers
    assert headers["accept"] == "application/vnd.github+json"
    assert headers["x-github-api-version"] == client.API_VERSION
    assert headers["authorization"] == f"Bearer {github.token}"
    assert headers["user-agent"] == "racewatch"
    assert headers["content-type"] == "application/json"


def test_a_description_is_cut_to_what_github_takes(api: GitHub, github: StandIn) -> None:
    api.set_status(REPOSITORY, SHA, "error", "c", "é" * 500)
    status = github.status(SHA, "c")
    assert status is not None
    assert status.description == "é" * 139 + "…"
    assert github.complaints == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("short", "short"),
        ("two\nlines\t here", "two lines here"),
        ("x" * 140, "x" * 140),
        ("x" * 141, "x" * 139 + "…"),
        ("x" * 138 + " yz", "x" * 138 + "…"),
    ],
)
def test_a_shortened_description_is_one_line_of_140_characters(given: str, shown: str) -> None:
    assert shortened(given) == shown


def test_a_comment_is_made_then_edited(api: GitHub, github: StandIn) -> None:
    identity = api.create_comment(REPOSITORY, 12, "first")
    api.edit_comment(REPOSITORY, identity, "second")
    assert [c.body for c in github.comments_of(12)] == ["second"]
    assert github.complaints == []


def test_an_own_comment_is_found_by_its_marker_on_a_later_page(
    api: GitHub, github: StandIn
) -> None:
    for n in range(230):
        github.add_comment(12, f"comment {n}", "someone")
    own = api.create_comment(REPOSITORY, 12, f"{MARKER}\nresults")
    assert api.find_comment(REPOSITORY, 12, MARKER) == own
    assert github.count("GET", "/comments") == 3
    assert github.complaints == []


def test_someone_elses_comment_with_the_marker_is_not_ours(api: GitHub, github: StandIn) -> None:
    github.add_comment(12, f"{MARKER}\nedit me", "mallory")
    assert api.find_comment(REPOSITORY, 12, MARKER) is None


def test_an_own_comment_that_quotes_the_marker_later_is_not_meant(
    api: GitHub, github: StandIn
) -> None:
    github.add_comment(12, f"the marker is {MARKER}", github.login)
    assert api.find_comment(REPOSITORY, 12, MARKER) is None


def test_an_apps_token_knows_its_comment_by_being_a_bots() -> None:
    with StandIn(app=True) as github, GitHub(github.url, github.token, pause_s=0) as api:
        github.add_comment(12, f"{MARKER}\nedit me", "mallory")
        own = api.create_comment(REPOSITORY, 12, f"{MARKER}\nresults")
        assert api.find_comment(REPOSITORY, 12, MARKER) == own


@pytest.mark.parametrize("permission", ["admin", "write", "read", "none"])
def test_a_permission_is_githubs_word(api: GitHub, github: StandIn, permission: str) -> None:
    github.permissions["octo-cat"] = permission
    assert api.permission(REPOSITORY, "octo-cat") == permission


def test_who_is_no_user_has_no_permission(api: GitHub) -> None:
    assert api.permission(REPOSITORY, "nobody/../../etc") == "none"


def test_a_permission_in_an_unknown_repository_is_refused_not_none(api: GitHub) -> None:
    with pytest.raises(Refused, match="404"):
        api.permission("nobody/nothing", "octo-cat")


@pytest.mark.parametrize("fault", [SERVER_ERROR, Fault(Answer(408, {"message": "Timeout"}))])
def test_a_server_error_can_be_tried_again(api: GitHub, github: StandIn, fault: Fault) -> None:
    github.fail(fault)
    with pytest.raises(TryAgain) as raised:
        set_status(api)
    assert not isinstance(raised.value, Unavailable)
    set_status(api)


@pytest.mark.parametrize("fault", [UNAVAILABLE, DROPPED])
def test_an_outage_holds_for_all_that_goes_to_github(
    api: GitHub, github: StandIn, fault: Fault
) -> None:
    github.fail(fault)
    with pytest.raises(Unavailable):
        set_status(api)
    set_status(api)


def test_no_answer_in_time_is_an_outage(github: StandIn) -> None:
    github.fail(NO_ANSWER)
    said = r"did not answer POST /repos/.* within 0\.2 s"
    with (
        GitHub(github.url, github.token, timeout_s=0.2) as api,
        pytest.raises(Unavailable, match=said),
    ):
        set_status(api)


def test_nobody_listening_is_an_outage() -> None:
    with StandIn() as github:
        url = github.url
    with GitHub(url, "t") as api, pytest.raises(Unavailable, match="cannot be reached"):
        set_status(api)


def test_a_rate_limit_says_until_when(api: GitHub, github: StandIn) -> None:
    github.fail(rate_limited(1200))
    with pytest.raises(Unavailable, match="rate limit") as raised:
        set_status(api)
    assert raised.value.after_s == pytest.approx(1200, abs=5)


@pytest.mark.parametrize(("told", "waited"), [(90.0, 90.0), (None, 60.0)])
def test_a_secondary_rate_limit_waits_as_told_or_a_minute(
    api: GitHub, github: StandIn, told: float | None, waited: float
) -> None:
    github.fail(secondary_rate_limited(told))
    with pytest.raises(Unavailable) as raised:
        set_status(api)
    assert raised.value.after_s == waited


def test_retry_after_may_be_a_date(github: StandIn) -> None:
    date = "Tue, 03 Nov 2026 12:00:30 GMT"
    github.fail(Fault(Answer(429, {"message": "slow down"}, {"retry-after": date})))
    noon = 1793707200.0  # 2026-11-03 12:00:00 UTC
    with (
        GitHub(github.url, github.token, wall_clock=lambda: noon) as api,
        pytest.raises(Unavailable) as raised,
    ):
        set_status(api)
    assert raised.value.after_s == 30


def test_a_forbidden_request_is_no_rate_limit(api: GitHub, github: StandIn) -> None:
    github.fail(Fault(Answer(403, {"message": "Resource not accessible by personal token"})))
    with pytest.raises(Refused, match="not accessible") as raised:
        set_status(api)
    assert raised.value.status == 403


@pytest.mark.parametrize(
    ("repository", "sha", "status", "said"),
    [
        ("nobody/nothing", SHA, 404, "the token may not see or write it"),
        (REPOSITORY, "b" * 40, 422, "No commit found for SHA"),
    ],
)
def test_what_github_refuses_stays_refused(
    repository: str, sha: str, status: int, said: str
) -> None:
    with (
        StandIn(commits={SHA}) as github,
        GitHub(github.url, github.token) as api,
        pytest.raises(Refused, match=said) as raised,
    ):
        set_status(api, sha, repository)
    assert raised.value.status == status


def test_the_thousand_and_first_status_is_refused_with_githubs_reason(
    api: GitHub, github: StandIn
) -> None:
    set_status(api)
    github.statuses *= 1000
    with pytest.raises(Refused, match="maximum number of statuses"):
        set_status(api)


def test_a_wrong_token_is_refused_and_never_shown(
    github: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with GitHub(github.url, "ghp_secret") as api:
        with pytest.raises(Refused, match="the token is not valid") as raised:
            set_status(api)
        told = f"{api!r} {raised.value} {raised.value.__cause__} {caplog.text}"
    assert "ghp_secret" not in told


@pytest.mark.parametrize("token", ["", "ghp_secret\n", "two words", "ghp_sécret"])
def test_what_cannot_be_a_token_is_named_without_showing_it(token: str) -> None:
    with pytest.raises(InputError, match="RACEWATCH_GITHUB_TOKEN") as raised:
        GitHub("https://api.github.com", token)
    assert token == "" or token not in str(raised.value)


@pytest.mark.parametrize("url", ["", "api.github.com", "ftp://api.github.com", "https://"])
def test_what_cannot_be_an_api_is_named(url: str) -> None:
    with pytest.raises(InputError, match="RACEWATCH_GITHUB_API"):
        GitHub(url, "t")


@pytest.mark.parametrize("name", ["", "TransformerEngine", "a/b/c", "a/..", "a/b?x=1", "../x"])
def test_what_is_no_repository_is_never_sent(api: GitHub, github: StandIn, name: str) -> None:
    with pytest.raises(Refused, match="owner/name"):
        set_status(api, repository=name)
    assert github.requests == []


@pytest.mark.parametrize("sha", ["", "main", "A" * 40, "2.20.2", "../" + "a" * 37])
def test_what_is_no_commit_is_never_sent(api: GitHub, github: StandIn, sha: str) -> None:
    with pytest.raises(Refused, match="commits only"):
        set_status(api, sha)
    assert github.requests == []


def test_a_renamed_repository_is_followed_with_the_same_request(
    api: GitHub, github: StandIn
) -> None:
    github.renamed["nvidia/te"] = "NVIDIA/TransformerEngine"
    set_status(api, repository="NVIDIA/te")
    assert [r.method for r in github.requests] == ["POST", "POST"]
    assert len(github.statuses) == 1


def test_the_token_follows_no_redirect_to_another_host(api: GitHub, github: StandIn) -> None:
    with StandIn() as elsewhere:
        place = {"location": f"{elsewhere.url}/repos/{REPOSITORY}/statuses/{SHA}"}
        github.fail(Fault(Answer(307, {"message": "Temporary Redirect"}, place)))
        with pytest.raises(Refused, match="another host"):
            set_status(api)
        assert elsewhere.requests == []


def test_redirects_come_to_an_end(api: GitHub, github: StandIn) -> None:
    place = {"location": f"/repos/{REPOSITORY}/statuses/{SHA}"}
    github.fail(Fault(Answer(302, {"message": "Found"}, place)), times=10)
    with pytest.raises(Refused, match="more than 3 times"):
        set_status(api)


def test_a_proxys_page_in_place_of_an_answer_can_be_tried_again(
    api: GitHub, github: StandIn
) -> None:
    github.fail(Fault(Answer(200, "<html>sign in</html>")))
    with pytest.raises(TryAgain, match="no JSON"):
        api.create_comment(REPOSITORY, 12, "text")


def test_requests_that_write_keep_the_distance_that_github_asks_for(github: StandIn) -> None:
    with GitHub(github.url, github.token, pause_s=0.3) as api:
        set_status(api)
        set_status(api)
    first, second = (request.at for request in github.requests)
    assert second - first >= 0.3


def test_every_error_is_one_of_a_delivery() -> None:
    assert issubclass(Unavailable, TryAgain)
    assert issubclass(TryAgain, DeliveryError)
    assert issubclass(Refused, DeliveryError)


def test_the_stand_in_refuses_what_github_would(github: StandIn) -> None:
    """The stand-in itself: a check that cannot fail would prove nothing above."""
    good = {
        "authorization": f"Bearer {github.token}",
        "accept": "application/vnd.github+json",
        "x-github-api-version": "2022-11-28",
        "user-agent": "x",
    }
    path = f"{github.url}/repos/{REPOSITORY}/statuses/{SHA}"

    def answer(body: object, **changed: str) -> int:
        headers = {**good, **{k.replace("_", "-"): v for k, v in changed.items()}}
        return httpx.post(path, json=body, headers=headers).status_code

    assert answer({"state": "success"}) == 201
    assert answer({"state": "success"}, authorization="Bearer x") == 401
    assert answer({"state": "success"}, authorization=f"token {github.token}") == 401
    assert answer({"state": "success"}, x_github_api_version="2021-01-01") == 400
    assert answer({"state": "success"}, accept="text/html") == 415
    assert answer({"state": "green"}) == 422
    assert answer({}) == 422
    assert answer({"state": "success", "description": "x" * 141}) == 422
    assert answer({"state": "success", "target_url": "runs/1"}) == 422
    assert answer({"state": "success", "colour": "green"}) == 422
    assert answer(["state"]) == 400
    assert len(github.statuses) == 1
