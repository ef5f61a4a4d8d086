"""The command `racewatch`: the runner's commands, and those of the service around it."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from sqlmodel import col, select

from runner import matrix as matrices
from runner.cli import BuildImage, Image, app
from runner.errors import InputError
from runner.node import check_output, check_parallel, device_ids, guarded
from runner.sandbox.choice import Choice
from service import bisection, credential_cli, credentials, history, imports, prune, schema, tokens
from service import demo as the_demo
from service.bisect_command import Asked, bisect
from service.opening import opened
from service.serve import serve
from service.settings import ServiceSettings, load
from service.submit import RunRequest, cancel, submit
from service.tables import ENDED_STATES, Run, RunState
from service.up import Stack
from service.work import work
from service.worker import WorkerOptions

db_app = typer.Typer(help="The database's schema.", no_args_is_help=True)
token_app = typer.Typer(help="Tokens of the API.", no_args_is_help=True)
app.add_typer(db_app, name="db")
app.add_typer(token_app, name="token")
app.add_typer(credential_cli.app, name="credential")
app.registered_commands = [one for one in app.registered_commands if one.name != "demo"]
Host = Annotated[str, typer.Option(help="address to serve on")]
Port = Annotated[int, typer.Option(help="port to serve on", min=1, max=65535)]
Subjects = Annotated[
    list[str] | None, typer.Option("--subject", help="te or demo (repeatable; default: te)")
]
LOOK_S = 1.0
_LOG = logging.getLogger("racewatch.worker")


@app.command("serve")
def serve_command(host: Host = "", port: Port | None = None) -> None:
    """Serve pages, API and webhook, until Ctrl-C."""
    settings = _settings(host, port)
    with opened(settings, pool_size=20) as database:
        serve(settings, database)


@app.command("worker")
def worker_command(
    subject: Subjects = None,
    devices: Annotated[str, typer.Option(help="devices, such as 0,1 (default: all)")] = "",
    parallel: Annotated[int | None, typer.Option(help="trials at a time on one device")] = None,
    sandbox: Annotated[str, typer.Option(help="process or docker")] = "process",
    image: Image = "",
    build_image: BuildImage = "",
    name: Annotated[str, typer.Option(help="what pages call it (default: host and pid)")] = "",
    build: Annotated[bool, typer.Option(help="take builds")] = True,
    trials: Annotated[bool, typer.Option(help="take trials")] = True,
) -> None:
    """Build commits and run trials from the queue, until Ctrl-C: then finish what is in hand."""
    if parallel is not None and parallel < 1:
        raise InputError(f"--parallel: must be at least 1, got {parallel}")
    for one in subject or ["te"]:
        choice = Choice(one, sandbox, image, build_image)
        choice.require(builds=build, trials=trials)
        if left := choice.reap():
            _LOG.info("removed %d containers that a runner which is gone had left", left)
        for warning in choice.warnings():
            _LOG.warning("%s", warning)
    if not build and not trials:
        raise InputError("--no-build --no-trials leaves a worker nothing to do: drop one")
    settings = _settings()
    for one in subject or []:
        settings.subject(one)
    options = WorkerOptions(
        name=name,
        subjects=tuple(dict.fromkeys(subject or ["te"])),
        devices=tuple(device_ids(devices)),
        sandbox=sandbox,
        image=image,
        build_image=build_image,
        parallel=parallel,
        build=build,
        trials=trials,
    )
    with opened(settings) as database:
        work(settings, database, options)


@app.command("up")
def up_command(
    subject: Subjects = None,
    host: Host = "",
    port: Port | None = None,
    sandbox: Annotated[str, typer.Option(help="process or docker, of the worker")] = "process",
) -> None:
    """Start database, service and one worker; one Ctrl-C ends them all in order."""
    settings = _settings(host, port)
    options = [part for one in subject or ["te"] for part in ("--subject", one)]
    with Stack(settings, [*options, "--sandbox", sandbox]) as stack:
        print(f"racewatch: {settings.link}", flush=True)
        while True:
            stack.look()
            time.sleep(LOOK_S)


@app.command("demo")
def demo_command(
    once: Annotated[bool, typer.Option("--once", help="stop when all runs are done")] = False,
    host: Host = "",
    port: Port | None = None,
) -> None:
    """Run the demo subject's history through the whole service, with no GPU.

    Exit status 1 where the pages do not show what they should.
    """
    settings = _settings(host, port)
    with Stack(settings, the_demo.WORKER) as stack:
        print(f"racewatch: {settings.link} (EMULATED: no GPU takes part)", flush=True)
        with stack.database.session() as session:
            ordered = the_demo.order(session)
        before = -1
        for ended in the_demo.progress(stack, settings, ordered.runs):
            if ended != before:
                print(f"{ended} of {len(ordered.runs)} runs done", flush=True)
            before = ended
        wrong = the_demo.check(settings, ordered)
        for sentence in wrong:
            print(f"racewatch: {sentence}", file=sys.stderr)
        if wrong:
            raise typer.Exit(1)
        print("the race is in `race`, gone in `fix`, and `broken` does not build")
        print(f"see {settings.link}/?subject=demo", flush=True)
        while not once:
            stack.look()
            time.sleep(LOOK_S)


@app.command("submit")
def submit_command(
    ref: Annotated[str, typer.Option(help="branch, tag, commit or pull/N")] = "",
    version: Annotated[str, typer.Option(help="a release from the package index instead")] = "",
    subject: Annotated[str, typer.Option(help="te or demo")] = "te",
    matrix: Annotated[str, typer.Option(help="a matrix by name or a TOML file")] = "issue-3863",
    cell: Annotated[list[str] | None, typer.Option(help="only this cell (repeatable)")] = None,
    trials: Annotated[int | None, typer.Option(help="trials of each cell")] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="kind of device, such as sm90 (repeatable)")
    ] = None,
    sequential: Annotated[bool, typer.Option(help="stop cells once they are decided")] = False,
    wait: Annotated[bool, typer.Option(help="until the runs have ended")] = False,
) -> None:
    """Order a run; prints where it is seen.

    With --wait the exit status is 0 where all runs completed, else 3.
    """
    settings = _settings()
    tracked = settings.subject(subject)
    if bool(ref) == bool(version):
        raise InputError("name either --ref (a branch, tag, commit or pull/N) or --version")
    wanted = matrices.load(matrix).with_trials(trials).only(tuple(cell or ()))
    with opened(settings) as database:
        with database.session() as session:
            runs = [
                submit(
                    session,
                    RunRequest(
                        subject=subject,
                        matrix=wanted,
                        queue=one,
                        ref=ref,
                        version=version,
                        toolchain=tracked.toolchain,
                        requested_by="racewatch submit",
                        sequential=sequential,
                    ),
                ).id
                for one in queue or tracked.queues
            ]
        for run in runs:
            print(f"{settings.link}/runs/{run}", flush=True)
        if not wait:
            return
        while True:
            with database.session() as session:
                found = session.exec(select(Run).where(col(Run.id).in_(runs))).all()
            if all(run.state in ENDED_STATES for run in found):
                break
            time.sleep(LOOK_S)
        for run_row in found:
            print(f"{run_row.id}: {run_row.state}" + (f": {run_row.reason}" * bool(run_row.reason)))
        raise typer.Exit(0 if all(run.state == RunState.COMPLETE for run in found) else 3)


@app.command("cancel")
def cancel_command(
    identity: Annotated[UUID, typer.Argument(help="the id of a run or a bisection", metavar="ID")],
) -> None:
    """Cancel a run, or a bisection with its probes; what trials showed so far stays."""
    reason = "cancelled by racewatch cancel"
    with opened(_settings()) as database, database.session() as session:
        if not (cancel(session, identity, reason) or bisection.cancel(session, identity, reason)):
            raise InputError(f"{identity} is neither a run nor a bisection that goes on")


@app.command("import")
def import_command(
    files: Annotated[list[Path], typer.Argument(help="results or events that the runner wrote")],
) -> None:
    """Take in results of `racewatch run --json`, or events, of hosts that are not connected."""
    with opened(_settings()) as database:
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{file}: cannot be read: {error}") from error
            with database.session() as session:
                taken = imports.import_all(session, text)
            for one in taken:
                print(f"{file}: run {one.run}: {one.new_trials} new trials", flush=True)


@app.command("backfill")
def backfill_command(
    range_: Annotated[str, typer.Argument(metavar="A..B", help="two refs, the older first")],
    subject: Annotated[str, typer.Option(help="te or demo")] = "te",
    matrix: Annotated[str, typer.Option(help="a matrix by name or a TOML file")] = "quick",
    every: Annotated[int, typer.Option(help="only each Nth commit", min=1)] = 1,
    queue: Annotated[list[str] | None, typer.Option(help="kind of device (repeatable)")] = None,
) -> None:
    """Order runs of a branch's history: the first-parent commits after A up to B."""
    settings = _settings()
    wanted = matrices.load(matrix)
    with opened(settings) as database:
        ordered = history.backfill(
            database, settings, subject, range_, wanted, every=every, queues=queue or []
        )
    print(f"{ordered} runs ordered")


@app.command("bisect")
def bisect_command(
    good: Annotated[str, typer.Option(help="a commit where the rate is as it was")],
    bad: Annotated[str, typer.Option(help="one where it has changed, for better or worse")],
    cell: Annotated[str, typer.Option(help="the cell, by its name in the matrix")],
    subject: Annotated[str, typer.Option(help="te or demo")] = "te",
    matrix: Annotated[str, typer.Option(help="a matrix by name or a TOML file")] = "issue-3863",
    confidence: Annotated[float, typer.Option(help="how sure it shall be")] = 0.99,
    observe: Annotated[
        str, typer.Option(help="what is counted of a trial: failure, or swallow (foreign work)")
    ] = "failure",
    budget: Annotated[str, typer.Option(help="of time, such as 2h (default: none)")] = "",
    repo: Annotated[str, typer.Option(help="git URL or folder instead of its own")] = "",
    toolchain: Annotated[str, typer.Option(help="a toolchain by name or file")] = "",
    devices: Annotated[str, typer.Option(help="devices, such as 0,1 (default: all)")] = "",
    parallel: Annotated[int | None, typer.Option(help="trials at a time on one device")] = None,
    record: Annotated[Path | None, typer.Option(help="where events are kept and gone on")] = None,
    json: Annotated[Path | None, typer.Option(help="write the result to this file")] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="only make the builds, and a bundle to bisect on an offline GPU host"),
    ] = None,
    arch: Annotated[str, typer.Option(help="GPU architecture of that host")] = "90",
    sandbox: Annotated[str, typer.Option(help="process or docker")] = "process",
    image: Image = "",
    build_image: BuildImage = "",
) -> None:
    """Find which commit changed a cell's failure rate, and how sure that is.

    The same command goes on where it was stopped. Exit status: 0 a culprit, 1 none to name.
    """
    check_parallel(parallel)
    check_output(json, "--json")
    asked = Asked(
        subject, good, bad, cell, matrix, confidence, budget, repo, toolchain,
        tuple(device_ids(devices)), parallel, record, json, bundle, arch if bundle else "",
        observe, sandbox, image, build_image,
    )  # fmt: skip
    raise typer.Exit(bisect(asked))


@app.command("prune")
def prune_command(
    days: Annotated[float | None, typer.Option(help="keep evidence and logs this long")] = None,
    max_gib: Annotated[float | None, typer.Option(help="and no more of them than this")] = None,
) -> None:
    """Drop old logs and evidence; never a number that a page shows."""
    settings = _settings()
    with opened(settings) as database:
        print(
            prune.prune_all(
                database, settings, days or settings.evidence_days, max_gib, datetime.now(UTC)
            )
        )


@db_app.command("upgrade")
def upgrade_command(revision: str = "head") -> None:
    """Bring the database that DATABASE_URL names to this Racewatch's schema."""
    url = _url(_settings())
    schema.upgrade(url, revision)
    credentials.refresh(url)
    print(f"the schema is at {schema.current(url)}")


@db_app.command("downgrade")
def downgrade_command(revision: str) -> None:
    """Take the schema back to a revision; `base` drops everything."""
    schema.downgrade(_url(_settings()), revision)


@db_app.command("current")
def current_command() -> None:
    """Say which revision the database is at, and which this Racewatch needs."""
    print(f"at {schema.current(_url(_settings())) or 'none'}, needs {schema.head()}")


@token_app.command("create")
def token_create(
    name: str,
    scope: Annotated[list[str], typer.Option(help="run, approve or admin (repeatable)")],
) -> None:
    """Make a token and print it: this once, since only its digest is kept."""
    with opened(_settings()) as database, database.session() as session:
        plain = tokens.create(session, name, scope)
    print(plain)


@token_app.command("list")
def token_list() -> None:
    """List the tokens that there are."""
    with opened(_settings()) as database, database.session() as session:
        for row in tokens.listed(session):
            used = row.last_used_at.isoformat(timespec="minutes") if row.last_used_at else "never"
            state = "revoked" if row.revoked_at else f"last used {used}"
            print(f"{row.name}: {', '.join(row.scopes)}; {state}")


@token_app.command("revoke")
def token_revoke(name: str) -> None:
    """End a token."""
    with opened(_settings()) as database, database.session() as session:
        tokens.revoke(session, name)


def _settings(host: str = "", port: int | None = None) -> ServiceSettings:
    settings = load()
    changed = {"host": host or settings.host, "port": port or settings.port}
    return settings.model_copy(update={**changed, "home": settings.home.absolute()})


def _url(settings: ServiceSettings) -> str:
    if not settings.database_url:
        raise InputError(
            "DATABASE_URL is not set: the embedded database is upgraded by itself, this is for one "
            "of your own"
        )
    return settings.database_url


def main() -> None:
    """Run the command; an error of ours is one sentence and its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for noisy in ("alembic", "procrastinate", "httpx", "psycopg.pool"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.exit(guarded(app))


if __name__ == "__main__":
    main()
