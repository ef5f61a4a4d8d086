"""A local stand-in for GitHub: a real HTTP server that checks requests as GitHub would.

It keeps what it was told, and can be told to fail. Nothing of it knows Racewatch's client. What it
checks is from https://docs.github.com/rest; where GitHub lets a mistake pass (a field that it does
not know, a missing content type) the stand-in refuses it, so that a test sees it.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

API_VERSIONS = {"2022-11-28", "2026-03-10"}
STATES = {"error", "failure", "pending", "success"}
STATUSES_PER_CONTEXT = 1000
BODY_CHARACTERS = 65_536
DESCRIPTION_CHARACTERS = 140


@dataclass(frozen=True)
class Status:
    """A commit status as it was told."""

    repository: str
    sha: str
    state: str
    context: str
    description: str
    target_url: str


@dataclass
class Comment:
    """A comment as it stands; `edits` counts how often it was changed."""

    id: int
    repository: str
    number: int
    body: str
    login: str
    bot: bool = False
    edits: int = 0


@dataclass(frozen=True)
class Request:
    """A request as it came in, whatever became of it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at: float


@dataclass(frozen=True)
class Answer:
    """What a request is answered with."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """How requests go wrong.

    answer: given in place of the real one. drop: the connection is cut with no answer. hang: no
    answer until the stand-in closes. applied: what was asked for happens before, and only the
    answer is lost.
    """

    answer: Answer | None = None
    drop: bool = False
    hang: bool = False
    applied: bool = False


SERVER_ERROR = Fault(Answer(500, {"message": "Server Error"}))
UNAVAILABLE = Fault(Answer(503, "<html>unicorn</html>"))
DROPPED = Fault(drop=True)
ANSWER_LOST = Fault(drop=True, applied=True)
NO_ANSWER = Fault(hang=True)


def rate_limited(seconds: float) -> Fault:
    """GitHub's primary rate limit, which ends after that many seconds."""
    headers = {
        "x-ratelimit-limit": "5000",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": str(int(time.time() + seconds)),
    }
    return Fault(Answer(403, {"message": "API rate limit exceeded for user ID 1."}, headers))


def secondary_rate_limited(seconds: float | None) -> Fault:
    """GitHub's secondary rate limit; None: without saying for how long."""
    headers = {} if seconds is None else {"retry-after": f"{seconds:g}"}
    message = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}
    return Fault(Answer(403, message, headers))


class StandIn:
    """GitHub as far as Racewatch talks to it. A context manager; `url` is its API's base.

    repositories: those that there are. token: the only one that is valid; its owner is `login`, or
    an app's bot where `app` is true. commits: those that there are, None for any.
    """

    def __init__(
        self,
        repositories: tuple[str, ...] = ("NVIDIA/TransformerEngine",),
        *,
        token: str = "ghp_standin",
        login: str = "racewatch-bot",
        app: bool = False,
        commits: set[str] | None = None,
    ) -> None:
        self.repositories = {name.lower() for name in repositories}
        self.token = token
        self.login = login
        self.app = app
        self.commits = commits
        self.statuses: list[Status] = []
        self.comments: dict[int, Comment] = {}
        self.permissions: dict[str, str] = {login: "write"}
        self.renamed: dict[str, str] = {}
        self.requests: list[Request] = []
        self.complaints: list[str] = []
        """What requests did wrong. A test that meant to send good ones asserts it to be empty."""
        self._faults: deque[tuple[str, Fault]] = deque()
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._next_id = 1000
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.github = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; requests that hang are let go."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """What RACEWATCH_GITHUB_API is set to."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def fail(self, fault: Fault, times: int = 1, path: str = "") -> None:
        """Let the next `times` requests whose method and path hold `path` go wrong."""
        with self._lock:
            self._faults.extend([(path, fault)] * times)

    def mend(self) -> None:
        """No request goes wrong any more."""
        with self._lock:
            self._faults.clear()

    def status(self, sha: str, context: str) -> Status | None:
        """The one that counts: the newest of its context."""
        with self._lock:
            found = [s for s in self.statuses if (s.sha, s.context) == (sha, context)]
        return found[-1] if found else None

    def comments_of(self, number: int) -> list[Comment]:
        """The comments of a pull request, the oldest first."""
        with self._lock:
            return [c for _, c in sorted(self.comments.items()) if c.number == number]

    def add_comment(self, number: int, body: str, login: str, repository: str = "") -> Comment:
        """Someone comments."""
        with self._lock:
            self._next_id += 1
            name = repository or sorted(self.repositories)[0]
            comment = Comment(self._next_id, name.lower(), number, body, login)
            self.comments[comment.id] = comment
            return comment

    def count(self, method: str, part: str) -> int:
        """Requests of that method whose path holds `part`."""
        with self._lock:
            return sum(r.method == method and part in r.path for r in self.requests)

    # What the handler asks.

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for entry in self._faults:
                if entry[0] in f"{method} {path}":
                    self._faults.remove(entry)
                    return entry[1]
            return None

    def wait_until_closing(self) -> None:
        self._closing.wait()

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            answer = self._checked(request) or self._routed(request)
            if answer.status >= 400:
                said = json.dumps(answer.body)
                self.complaints.append(f"{request.method} {request.path}: {answer.status} {said}")
            return answer

    def _checked(self, request: Request) -> Answer | None:
        headers = request.headers
        if not headers.get("user-agent"):
            return _said(403, "Request forbidden by administrative rules. Send a User-Agent.")
        if headers.get("authorization") != f"Bearer {self.token}":
            return _said(401, "Bad credentials")
        if headers.get("accept") != "application/vnd.github+json":
            return _said(415, "Unsupported 'Accept' header. Must accept 'application/json'.")
        version = headers.get("x-github-api-version")
        if version not in API_VERSIONS:
            return _said(400, f"{version!r} is not a supported version.")
        if request.method in {"POST", "PATCH"}:
            if headers.get("content-type") != "application/json":
                return _said(415, "The content type must be application/json.")
            if not isinstance(request.body, dict):
                return _said(400, "Problems parsing JSON")
        return None

    def _routed(self, request: Request) -> Answer:
        parts = urlsplit(request.path)
        for method, pattern, serve in _ROUTES:
            match = re.fullmatch(pattern, parts.path)
            if match is None or method != request.method:
                continue
            names = {key: unquote(value) for key, value in match.groupdict().items()}
            if "repository" in names:
                name = names["repository"].lower()
                if name in self.renamed:
                    moved = request.path.replace(names["repository"], self.renamed[name], 1)
                    place = {"location": f"{self.url}{moved}"}
                    return Answer(301, {"message": "Moved Permanently"}, place)
                if name not in self.repositories:
                    return _said(404, "Not Found")
                names["repository"] = name
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            return serve(self, names, query, request.body)
        return _said(404, "Not Found")

    def _user(self, names: Any, query: Any, body: Any) -> Answer:
        if self.app:
            return _said(403, "Resource not accessible by integration")
        return Answer(200, {"login": self.login, "id": 1, "type": "User"})

    def _permission(self, names: Any, query: Any, body: Any) -> Answer:
        known = {name.lower(): value for name, value in self.permissions.items()}
        user = names["user"]
        if user.lower() not in known:
            return _said(404, f"{user} is not a user")
        permission = known[user.lower()]
        return Answer(200, {"permission": permission, "role_name": permission})

    def _set_status(self, names: Any, query: Any, body: dict[str, Any]) -> Answer:
        problems = _problems(
            body, {"state": str}, {"context": str, "description": str, "target_url": str}
        )
        if body.get("state") not in STATES:
            problems.append({"field": "state", "code": "custom", "message": "state is not valid"})
        if len(str(body.get("description", ""))) > DESCRIPTION_CHARACTERS:
            message = f"description is too long (maximum is {DESCRIPTION_CHARACTERS} characters)"
            problems.append({"field": "description", "code": "custom", "message": message})
        if not re.fullmatch(r"https?://.+", str(body.get("target_url", "http://none"))):
            problems.append({"field": "target_url", "code": "custom", "message": "must be a URL"})
        sha = names["sha"]
        known = self.commits is None or sha in self.commits
        if not re.fullmatch(r"[0-9a-f]{40}", sha) or not known:
            return _said(422, f"No commit found for SHA: {sha}")
        context = str(body.get("context", "default"))
        same = [s for s in self.statuses if (s.sha, s.context) == (sha, context)]
        if len(same) >= STATUSES_PER_CONTEXT:
            message = "This SHA and context has reached the maximum number of statuses."
            problems.append({"field": "base", "code": "custom", "message": message})
        if problems:
            return _invalid(problems)
        status = Status(
            repository=names["repository"],
            sha=sha,
            state=body["state"],
            context=context,
            description=str(body.get("description", "")),
            target_url=str(body.get("target_url", "")),
        )
        self.statuses.append(status)
        return Answer(201, {"id": len(self.statuses), "state": status.state, "context": context})

    def _list_comments(self, names: Any, query: dict[str, str], body: Any) -> Answer:
        per_page = min(100, int(query.get("per_page", "30")))
        page = int(query.get("page", "1"))
        number = int(names["number"])
        found = [c for c in self.comments_of(number) if c.repository == names["repository"]]
        shown = found[(page - 1) * per_page : page * per_page]
        headers = {}
        if page * per_page < len(found):
            path = f"/repos/{names['repository']}/issues/{number}/comments"
            link = f"{self.url}{path}?per_page={per_page}&page={page + 1}"
            headers["link"] = f'<{link}>; rel="next"'
        return Answer(200, [_as_json(comment) for comment in shown], headers)

    def _create_comment(self, names: Any, query: Any, body: dict[str, Any]) -> Answer:
        problems = _comment_problems(body)
        if problems:
            return _invalid(problems)
        name = names["repository"]
        comment = self.add_comment(int(names["number"]), body["body"], self._author, name)
        comment.bot = self.app
        return Answer(201, _as_json(comment))

    def _edit_comment(self, names: Any, query: Any, body: dict[str, Any]) -> Answer:
        comment = self.comments.get(int(names["comment"]))
        if comment is None or comment.repository != names["repository"]:
            return _said(404, "Not Found")
        problems = _comment_problems(body)
        if problems:
            return _invalid(problems)
        comment.body = body["body"]
        comment.edits += 1
        return Answer(200, _as_json(comment))

    @property
    def _author(self) -> str:
        return f"{self.login}[bot]" if self.app else self.login


_Serve = Callable[[StandIn, Any, Any, Any], Answer]
_R = r"/repos/(?P<repository>[^/]+/[^/]+)"
_ROUTES: tuple[tuple[str, str, _Serve], ...] = (
    ("GET", r"/user", StandIn._user),
    ("GET", rf"{_R}/collaborators/(?P<user>[^/]+)/permission", StandIn._permission),
    ("POST", rf"{_R}/statuses/(?P<sha>[^/]+)", StandIn._set_status),
    ("GET", rf"{_R}/issues/(?P<number>\d+)/comments", StandIn._list_comments),
    ("POST", rf"{_R}/issues/(?P<number>\d+)/comments", StandIn._create_comment),
    ("PATCH", rf"{_R}/issues/comments/(?P<comment>\d+)", StandIn._edit_comment),
)


def _as_json(comment: Comment) -> dict[str, Any]:
    user = {"login": comment.login, "type": "Bot" if comment.bot else "User"}
    return {"id": comment.id, "body": comment.body, "user": user}


def _comment_problems(body: dict[str, Any]) -> list[dict[str, str]]:
    problems = _problems(body, {"body": str}, {})
    text = body.get("body")
    if isinstance(text, str) and not text.strip():
        problems.append({"field": "body", "code": "missing_field", "message": "can't be blank"})
    if isinstance(text, str) and len(text) > BODY_CHARACTERS:
        message = f"body is too long (maximum is {BODY_CHARACTERS} characters)"
        problems.append({"field": "body", "code": "custom", "message": message})
    return problems


def _problems(
    body: dict[str, Any], required: dict[str, type], optional: dict[str, type]
) -> list[dict[str, str]]:
    problems = [{"field": name, "code": "missing_field"} for name in required if name not in body]
    for name, value in body.items():
        wanted = {**required, **optional}.get(name)
        if wanted is None:
            problems.append({"field": name, "code": "unknown_field"})
        elif not isinstance(value, wanted):
            problems.append({"field": name, "code": "invalid"})
    return problems


def _said(status: int, message: str) -> Answer:
    return Answer(status, {"message": message, "documentation_url": "https://docs.github.com/rest"})


def _invalid(problems: list[dict[str, str]]) -> Answer:
    return Answer(422, {"message": "Validation Failed", "errors": problems})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    github: StandIn


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        github = self.server.github
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body, time.monotonic())
        fault = github.take_fault(self.command, self.path)
        if fault is None:
            self._send(github.answer(request))
            return
        if fault.applied:
            github.answer(request)
        else:
            with github._lock:
                github.requests.append(request)
        if fault.hang:
            github.wait_until_closing()
        if fault.drop or fault.hang:
            self._cut()
        elif fault.answer is not None:
            self._send(fault.answer)

    def _cut(self) -> None:
        # A reset, not an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _send(self, answer: Answer) -> None:
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        kind = "text/html" if isinstance(answer.body, str) else "application/json; charset=utf-8"
        raw = text.encode()
        self.send_response(answer.status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the terminal: `requests` has it all."""
