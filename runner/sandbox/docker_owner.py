"""Whose a container is: the runner that made it is in its labels, and without it, it is removed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

LABEL_KIND = "racewatch.kind"
LABEL_RUN = "racewatch.run"
LABEL_ATTEMPT = "racewatch.attempt"
LABEL_OWNER = "racewatch.owner"
LABEL_CONTAINER = "racewatch.owner-container"
"""The id of the container that the owner runs in, empty where it runs in none."""


@dataclass(frozen=True)
class Owner:
    """A process that no other can be mistaken for, on this host.

    boot: of the host. namespace: of process ids, another one in each container. started: of the
    process, in the kernel's ticks since boot, since ids are used again.
    """

    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pid = os.getpid()
        return cls(boot, os.readlink("/proc/self/ns/pid"), pid, _started(pid))

    @classmethod
    def parse(cls, text: str) -> Owner:
        """From the text in a label. Raises ValueError."""
        boot, namespace, pid, started = text.split("/")
        return cls(boot, namespace, int(pid), int(started))

    def __str__(self) -> str:
        return "/".join(map(str, astuple(self)))


def _started(pid: int) -> int:
    """When a process of this namespace started, 0 if there is none. Source: proc(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    state, *fields = stat.rpartition(")")[2].split()  # the command before may hold anything
    return 0 if state in "ZX" else int(fields[18])


def is_leftover(owner: Owner, running: bool, here: Owner, lives: bool | None = None) -> bool:
    """Whether a container's owner is gone, as far as a process `here` can tell.

    An owner in another container lives as long as that container does (`lives`, None where that is
    not known). Its own containers lose their standard input with it, and then end.
    """
    if owner.boot != here.boot:
        return True
    if owner.namespace != here.namespace:
        return not running or lives is False
    return _started(owner.pid) != owner.started


_ABANDONED: set[str] = set()
"""Ids of this process's own containers that the engine did not remove when it was asked to."""


def abandon(container: Container) -> None:
    """Leave a container to the next look for leftovers: the engine cannot remove it now."""
    _ABANDONED.add(str(container.id))


def remove_leftovers(client: docker.DockerClient) -> int:
    """Remove the containers of runners that are gone, and those abandoned; returns how many."""
    here = Owner.current()
    removed = 0
    found = client.containers.list(all=True, filters={"label": LABEL_OWNER}, ignore_removed=True)
    for container in found:
        # "created": its owner is between making it and starting it.
        running = container.status not in ("exited", "dead")
        try:
            owner = Owner.parse(container.labels[LABEL_OWNER])
        except ValueError:
            continue  # a label that no runner of ours wrote: not ours to remove
        lives = _owners_container_lives(client, container)
        if container.id not in _ABANDONED and not is_leftover(owner, running, here, lives):
            continue
        with contextlib.suppress(NotFound):  # another runner's start removed it
            try:
                container.remove(force=True, v=True)
            except APIError as error:
                if error.status_code != 409:  # another runner's start is removing it
                    raise
            removed += 1
    return removed


def _owners_container_lives(client: docker.DockerClient, container: Container) -> bool | None:
    """Whether the container in which this one was made still runs, and was not started anew."""
    made_in = container.labels.get(LABEL_CONTAINER)
    if not made_in:
        return None
    try:
        state = client.containers.get(made_in).attrs["State"]
    except NotFound:
        return False
    started = _seconds(state["StartedAt"])
    return bool(state["Running"]) and started <= _seconds(container.attrs["Created"])


def _seconds(moment: str) -> float:
    """A time as the engine writes it, such as 2026-09-21T10:00:00.123456789Z."""
    whole, _, fraction = moment.removesuffix("Z").partition(".")
    second = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
    return second + float(f"0.{fraction or 0}")
