"""`docker-compose up` of the profile `demo`, and what somebody does with it afterwards.

The tests stand in the order in which they happen: one project lives through all of them.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
import yaml
from docker.models.containers import Container

from runner.sandbox.docker_owner import LABEL_OWNER, LABEL_RUN
from service import schema
from tests.containers.conftest import BESIDE, COMMITS, Project

Factory = pytest.TempPathFactory
DONE_S = 600
"""Ample: on two idle cores a minute or two."""
ANSWER_S = 60
UID = 61120


@pytest.fixture(scope="module")
def demo(project: Project, engine: docker.DockerClient) -> Project:
    """The project, once the demo's tagged commits are done."""
    project("up", "--detach")
    ordering = container(engine, project, "demo")

    def exited() -> bool:
        ordering.reload()
        return bool(ordering.status == "exited")

    wait_for(exited, "the demo is done", project)
    assert ordering.attrs["State"]["ExitCode"] == 0, project.logs()
    return project


def wait_for(condition: Callable[[], bool], what: str, project: Project) -> None:
    """Look again until it holds, or fail with what the containers have printed."""
    deadline = time.monotonic() + DONE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}\n{project.logs()}"
        time.sleep(0.2)


def container(engine: docker.DockerClient, project: Project, service: str) -> Container:
    """The container of a service, running or not."""
    labels = [f"com.docker.compose.project={project.name}", f"com.docker.compose.service={service}"]
    (found,) = engine.containers.list(all=True, filters={"label": labels})
    return found


def get(project: Project, path: str) -> httpx.Response:
    """A page or a part of the API."""
    answer = httpx.get(f"{project.url}{path}", timeout=ANSWER_S)
    assert answer.status_code == 200, answer.text[:500]
    return answer


def completed(project: Project) -> dict[str, dict[str, Any]]:
    """The cells of the complete runs of the issue's matrix, by commit and name."""
    runs = get(project, "/api/v1/runs?subject=demo&state=complete&limit=100").json()["items"]
    return {
        run["commit"]["sha"]: {
            cell["name"]: (cell["n"], cell["k"], cell["outcome"])
            for cell in get(project, f"/api/v1/runs/{run['id']}").json()["cells"]
        }
        for run in runs
        if run["matrix"] == "issue-3863"
    }


def test_up_ends_with_the_demo_commits_trials_on_the_page(demo: Project) -> None:
    page = get(demo, "/?subject=demo").text
    assert "emulated" in page.lower()
    shown = completed(demo)
    assert len(shown) == len(COMMITS)
    cells = [cells["stock, background"] for cells in shown.values()]
    assert all(n >= 10 and outcome is None for n, _, outcome in cells)
    fixed, raced = sorted(k for _, k, _ in cells)
    assert (fixed, raced > 0) == (0, True)
    for sha in shown:
        assert sha[:12] in page


def test_everything_that_stays_is_healthy_and_what_ends_has_ended_well(
    demo: Project, engine: docker.DockerClient
) -> None:
    for service in ("postgres", "service"):
        health = container(engine, demo, service).attrs["State"]["Health"]
        assert health["Status"] == "healthy", health
    for service in ("secrets", "migrate", "demo"):
        state = container(engine, demo, service).attrs["State"]
        assert (state["Status"], state["ExitCode"]) == ("exited", 0)


def test_the_service_runs_locked(demo: Project, engine: docker.DockerClient) -> None:
    attributes = container(engine, demo, "service").attrs
    host = attributes["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert attributes["Config"]["User"] == "racewatch"
    (address,) = host["PortBindings"]["8000/tcp"]
    assert address["HostIp"] == "127.0.0.1"


def test_no_secret_is_in_an_environment_a_label_or_a_log(
    demo: Project, engine: docker.DockerClient
) -> None:
    secrets = {
        path.read_text().strip() for path in (demo.folder / "secrets").rglob("*") if path.is_file()
    }
    secrets |= {found[1] for url in secrets if (found := re.search(r"://[^:]+:([^@]+)@", url))}
    assert len(secrets) >= 7
    told = demo.run("logs", "--no-color").stdout.decode(errors="replace")
    label = f"com.docker.compose.project={demo.name}"
    for one in engine.containers.list(all=True, filters={"label": label}):
        told += json.dumps(one.attrs)
    assert [secret for secret in secrets if secret in told] == []


def test_each_secret_is_for_its_reader_alone(demo: Project) -> None:
    owners = {"admin": UID, "service": UID, "worker": UID, "database": os.getuid(), "grafana": 472}
    folder = demo.folder / "secrets"
    assert {path.name: path.stat().st_uid for path in folder.iterdir()} == owners
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_worker_has_a_login_that_sees_no_token(demo: Project) -> None:
    url = (demo.folder / "secrets" / "worker" / "racewatch_database_url").read_text().strip()
    code = "import psycopg, sys; c = psycopg.connect(sys.argv[1]); "
    code += "print(c.execute('SELECT current_user, count(*) > 0 FROM trials').fetchone()); "
    code += "c.execute('SELECT * FROM tokens')"
    asked = demo.run("exec", "-T", "service", "python", "-c", code, url)
    assert b"('racewatch_worker_compose', True)" in asked.stdout
    assert b"permission denied for table tokens" in asked.stderr


def test_a_workers_login_is_made_and_revoked_as_the_documentation_says(demo: Project) -> None:
    def credential(*arguments: str) -> str:
        done = demo("run", "--rm", "--no-deps", "migrate", "racewatch", "credential", *arguments)
        return done.decode()

    made = credential("create", "gpu-2", "--host", "db.example:5432").strip().splitlines()[-1]
    assert re.fullmatch(
        r"postgresql://racewatch_worker_gpu-2:[^@]+@db\.example:5432/racewatch", made
    )
    inside = made.replace("db.example", "postgres")
    asks = ["exec", "-T", "service", "racewatch", "db", "current"]
    with_login = [*asks[:2], "-e", f"DATABASE_URL={inside}", *asks[2:]]
    assert f"at {schema.head()}".encode() in demo(*with_login)
    assert "gpu-2: worker" in credential("list")
    credential("revoke", "gpu-2")
    assert demo.run(*with_login).returncode != 0


def test_the_webhook_takes_what_is_signed_with_the_secret_of_the_first_start(demo: Project) -> None:
    made = (demo.folder / "secrets" / "service" / "racewatch_webhook_secret").read_text().strip()
    body = b'{"zen": "Keep it logically awesome.", "hook_id": 1}'
    answers = {}
    for secret in (made, "another"):
        digest = hmac.new(secret.encode(), body, "sha256").hexdigest()
        headers = {"X-GitHub-Event": "ping", "X-GitHub-Delivery": str(uuid.uuid4())}
        headers |= {"X-Hub-Signature-256": f"sha256={digest}", "Content-Type": "application/json"}
        address = f"{demo.url}/webhooks/github"
        answer = httpx.post(address, content=body, headers=headers, timeout=ANSWER_S)
        answers[secret] = answer.status_code
    assert answers == {made: 200, "another": 401}


def test_a_token_of_the_api_is_made_and_revoked_as_the_documentation_says(demo: Project) -> None:
    def token(*arguments: str) -> str:
        done = demo("exec", "-T", "service", "racewatch", "token", *arguments)
        return done.decode().strip()

    def ordering_nothing() -> int:
        headers = {"Authorization": f"Bearer {made}"}
        address = f"{demo.url}/api/v1/runs"
        return httpx.post(address, json={}, headers=headers, timeout=ANSWER_S).status_code

    made = token("create", "ci", "--scope", "run")
    assert ordering_nothing() == 422
    assert token("list").startswith("ci: run; last used")
    token("revoke", "ci")
    assert ordering_nothing() == 401


def test_old_evidence_is_pruned_as_the_documentation_says(demo: Project) -> None:
    before = completed(demo)
    demo("exec", "-T", "service", "racewatch", "prune")
    assert completed(demo) == before


MATRIX = """
name = "own"
[[cells]]
name = "held open"
variant = "stock"
hold_ms = {hold_ms}
trials = {trials}
"""
"""A cell that the demo does not have, so that its trials are yet to be run."""


@pytest.fixture
def runner(
    demo: Project, engine: docker.DockerClient, ours: dict[str, str], tmp_path_factory: Factory
) -> Iterator[Container]:
    """compose.yaml's `runner` as it stands there, but for the GPU: that is for the demo here."""
    data = tmp_path_factory.mktemp("data")
    own = {"COMPOSE_PROFILES": "gpu", "RACEWATCH_DATA": str(data)}
    own |= {"RACEWATCH_TRIAL_IMAGE": ours["trial-cpu"]}
    own |= {"RACEWATCH_BUILD_IMAGE": ours["builder-cpu"]}
    changed = replace(demo, environment={**demo.environment, **own})
    service = yaml.safe_load(changed("config"))["services"]["runner"]
    made = engine.containers.create(
        service["image"],
        [*service["command"], "--subject=demo"],
        user=service["user"],
        init=service["init"],
        cap_drop=service["cap_drop"],
        cap_add=service["cap_add"],
        security_opt=service["security_opt"],
        environment={k: v for k, v in service["environment"].items() if v is not None},
        volumes=[one.removesuffix(":rw") for one in map(_short, service["volumes"])],
        network=f"{demo.name}_default",
        labels={BESIDE: demo.name},
    )
    made.start()
    demo("kill", "demo-worker")  # this one shall do the work
    yield made
    made.remove(force=True)


def _short(volume: str | dict[str, Any]) -> str:
    """A volume as 1.29 writes it; v2 writes a mapping."""
    if isinstance(volume, str):
        return volume
    mode = "ro" if volume.get("read_only") else "rw"
    return f"{volume['source']}:{volume['target']}:{mode}"


def order(demo: Project, hold_ms: int, trials: int) -> str:
    """The id of a run of the matrix above."""
    matrix = MATRIX.format(hold_ms=hold_ms, trials=trials)
    (demo.folder / "config" / "own.toml").write_text(matrix)
    submit = ["exec", "-T", "service", "racewatch", "submit", "--subject=demo", "--ref=race"]
    ordered = demo(*submit, "--matrix=/etc/racewatch/own.toml", "--queue=emulated")
    return ordered.decode().strip().rpartition("/")[2]


def test_a_runner_in_a_container_builds_and_tries_in_containers_of_their_own(
    demo: Project, runner: Container, engine: docker.DockerClient
) -> None:
    run = order(demo, hold_ms=300, trials=6)  # long enough for their container to be seen
    seen: set[tuple[str, str]] = set()

    def ended() -> bool:
        for one in engine.containers.list(filters={"label": LABEL_OWNER}, ignore_removed=True):
            seen.add((one.labels["racewatch.kind"], one.attrs["HostConfig"]["NetworkMode"]))
        runner.reload()
        assert runner.status == "running", runner.logs().decode()
        state = get(demo, f"/api/v1/runs/{run}").json()["state"]
        return state in ("complete", "failed", "cancelled")

    wait_for(ended, "the run ends", demo)
    told = get(demo, f"/api/v1/runs/{run}").json()
    (cell,) = told["cells"]
    assert (told["state"], cell["n"], cell["k"]) == ("complete", 6, 6), runner.logs().decode()
    _, *check = engine.images.get(runner.image.id).attrs["Config"]["Healthcheck"]["Test"]
    checked = runner.exec_run(check)
    assert checked.exit_code == 0, checked.output.decode()
    assert ("trial", "none") in seen
    assert {network for _, network in seen} == {"none"}


def test_a_killed_runner_leaves_no_container_and_its_run_is_completed_once_it_is_back(
    demo: Project, runner: Container, engine: docker.DockerClient
) -> None:
    run, path = order(demo, hold_ms=100, trials=60), "/api/v1/runs/"

    def made() -> list[Container]:
        label = f"{LABEL_RUN}={run}"
        return list(engine.containers.list(all=True, filters={"label": label}, ignore_removed=True))

    def some_are_stored() -> bool:
        return bool(get(demo, f"{path}{run}").json()["cells"][0]["n"] >= 3)

    wait_for(some_are_stored, "some trials are stored", demo)
    assert made()
    runner.kill()
    before = get(demo, f"{path}{run}").json()["cells"][0]["n"]
    assert before < 60
    runner.start()
    wait_for(lambda: not made(), "what it had left is removed", demo)

    def ended() -> bool:
        return bool(get(demo, f"{path}{run}").json()["state"] in ("complete", "failed"))

    wait_for(ended, "the run ends", demo)
    told = get(demo, f"{path}{run}").json()
    (cell,) = told["cells"]
    assert (told["state"], cell["n"], cell["k"]) == ("complete", 60, 60), runner.logs().decode()
    query = {"limit": 200, "cell": "held open"}  # and not the references that its claims added
    stored = httpx.get(f"{demo.url}{path}{run}/trials", params=query, timeout=ANSWER_S).json()[
        "items"
    ]
    assert len(stored) == 60
    assert made() == []


def test_a_second_up_changes_nothing(demo: Project, engine: docker.DockerClient) -> None:
    secrets = {path: path.read_bytes() for path in files(demo.folder / "secrets")}
    runs = get(demo, "/api/v1/runs?subject=demo&limit=100").json()["items"]
    demo("up", "--detach", "migrate", "service")
    migrate = container(engine, demo, "migrate")
    assert migrate.wait(timeout=60)["StatusCode"] == 0
    assert {path: path.read_bytes() for path in files(demo.folder / "secrets")} == secrets
    assert get(demo, "/api/v1/runs?subject=demo&limit=100").json()["items"] == runs


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_health_check_tells_a_dead_worker(demo: Project, engine: docker.DockerClient) -> None:
    """In another container of the demo's worker none runs, whoever else may live."""
    command = ["run", "--rm", "--no-deps", "--entrypoint", "python", "demo-worker"]
    asked = demo.run(*command, "-m", "service.alive", "worker")
    assert asked.returncode == 1
    assert b"no worker of this host has registered" in asked.stdout


def test_database_and_store_come_back_from_their_backup(
    demo: Project, engine: docker.DockerClient
) -> None:
    """The commands of docs/deploy.md, on a project that loses everything but its backup."""
    before, listed = completed(demo), store(demo)
    assert listed

    dump = demo("exec", "-T", "postgres", "pg_dump", "-U", "racewatch", "-Fc", "racewatch")
    tar = ["run", "--rm", "--no-deps", "-T", "--entrypoint", "tar", "demo-worker"]
    archive = demo(*tar, "-C", "/var/lib/racewatch", "-cz", "store")
    demo("down", "--volumes", "--timeout=10")
    shutil.rmtree(demo.folder / "secrets")

    demo("up", "--detach", "postgres")
    healthy = container(engine, demo, "postgres")

    def is_healthy() -> bool:
        healthy.reload()
        return bool(healthy.attrs["State"]["Health"]["Status"] == "healthy")

    wait_for(is_healthy, "the new database is healthy", demo)
    restore = ["exec", "-T", "postgres", "pg_restore", "-U", "racewatch", "-d", "racewatch"]
    demo(*restore, "--no-owner", "--no-privileges", "--exit-on-error", stdin=dump)
    demo(*tar, "-C", "/var/lib/racewatch", "-xz", stdin=archive)
    demo("up", "--detach", "service")

    def answers() -> bool:
        try:
            return httpx.get(f"{demo.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    wait_for(answers, "the service is ready", demo)
    assert completed(demo) == before
    assert store(demo) == listed


def store(demo: Project) -> list[str]:
    """What the store holds, with a digest of each file."""
    code = (
        "import hashlib, pathlib; print(*sorted(f'{p} {hashlib.sha256(p.read_bytes()).hexdigest()}'"
    )
    code += (
        " for p in pathlib.Path('/var/lib/racewatch/store').rglob('*') if p.is_file()), sep='\\n')"
    )
    command = ["run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "demo-worker", "-c"]
    return demo(*command, code).decode().splitlines()
