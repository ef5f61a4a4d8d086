"""`racewatch credential`: logins of the database for workers and the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from runner.errors import InputError
from service import credentials
from service.credentials import Kind
from service.settings import load

app = typer.Typer(help="Logins of the database, for workers of other hosts.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="such as the host's name")]
For = Annotated[Kind, typer.Option("--for", help="whose it is")]
Host = Annotated[str, typer.Option(help="where others reach the database (name or name:port)")]


@app.command("create")
def create_command(name: Name, kind: For = Kind.WORKER, host: Host = "") -> None:
    """Make a login and print its URL: this once, since only a digest is kept."""
    print(credentials.create(_url(), name, kind, host))


@app.command("write")
def write_command(
    name: Name,
    file: Annotated[Path, typer.Argument(help="that holds the URL, for this user alone")],
    kind: For = Kind.WORKER,
    host: Host = "",
) -> None:
    """See that a file holds the URL of a login that works, made anew where it does not."""
    url = _url()
    credentials.refresh(url)
    kept = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    if kept and credentials.works(kept):
        print(f"{file} holds credential {name}")
        return
    made = credentials.renew(url, name, kind, host)
    scratch = file.with_name(f".{file.name}")
    scratch.unlink(missing_ok=True)
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(made + "\n")
    scratch.replace(file)
    print(f"{file} holds the new credential {name}")


@app.command("list")
def list_command() -> None:
    """List the logins that there are, with how many connections each has open."""
    for one in credentials.listed(_url()):
        print(f"{one.name}: {one.kind}; {one.sessions} connections")


@app.command("revoke")
def revoke_command(name: Name, kind: For = Kind.WORKER) -> None:
    """End a login and its connections at once; what its worker held goes to others."""
    credentials.revoke(_url(), name, kind)


def _url() -> str:
    url = load().database_url
    if not url:
        raise InputError(
            "DATABASE_URL is not set: credentials are for a database that other hosts reach, the "
            "embedded one is this host's own"
        )
    return url
