"""Who may read and who may write: tokens, scopes, private services."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service import tokens
from service.app import create_app
from service.database import Database
from service.settings import ServiceSettings

Headers = dict[str, str]
WRITES = [
    ("/api/v1/runs", {"subject": "te", "ref": "main"}),
    ("/api/v1/runs/6d3f6f0a-6a0e-4f57-9d0b-2f8d1a7a3c11/cancel", None),
    ("/api/v1/imports", {"run": "x"}),
    ("/api/v1/approvals", {"subject": "te", "pull": 1, "sha": "abcdef0"}),
]


@pytest.mark.parametrize(("path", "body"), WRITES)
def test_writing_without_a_token(client: TestClient, path: str, body: object) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="racewatch"'
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(("path", "body"), WRITES)
@pytest.mark.parametrize(
    "value", ["Bearer nonsense", "Bearer rw_x", "Bearer ", "Bearer é", "bearer"]
)
def test_writing_with_a_token_that_is_none(
    client: TestClient, path: str, body: object, value: str
) -> None:
    answer = client.post(path, json=body, headers={"Authorization": value.encode()})
    assert answer.status_code == 401


@pytest.mark.parametrize(("path", "body"), WRITES[:3])
def test_a_token_without_the_scope(
    client: TestClient, approver: Headers, path: str, body: object
) -> None:
    answer = client.post(path, json=body, headers=approver)
    assert answer.status_code == 403
    assert answer.json()["detail"] == "token approver lacks the scope run; it has approve"
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]


def test_a_token_that_may_run_may_not_approve(client: TestClient, runner: Headers) -> None:
    assert client.post("/api/v1/approvals", json=WRITES[3][1], headers=runner).status_code == 403


def test_a_revoked_token(client: TestClient, runner: Headers, db: Database) -> None:
    with db.session() as session:
        tokens.revoke(session, "runner")
    answer = client.post("/api/v1/runs", json=WRITES[0][1], headers=runner)
    assert answer.status_code == 401


def test_reading_is_open_but_not_to_a_wrong_token(client: TestClient, runner: Headers) -> None:
    assert client.get("/api/v1/runs").status_code == 200
    assert client.get("/api/v1/runs", headers=runner).status_code == 200
    wrong = client.get("/api/v1/runs", headers={"Authorization": "Bearer rw_wrong"})
    assert wrong.status_code == 401
    # What a proxy in front asks for is none of this service's business.
    proxied = client.get("/api/v1/runs", headers={"Authorization": "Basic eDp5"})
    assert proxied.status_code == 200


@pytest.fixture
def private(db: Database, tmp_path: Path) -> TestClient:
    settings = ServiceSettings(home=tmp_path, private=True)
    return TestClient(create_app(settings, db), raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/queue", "/metrics", "/", "/runs"])
def test_a_private_service_shows_nothing_without_a_token(private: TestClient, path: str) -> None:
    answer = private.get(path)
    assert answer.status_code == 401
    assert "Basic" in answer.headers["www-authenticate"]


def test_a_private_service_is_alive_for_everyone(private: TestClient) -> None:
    assert private.get("/healthz").status_code == 200
    assert private.get("/readyz").status_code == 200


def test_a_private_service_takes_the_token_as_a_password_for_reading_only(
    private: TestClient, runner: Headers
) -> None:
    plain = runner["Authorization"].removeprefix("Bearer ")
    basic = {"Authorization": "Basic " + base64.b64encode(f"me:{plain}".encode()).decode()}
    assert private.get("/api/v1/runs", headers=runner).status_code == 200
    assert private.get("/api/v1/runs", headers=basic).status_code == 200
    # A browser would send it along with a form of another site.
    refused = private.post("/api/v1/runs", json=WRITES[0][1], headers=basic)
    assert refused.status_code == 401


@pytest.mark.parametrize("value", ["Basic", "Basic !", "Basic eDp5", "Basic /w==", "Digest x"])
def test_a_private_service_refuses_other_credentials(private: TestClient, value: str) -> None:
    assert private.get("/api/v1/runs", headers={"Authorization": value}).status_code == 401


def test_a_private_services_document_says_that_reading_takes_a_token(
    private: TestClient, client: TestClient, runner: Headers
) -> None:
    open_to_all = client.get("/api/v1/openapi.json").json()
    assert "security" not in open_to_all["paths"]["/api/v1/runs"]["get"]
    closed = private.get("/api/v1/openapi.json").json()
    assert closed["paths"]["/api/v1/runs"]["get"]["security"] == [{"token": []}]
