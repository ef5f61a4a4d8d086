"""The embedded PostgreSQL: a server of our own, supervised as a child, for who has none.

The first process that starts it on a data folder runs it; others on that folder use the same one,
and when the first goes, another takes over at the same URL.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from filelock import FileLock, Timeout

from runner.errors import InfrastructureError, InputError, RacewatchError
from service.postgres_cluster import (
    DATABASE,
    INSTEAD,
    PORT,
    USER,
    Cluster,
    environment,
    first_error,
)

_LOG = logging.getLogger(__name__)

_SETTINGS = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    "fsync": "on",
    # Not in /dev/shm: a container has 64 MB there, and systemd empties it when a user logs out
    # (RemoveIPC) whose service runs on.
    "dynamic_shared_memory_type": "mmap",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_STOP_S = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""Fast shutdown, immediate shutdown, the end; each with the seconds it may take."""
_LEFT_S = ((0, 3.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
"""The same for what a killed server left running, which mostly ends by itself."""
_TURN_S = 60.0
_POLL_S = 0.02
_STEADY_S = 60.0
_SLOWEST_S = 30.0
_LOG_BYTES = 10 << 20


class EmbeddedPostgres:
    """A PostgreSQL on the data folder `folder`, as long as this lives (or this process).

    settings: of postgresql.conf, over the ones used here. Another process that runs a server on the
    folder already is made use of instead, and relieved when it goes. When the server dies it is
    started again, which the log tells.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._cluster = Cluster(folder)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._lock = FileLock(self._cluster.lock_path, timeout=0, thread_local=False)
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._known = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: Path | None = None
        self._log_start = 0
        self._error: BaseException | None = None
        self._url = ""

    def start(self) -> None:
        """Return when the server answers.

        Raises InputError for a folder that is another's (an older PostgreSQL's, another user's),
        InfrastructureError where the host cannot run it.
        """
        if self._thread is not None:
            raise RuntimeError("this server is started already")
        self._stop.clear()
        self._known.clear()
        self._error = None
        # A thread of its own, and not the caller's, for a server dies with the thread that
        # started it; this one lives until `stop`.
        self._thread = threading.Thread(target=self._supervise, name="postgres", daemon=True)
        self._thread.start()
        try:
            self._known.wait()
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if self._error is not None:
            self._thread.join()
            self._thread = None
            raise self._error

    def stop(self) -> None:
        """Shut the server down, unless it is another process's; clients are disconnected."""
        if self._thread is None:
            return
        with self._guard:
            self._stop.set()
        for number, patience in _STOP_S:
            process = self._process
            if process is not None:
                process.send_signal(number)
            self._thread.join(patience)
            if not self._thread.is_alive():
                self._thread = None
                return
        raise InfrastructureError(
            f"PostgreSQL in {self._cluster.data} does not end; see {self._cluster.log_path}"
        )

    @property
    def url(self) -> str:
        """For SQLAlchemy: `postgresql+psycopg://...`; `libpq` gives the form for psycopg."""
        if not self._url:
            raise RuntimeError("the server is not started")
        return self._url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _supervise(self) -> None:
        """Keep a server running until `stop`; what the first start raises is for `start`."""
        failures = 0
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self._serve()
                except RacewatchError as error:
                    if not self._known.is_set():
                        raise
                    _LOG.error("PostgreSQL cannot be started again: %s", error)
                failures = 0 if time.monotonic() - began >= _STEADY_S else failures + 1
                self._stop.wait(restart_delay(failures))
        except BaseException as error:
            if self._known.is_set():
                _LOG.exception("PostgreSQL in %s is supervised no longer", self._cluster.data)
            self._error = error
        finally:
            self._lock.release()
            self._known.set()

    def _serve(self) -> None:
        """Run a server once it is our turn, until it ends."""
        cluster = self._cluster
        self._await_turn()
        if self._stop.is_set():
            return
        cluster.prepare()
        self._end_leftovers()
        if self._socket_folder is None or not self._socket_folder.is_dir():
            self._socket_folder = cluster.socket_folder()
        socket_folder = self._socket_folder
        process = self._spawn(socket_folder)
        if process is None:
            return
        try:
            if self._await_ready(process):
                self._tell(url_of(str(socket_folder)))
                _LOG.info("PostgreSQL runs in %s: %s", cluster.data, libpq(self._url))
            status = process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            process.wait()
            with self._guard:
                self._process = None
        if self._stop.is_set():
            if socket_folder.parent != cluster.folder:
                shutil.rmtree(socket_folder, ignore_errors=True)  # a killed server's socket too
        else:
            _LOG.warning("PostgreSQL (pid %d) %s: it is started again",
                         process.pid, _ending(status))  # fmt: skip

    def _await_turn(self) -> None:
        """Return with the folder's lock, or at `stop`; meanwhile use the server of who has it."""
        deadline = time.monotonic() + _TURN_S
        with self._cluster.speaking("its lock cannot be taken"):
            self._cluster.folder.mkdir(parents=True, exist_ok=True)
            while not self._stop.is_set():
                try:
                    self._lock.acquire()
                except Timeout:
                    found = self._cluster.answers()
                    if found is not None:
                        self._tell(url_of(found.socket_folder))
                    elif not self._known.is_set() and time.monotonic() > deadline:
                        raise InfrastructureError(
                            f"another racewatch holds {self._cluster.lock_path}, but its "
                            f"PostgreSQL did not answer for {_TURN_S:.0f} s: see "
                            f"{self._cluster.log_path} and end that racewatch, {INSTEAD}"
                        ) from None
                else:
                    return
                self._stop.wait(1.0 if self._known.is_set() else _POLL_S)

    def _tell(self, url: str) -> None:
        if self._known.is_set() and url != self._url:
            _LOG.warning("PostgreSQL is at another URL now: %s", libpq(url))
        self._url = url
        self._known.set()

    def _end_leftovers(self) -> None:
        """See that no process of a server is left whose supervisor was killed, or of one that was
        killed itself: they hold its shared memory."""
        cluster = self._cluster
        left = cluster.processes()
        if left:
            _LOG.warning("PostgreSQL in %s was left running: it is ended first", cluster.data)
            found = cluster.pid_file()
            if found is not None and found.pid in left:
                _signal(found.pid, signal.SIGINT)
        for number, patience in _LEFT_S:
            deadline = time.monotonic() + patience
            for pid in left:
                _signal(pid, number)
            while left and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                left = cluster.processes()
        if left:
            raise InfrastructureError(
                f"processes of the PostgreSQL in {cluster.data} do not end: "
                f"{', '.join(map(str, left))}; end them, {INSTEAD}"
            )
        cluster.forget()

    def _spawn(self, socket_folder: Path) -> subprocess.Popen[bytes] | None:
        """Start the server's process, or None where `stop` was faster."""
        cluster = self._cluster
        settings = {
            **self._settings,
            "cluster_name": cluster.name,
            "listen_addresses": "",
            "unix_socket_directories": str(socket_folder),
            "unix_socket_permissions": "0700",
            "port": str(PORT),
        }
        command = cluster.server(cluster.programs(), settings, signal.SIGINT)
        with cluster.speaking("its log cannot be written"):
            if cluster.log_path.exists() and cluster.log_path.stat().st_size > _LOG_BYTES:
                cluster.log_path.replace(cluster.log_path.with_suffix(".log.1"))
            log = cluster.log_path.open("ab")
        with log, self._guard:
            if self._stop.is_set():
                return None
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                cwd=cluster.data,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for us: the server outlives who still writes to it.
                start_new_session=True,
            )
            return self._process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the server came up, False where `stop` came first; recovery may take long, and
        lasts as long as the process lives."""
        while not self._stop.is_set():
            if process.poll() is not None:
                with self._cluster.log_path.open("rb") as log:
                    log.seek(self._log_start)
                    said = log.read().decode(errors="replace")
                raise InfrastructureError(
                    f"PostgreSQL does not start in {self._cluster.data}: "
                    f"{first_error(said) or _ending(process.returncode)}; see "
                    f"{self._cluster.log_path}, correct that, {INSTEAD}"
                )
            found = self._cluster.pid_file()
            if found is not None and found.ready and found.pid == process.pid:
                return True
            self._stop.wait(_POLL_S)
        return False


def running(folder: Path) -> str | None:
    """The URL of the server that runs on a data folder, None where none does.

    PostgreSQL's own postmaster.pid tells it, and the server has to answer. Raises InputError where
    the folder is another user's.
    """
    found = Cluster(folder).answers()
    return None if found is None else url_of(found.socket_folder)


def url_of(socket_folder: str) -> str:
    """The SQLAlchemy URL of an embedded server."""
    return f"postgresql+psycopg://{USER}@/{DATABASE}?host={quote(socket_folder, '')}&port={PORT}"


def libpq(url: str) -> str:
    """A database URL in the form that libpq, psycopg and psql take. Raises InputError."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"postgres", "postgresql", "postgresql+psycopg"}:
        raise InputError(
            f"a database URL must be postgresql://user:password@host/name, got {scheme!r}://..."
        )
    return f"postgresql://{rest}"


def restart_delay(failures: int) -> float:
    """Seconds before a server is started again that ended so many times in a row, soon each time:
    none the first time, then 1, 2, 4 and so on up to 30."""
    return 0.0 if failures <= 1 else min(2.0 ** min(failures - 2, 10), _SLOWEST_S)


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # which is what is wanted
