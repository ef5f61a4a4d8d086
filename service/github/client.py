"""GitHub's REST API, as far as results go back through it: statuses, comments, permissions."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urljoin, urlsplit

import httpx

from runner.errors import InputError
from service.github.errors import Refused, TryAgain, Unavailable

API_VERSION = "2022-11-28"
"""The oldest that GitHub serves: its Enterprise Server may know no newer one."""
STATES = ("error", "failure", "pending", "success")
DESCRIPTION_CHARACTERS = 140
COMMENT_CHARACTERS = 65_536
PER_PAGE, MAX_PAGES = 100, 100
TIMEOUT_S = 10.0
PAUSE_S = 1.0
"""Between two requests that change something, which GitHub asks for:
https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api"""
_UNKNOWN_LIMIT_S = 60.0  # to wait, says the same page, where a rate limit tells no time
_REDIRECTS = frozenset({301, 302, 307, 308})
_MAX_REDIRECTS = 3
_OUTAGE = frozenset({502, 503, 504})
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_SHA = re.compile(r"[0-9a-f]{40}")
_HINTS = {
    401: "the token is not valid, or no longer",
    403: "the token may not do this",
    404: "there is no such thing, or the token may not see or write it",
}


class GitHub:
    """A client with a token. Safe to use from several threads, one request that writes at a time.

    api_url: `https://api.github.com`, or `https://host/api/v3` of an Enterprise Server.
    pause_s: least seconds between two requests that change something.
    Every method raises Refused, TryAgain or Unavailable. Raises InputError where the URL or the
    token cannot be one.
    """

    def __init__(
        self,
        api_url: str,
        token: str,
        *,
        timeout_s: float = TIMEOUT_S,
        pause_s: float = PAUSE_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(api_url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise InputError(
                f"RACEWATCH_GITHUB_API: must be like https://api.github.com, got {api_url!r}"
            )
        if not re.fullmatch(r"[!-~]+", token):
            # Not shown, and not left to the HTTP library, whose error would show it.
            raise InputError("RACEWATCH_GITHUB_TOKEN: must be printable characters without spaces")
        self._base = api_url.rstrip("/")
        self._origin = (parts.scheme, parts.netloc)
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._wall_clock = wall_clock
        self._writing = threading.Lock()
        self._last_write: float | None = None
        self._login: str | None = None
        self._http = httpx.Client(
            timeout=timeout_s,
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {token}",
                "User-Agent": "racewatch",
                "X-GitHub-Api-Version": API_VERSION,
            },
        )

    def __repr__(self) -> str:
        return f"GitHub({self._base!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shut the connections."""
        self._http.close()

    def set_status(
        self,
        repository: str,
        sha: str,
        state: str,
        context: str,
        description: str,
        target_url: str = "",
    ) -> None:
        """Set a commit's status. The newest of a context is the one that counts.

        state: of STATES. description: at most 140 characters, a longer one is cut. Source:
        https://docs.github.com/rest/commits/statuses
        """
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, got {state!r}")
        if not _SHA.fullmatch(sha):
            raise Refused(f"GitHub takes statuses of commits only, and {sha!r} is none")
        body = {"state": state, "context": context, "description": shortened(description)}
        if target_url:
            body["target_url"] = target_url
        self._write("POST", f"{self._repository(repository)}/statuses/{sha}", body)

    def create_comment(self, repository: str, number: int, body: str) -> int:
        """Comment on a pull request; GitHub's id of the comment."""
        answer = self._write(
            "POST", f"{self._repository(repository)}/issues/{number}/comments", {"body": body}
        )
        return _identity(answer)

    def edit_comment(self, repository: str, comment_id: int, body: str) -> None:
        """Replace what a comment says. Raises Refused with status 404 where it is gone."""
        self._write(
            "PATCH", f"{self._repository(repository)}/issues/comments/{comment_id}", {"body": body}
        )

    def find_comment(self, repository: str, number: int, marker: str) -> int | None:
        """The id of this token's own oldest comment whose text begins with `marker`.

        Someone else's comment is never meant, whatever it says: a token that may write a
        repository could edit it.
        """
        path = f"{self._repository(repository)}/issues/{number}/comments?per_page={PER_PAGE}"
        for page in self._pages(path):
            for comment in page:
                begins = str(comment.get("body") or "").startswith(marker)
                if begins and self._is_own(comment):
                    return _identity(comment)
        return None

    def permission(self, repository: str, user: str) -> str:
        """What a user may do in a repository: `admin`, `write`, `read` or `none`. Source:
        https://docs.github.com/rest/collaborators/collaborators"""
        login = quote(user, safe="")
        path = f"{self._repository(repository)}/collaborators/{login}/permission"
        try:
            answer = self._read(path)
        except Refused as error:
            if error.status == 404 and "is not a user" in str(error):
                return "none"
            raise
        permission = answer.get("permission") if isinstance(answer, dict) else None
        if not isinstance(permission, str):
            raise TryAgain(f"GitHub answered GET {path} without a permission")
        return permission

    @property
    def login(self) -> str:
        """Whom the token belongs to; empty for an app's, which may not ask. Source:
        https://docs.github.com/rest/users/users"""
        if self._login is None:
            try:
                answer = self._read("/user")
            except Refused as error:
                if error.status != 403:
                    raise
                answer = {}
            self._login = str(answer.get("login", "")) if isinstance(answer, dict) else ""
        return self._login

    def _is_own(self, comment: Mapping[str, Any]) -> bool:
        author = comment.get("user") or {}
        if self.login:
            return str(author.get("login", "")).lower() == self.login.lower()
        return author.get("type") == "Bot"

    def _repository(self, full_name: str) -> str:
        if not _REPOSITORY.fullmatch(full_name) or full_name.endswith(("/.", "/..")):
            raise Refused(f"a repository at GitHub is owner/name, and {full_name!r} is not")
        return f"/repos/{full_name}"

    def _pages(self, path: str) -> Iterator[list[dict[str, Any]]]:
        """The pages of a list, each by the link that the one before gives. Source:
        https://docs.github.com/rest/using-the-rest-api/using-pagination-in-the-rest-api"""
        url = self._base + path
        for _ in range(MAX_PAGES):
            response = self._request("GET", url, None)
            page = _json(response)
            if not isinstance(page, list):
                raise TryAgain(f"GitHub answered GET {urlsplit(url).path} with no list")
            yield page
            following = response.links.get("next", {}).get("url")
            if following is None:
                return
            url = self._own(url, following)

    def _read(self, path: str) -> Any:
        return _json(self._request("GET", self._base + path, None))

    def _write(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        with self._writing:
            if self._last_write is not None:
                time.sleep(max(0.0, self._last_write + self._pause_s - time.monotonic()))
            try:
                return _json(self._request(method, self._base + path, body))
            finally:
                self._last_write = time.monotonic()

    def _request(self, method: str, url: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """The answer to a request, followed to where a renamed repository is now.

        Not by httpx, which would turn a redirected POST into a GET. Source:
        https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api
        """
        for _ in range(_MAX_REDIRECTS + 1):
            what = f"{method} {urlsplit(url).path}"
            response = self._once(method, url, body, what)
            if response.status_code in _REDIRECTS and "location" in response.headers:
                url = self._own(url, response.headers["location"])
                continue
            if response.is_success:
                return response
            raise self._error(response, what)
        raise Refused(f"GitHub redirected {what} more than {_MAX_REDIRECTS} times")

    def _once(
        self, method: str, url: str, body: Mapping[str, Any] | None, what: str
    ) -> httpx.Response:
        try:
            return self._http.request(method, url, json=body)
        except httpx.TimeoutException as error:
            raise Unavailable(
                f"GitHub did not answer {what} within {self._timeout_s:g} s"
            ) from error
        except httpx.RequestError as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"GitHub cannot be reached for {what}: {reason}") from error

    def _own(self, url: str, location: str) -> str:
        """A URL that GitHub names, which must be its own: the token goes there too."""
        absolute = urljoin(url, location)
        parts = urlsplit(absolute)
        if (parts.scheme, parts.netloc) != self._origin:
            raise Refused(
                f"GitHub refers {urlsplit(url).path} to another host, {parts.netloc}; "
                "the token is not sent there"
            )
        return absolute

    def _error(self, response: httpx.Response, what: str) -> Refused | TryAgain:
        status = response.status_code
        said = _said(response)
        sentence = f"GitHub answered {status} to {what}: {said}"
        if status == 429 or (status == 403 and _is_rate_limit(response, said)):
            return Unavailable(sentence, self._limited_for(response))
        if status >= 500:
            after = _seconds(response.headers.get("retry-after", ""), self._wall_clock())
            kind = Unavailable if status in _OUTAGE else TryAgain
            return kind(sentence, after)
        if status == 408:
            return TryAgain(sentence)
        hint = _HINTS.get(status)
        return Refused(f"{sentence}; {hint}" if hint else sentence, status)

    def _limited_for(self, response: httpx.Response) -> float:
        """Seconds until a rate limit ends: what GitHub's page on them says to go by."""
        now = self._wall_clock()
        after = _seconds(response.headers.get("retry-after", ""), now)
        if after is not None:
            return after
        reset = response.headers.get("x-ratelimit-reset", "")
        if response.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
            return max(1.0, float(reset) - now)
        return _UNKNOWN_LIMIT_S


@lru_cache(maxsize=4)
def shared(api_url: str, token: str) -> GitHub:
    """The client of this process for a token, so that its requests keep their distance whoever
    makes them. Raises InputError."""
    return GitHub(api_url, token)


def shortened(description: str, characters: int = DESCRIPTION_CHARACTERS) -> str:
    """A status's description as long as it may be, cut at its end where it is longer."""
    line = " ".join(description.split())
    return line if len(line) <= characters else f"{line[: characters - 1].rstrip()}…"


def _is_rate_limit(response: httpx.Response, said: str) -> bool:
    return (
        "retry-after" in response.headers
        or response.headers.get("x-ratelimit-remaining") == "0"
        or "rate limit" in said.lower()
    )


def _seconds(retry_after: str, now: float) -> float | None:
    """What Retry-After says, seconds or a date (RFC 9110, 10.2.3); None where it says neither."""
    text = retry_after.strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError):
        return None


def _said(response: httpx.Response) -> str:
    """GitHub's own message, with what its validation names, in one line."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not answer.get("message"):
        return response.reason_phrase or "no message"
    parts = [str(answer["message"])]
    errors = answer.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, dict):
            named = [str(error[k]) for k in ("field", "code", "message") if error.get(k)]
            parts.append(" ".join(named))
        else:
            parts.append(str(error))
    return shortened("; ".join(part for part in parts if part), 300)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        request = response.request
        raise TryAgain(
            f"GitHub answered {request.method} {request.url.path} with {response.status_code} and "
            "no JSON; a proxy may have answered instead"
        ) from error


def _identity(answer: Any) -> int:
    identity = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(identity, int):
        raise TryAgain("GitHub answered about a comment without its id")
    return identity
