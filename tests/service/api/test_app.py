"""The application as a whole: errors, headers, limits, health, and what a browser gets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient

from service import schema
from service.api.errors import refused
from service.app import MAX_BODY, create_app
from service.database import Database
from service.settings import ServiceSettings

Headers = dict[str, str]


def told(answer: Any, status: int) -> str:
    """The sentence of an error, which must be a whole problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "about:blank"
    assert problem["status"] == status
    assert problem["title"]
    detail: str = problem["detail"]
    return detail


def test_every_answer_is_safe_for_browsers(client: TestClient, runner: Headers) -> None:
    for path in ("/healthz", "/api/v1/runs", "/nothing", "/api/v1/runs?limit=x", "/metrics"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "no-cache" in headers["cache-control"]


def test_what_is_not_there(client: TestClient) -> None:
    assert told(client.get("/nothing"), 404) == "there is nothing at /nothing"
    assert told(client.get("/api/v1/runs/"), 404) == "there is nothing at /api/v1/runs/"
    assert told(client.get("/docs"), 404)  # its page would load scripts from elsewhere


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/runs", "GET, HEAD, POST"),
        ("DELETE", "/api/v1/runs/6d3f6f0a-6a0e-4f57-9d0b-2f8d1a7a3c11", "GET, HEAD"),
        ("TRACE", "/api/v1/approvals", "POST"),
        ("GET", "/api/v1/imports", "POST"),
        ("GET", "/webhooks/github", "POST"),
    ],
)
def test_a_method_that_is_not_allowed(
    client: TestClient, method: str, path: str, allowed: str
) -> None:
    answer = client.request(method, path)
    assert told(answer, 405) == f"{method} is not allowed on {path}; allowed: {allowed}"
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/api/v1/runs", "/", "/api/v1/runs/x"])
def test_monitors_may_ask_with_head(client: TestClient, path: str) -> None:
    got = client.get(path)
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (got.status_code, b"")
    assert answer.headers["content-type"] == got.headers["content-type"]


def test_head_does_not_open_a_stream_that_never_ends(client: TestClient) -> None:
    answer = client.head("/events")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("content", "kind", "status", "sentence"),
    [
        (b'{"subject": ', "application/json", 400, "the body is not valid JSON: Expecting value"),
        (b"\xff", "application/json", 400, "the body is not valid JSON in UTF-8"),
        (b"[" * 100_000, "application/json", 400, "the body is not valid JSON in UTF-8, or it is"),
        (b"9" * 10_000, "application/json", 400, "the body is not valid JSON in UTF-8"),
        (b"[]", "application/json", 422, "body: must be a valid dictionary"),
        (b"", "application/json", 422, "body: is required"),
        (b"{}", "application/json", 422, "body, subject: is required"),
        (b'{"subject": "te", "ref": NaN}', "application/json", 422, "body, ref: must be"),
        (b"subject=te", "application/x-www-form-urlencoded", 415, "the body must be JSON"),
        (b'{"subject": "te"}', "text/plain", 415, "the body must be JSON, sent as Content-Type"),
    ],
)
def test_a_body_that_is_not_valid(
    client: TestClient, runner: Headers, content: bytes, kind: str, status: int, sentence: str
) -> None:
    answer = client.post("/api/v1/runs", content=content, headers={**runner, "Content-Type": kind})
    assert told(answer, status).startswith(sentence)


def test_a_body_that_is_too_large_by_its_own_word(client: TestClient, runner: Headers) -> None:
    answer = client.post("/api/v1/runs", content=b" " * (MAX_BODY + 1), headers=runner)
    assert told(answer, 413) == f"the body is larger than {MAX_BODY} bytes"


def test_a_body_that_turns_out_too_large(client: TestClient, runner: Headers) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 1_000 + 2):
            yield b" " * 1_000

    answer = client.post(
        "/api/v1/runs", content=endless(), headers={**runner, "Content-Type": "application/json"}
    )
    assert told(answer, 413) == f"the body is larger than {MAX_BODY} bytes"


def test_an_error_that_nobody_expected_is_logged_and_not_told(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret of the inside")

    client = TestClient(app)  # which would pass on what the application lets out
    with caplog.at_level(logging.ERROR):
        answer = client.get("/broken")
    assert "its log says why" in told(answer, 500)
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "GET /broken failed" in caplog.text
    assert "a secret of the inside" in caplog.text


def test_an_error_after_the_answer_began_breaks_it_off(app: FastAPI) -> None:
    def torn() -> Iterator[str]:
        yield "a"
        raise RuntimeError("in the middle")

    @app.get("/torn")
    def stream() -> StreamingResponse:
        return StreamingResponse(torn())

    with pytest.raises(RuntimeError, match="in the middle"):
        TestClient(app).get("/torn")


def test_a_query_that_the_database_refuses_is_the_services_own_fault(
    app: FastAPI, db: Database
) -> None:
    @app.get("/refused")
    def refused() -> None:
        with db.session() as session:
            session.connection().execute(text("SELECT 1/0"))

    assert "its log says why" in told(TestClient(app).get("/refused"), 500)


def test_a_database_that_is_gone(settings: ServiceSettings) -> None:
    gone = Database("postgresql://nobody:hidden@127.0.0.1:1/none")
    client = TestClient(create_app(settings, gone), raise_server_exceptions=False)
    for path in ("/api/v1/runs", "/api/v1/queue"):
        answer = client.get(path)
        assert told(answer, 503) == "the database does not answer; try again"
        assert answer.headers["retry-after"] == "10"
    assert client.get("/healthz").json() == {"status": "ok"}
    assert told(client.get("/readyz"), 503) == "the database does not answer"
    assert "racewatch_database_up 0.0" in client.get("/metrics").text


def test_ready_where_the_schema_is_in_place(client: TestClient) -> None:
    assert client.get("/readyz").json() == {"status": "ok"}


def test_not_ready_where_the_schema_is_another(
    database: str, settings: ServiceSettings, caplog: pytest.LogCaptureFixture
) -> None:
    empty = Database(database)
    client = TestClient(create_app(settings, empty), raise_server_exceptions=False)
    assert "racewatch db upgrade" in told(client.get("/readyz"), 503)
    schema.upgrade(database)
    assert client.get("/readyz").status_code == 200
    empty.close()


def test_large_answers_are_compressed(client: TestClient) -> None:
    answer = client.get("/api/v1/matrices", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in answer.headers["vary"]
    assert answer.json()["items"]
    plain = client.get("/api/v1/matrices", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers


def test_a_browser_gets_its_errors_as_pages_also_long_ones(app: FastAPI) -> None:
    @app.get("/long")
    def long() -> None:
        raise refused(404, "There is nothing at this place. " * 100)

    headers = {"Accept": "text/html", "Accept-Encoding": "gzip"}
    client = TestClient(app)
    answer = client.get("/long", headers=headers)
    assert (answer.status_code, answer.headers["content-encoding"]) == (404, "gzip")
    assert answer.headers["content-type"].startswith("text/html")
    assert "There is nothing at" in answer.text
    of_api = client.get("/api/v1/nothing", headers=headers)
    assert told(of_api, 404)


def test_the_document_names_every_operation_and_its_errors(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    operations = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    ids = [operation.get("operationId") for operation in operations.values()]
    assert len(ids) == len(set(ids)) == len(operations)
    for (path, method), operation in operations.items():
        assert operation["tags"], path
        assert operation["summary"], path
        for status, response in operation["responses"].items():
            if path.startswith("/api/") and int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (path, method)
        if path.startswith("/api/") and method == "post":
            assert operation["security"] == [{"token": []}]
            assert {"401", "403", "422"} <= set(operation["responses"])
    assert "HTTPValidationError" not in json.dumps(document)
    assert Path("/docs") not in map(Path, document["paths"])
