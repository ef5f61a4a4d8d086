"""Trials in containers, on a real engine: the same outcomes, behind a wall."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from runner import demo_build
from runner.errors import InfrastructureError
from runner.result import Device
from runner.run import PreparedBuild
from runner.sandbox import docker_parent
from runner.sandbox.docker import DockerSandbox, require
from runner.sandbox.docker_engine import GIB, UNPRIVILEGED, Limits
from runner.sandbox.docker_owner import (
    LABEL_ATTEMPT,
    LABEL_KIND,
    LABEL_OWNER,
    LABEL_RUN,
    remove_leftovers,
)
from runner.sandbox.docker_parent import DockerParent
from runner.sandbox.docker_paths import PACKAGE
from runner.trial.program import ParentConfig, TrialSpec

Config = Callable[..., ParentConfig]
Spec = Callable[..., TrialSpec]
Build = Callable[..., PreparedBuild]
Racewatch = Callable[..., "subprocess.Popen[str]"]

LIMITS = Limits(memory=512 * 2**20, cpus=1, pids=64, tmp=16 * 2**20, file=2**20, kept=8 * 2**20)
EMULATED = Device("emulated", "emulated device", ids=("0",))
WAIT_S = 60.0
CELLS = """
name = "same"
[[cells]]
name = "alone"
variant = "stock"
background = false
trials = 3
[[cells]]
name = "unregistered"
variant = "unregistered"
trials = 3
[[cells]]
name = "held open"
variant = "stock"
hold_ms = 20
trials = 3
[[cells]]
name = "owned, held open"
variant = "owned-stream"
hold_ms = 20
trials = 3
"""
"""Cells whose trials all end alike."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run's own: a neighbour's lies beside it."""
    made = tmp_path / "runs" / "this"
    made.mkdir(parents=True)
    (tmp_path / "runs" / "neighbour").mkdir()
    return made


Sandbox = Callable[..., DockerSandbox]


@pytest.fixture
def sandbox(engine: docker.DockerClient, image: str, folder: Path) -> Sandbox:
    def of(device: Device = EMULATED, limits: Limits = LIMITS, **options: Any) -> DockerSandbox:
        return DockerSandbox(
            folder, run="the-run", attempt="the-attempt", device=device, image=image,
            limits=limits, **options,
        )  # fmt: skip

    return of


@pytest.fixture
def parent(sandbox: Sandbox, config: Config) -> Iterator[DockerParent]:
    """A parent of the demo's race, ready for trials."""
    started = sandbox().start(config())
    try:
        assert next(events(started))["event"] == "ready"
        yield started
    finally:
        started.close()


@pytest.fixture
def hostile(compiler: str, tmp_path: Path, sandbox: Sandbox) -> Iterator[Callable[..., Any]]:
    """`hostile("exit(7);")`: a parent whose build does that as soon as it is loaded."""
    started = []

    def of(statements: str, limits: Limits = LIMITS) -> DockerParent:
        source, build = tmp_path / "hostile.cpp", tmp_path / "hostile"
        build.mkdir()
        source.write_text(
            "#include <cstdlib>\n#include <cstring>\n#include <unistd.h>\n#include <signal.h>\n"
            f"__attribute__((constructor)) static void load() {{ {statements} }}\n"
        )
        library = str(build / demo_build.LIBRARY)
        command = [*compiler.split(), "-shared", "-fPIC", "-O0", str(source), "-o", library]
        subprocess.run(command, check=True)
        config = ParentConfig("demo", str(build), "registered", "0")
        started.append(sandbox(limits=limits).start(config))
        return started[-1]

    yield of
    for each in started:
        each.close()


def events(parent: DockerParent) -> Iterator[dict[str, Any]]:
    """Its events, until it is gone."""
    pending = b""
    while True:
        assert select.select([parent], [], [], WAIT_S)[0], "no event in time"
        data = parent.read()
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        yield from map(json.loads, lines)


def events_until_exit(parent: DockerParent) -> Iterator[dict[str, Any]]:
    for event in events(parent):
        yield event
        if event["event"] == "exit":
            return


def start(spec: TrialSpec) -> dict[str, Any]:
    return {"op": "start", "spec": {**vars(spec), "environment": dict(spec.environment)}}


def containers_of(engine: docker.DockerClient, label: str, value: str) -> list[Container]:
    found = engine.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    return [one for one in found if value in one.labels[label].split("/")]


def the_container(engine: docker.DockerClient) -> Container:
    (found,) = containers_of(engine, LABEL_OWNER, str(os.getpid()))
    return found


def inside(engine: docker.DockerClient, code: str) -> Any:
    """What a process of the trials' user finds out in the container, as JSON."""
    done = the_container(engine).exec_run(["python3", "-c", f"import json, os, socket\n{code}"])
    assert done.exit_code == 0, done.output.decode()
    return json.loads(done.output)


# The same trials


@pytest.mark.parametrize(
    ("ref", "status", "failed"),
    [("race", 1, [(3, 0), (3, 0), (3, 3), (3, 0)]), ("fix", 0, [(3, 0), (3, 0), (3, 0), (0, 0)])],
)
def test_the_same_run_gives_the_same_outcomes_in_process_and_in_docker(
    ref: str,
    status: int,
    failed: list[tuple[int, int]],
    image: str,
    build_image: str,
    racewatch: Racewatch,
    tmp_path: Path,
) -> None:
    matrix = tmp_path / "same.toml"
    matrix.write_text(CELLS)
    told = {}
    for name in ("process", "docker"):
        out = tmp_path / f"{name}.json"
        run = racewatch(
            *("run", "--subject", "demo", "--ref", ref, "--matrix", str(matrix)),
            *("--sandbox", name, "--image", image, "--build-image", build_image),
            *("--json", str(out)),
        )
        said = "".join(run.communicate(timeout=300))
        assert run.returncode == status, said
        told[name] = json.loads(out.read_text())
        assert [(cell["n"], cell["k"]) for cell in told[name]["cells"]] == failed
    assert told["docker"]["parity"] == told["process"]["parity"]


def test_a_run_in_docker_builds_there_too_what_a_process_would_have_built(
    engine: docker.DockerClient,
    image: str,
    build_image: str,
    racewatch: Racewatch,
    build: Build,
    tmp_path: Path,
) -> None:
    home, out = tmp_path / "home", tmp_path / "out.json"
    run = racewatch(
        *("run", "--subject", "demo", "--ref", "race", "--cell", "stock, alone", "--trials", "1"),
        *("--sandbox", "docker", "--image", image, "--build-image", build_image),
        *("--json", str(out)),
        RACEWATCH_HOME=str(home),
    )
    said = "".join(run.communicate(timeout=300))
    assert run.returncode == 0, said
    told = json.loads(out.read_text())
    assert told["environment"]["RACEWATCH_TRIAL_IMAGE"] == engine.images.get(image).id
    (made,) = told["builds"].values()
    assert made["facts"]["image"] == engine.images.get(build_image).id
    (library,) = (home / "builds").glob(f"*/{demo_build.LIBRARY}")
    assert library.read_bytes() == (Path(build("race").folder) / demo_build.LIBRARY).read_bytes()


def test_events_come_on_a_descriptor_of_their_own(
    parent: DockerParent, spec: Spec, folder: Path
) -> None:
    log = folder / "trial.log"
    trial = spec(background=True, EMULATION_BACKGROUND="synchronize")
    parent.send(start(TrialSpec(**{**vars(trial), "log": str(log)})))
    kinds = []
    for event in events(parent):
        kinds.append(event["event"])
        if kinds[-1] == "exit":
            break
    assert {"started", "result"} <= set(kinds)  # the trial's may overtake its parent's "started"
    assert "Traceback" in log.read_text()  # the race's error: the trial's own output


def test_a_container_is_made_for_a_parent_and_not_for_a_trial(
    parent: DockerParent, engine: docker.DockerClient, spec: Spec, folder: Path
) -> None:
    before = the_container(engine).id
    for index in range(3):
        log = str(folder / f"{index}.log")
        parent.send(start(TrialSpec(**{**vars(spec(index)), "log": log})))
    ended = 0
    for event in events(parent):
        ended += event["event"] == "exit"
        if ended == 3:
            break
    assert the_container(engine).id == before


def test_a_build_may_be_a_folder_of_links(sandbox: Sandbox, config: Config, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    built = Path(config().build_dir)
    (site / demo_build.LIBRARY).symlink_to(built / demo_build.LIBRARY)
    parent = sandbox().start(ParentConfig("demo", str(site), "registered", "0"))
    try:
        assert next(events(parent))["event"] == "ready"
    finally:
        parent.close()


# The wall


def test_the_engine_reports_every_limit_of_a_container(
    parent: DockerParent, engine: docker.DockerClient, image: str, config: Config, folder: Path
) -> None:
    reported = the_container(engine).attrs
    host = reported["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["Privileged"] is False
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert (host["Memory"], host["MemorySwap"]) == (LIMITS.memory, LIMITS.memory)
    assert (host["PidsLimit"], host["NanoCpus"]) == (LIMITS.pids, 10**9)
    assert {u["Name"]: u["Hard"] for u in host["Ulimits"]} == {"fsize": LIMITS.file, "core": 0}
    assert host["Init"] is True
    assert not host["DeviceRequests"]
    assert not host["Devices"]
    assert list(host["Tmpfs"]) == ["/tmp"]
    assert "noexec" in host["Tmpfs"]["/tmp"]
    assert "nr_inodes=" in host["Tmpfs"]["/tmp"]
    assert host["IpcMode"] == "private"
    assert not host["PidMode"]
    assert not host["UsernsMode"]
    assert {(m["Source"], m["Destination"], m["RW"]) for m in reported["Mounts"]} == {
        (str(PACKAGE), str(PACKAGE), False),
        (config().build_dir, config().build_dir, False),
        (str(folder / "parent-001"), str(folder), True),
    }
    assert reported["Config"]["User"] == f"{UNPRIVILEGED}:{UNPRIVILEGED}"
    assert reported["Image"] == engine.images.get(image).id
    labels = reported["Config"]["Labels"]
    assert (labels[LABEL_KIND], labels[LABEL_RUN]) == ("trial", "the-run")
    assert labels[LABEL_ATTEMPT] == "the-attempt"


def test_a_trial_has_no_privileges(parent: DockerParent, engine: docker.DockerClient) -> None:
    code = "print(json.dumps(dict(l.split(':\\t', 1) for l in open('/proc/self/status'))))"
    status = {key: value.strip() for key, value in inside(engine, code).items()}
    assert status["Uid"].split() == [str(UNPRIVILEGED)] * 4
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_a_trial_reaches_no_network(parent: DockerParent, engine: docker.DockerClient) -> None:
    code = """
found = {"interfaces": [name for _, name in socket.if_nameindex()]}
for host in ("192.0.2.1", "172.17.0.1"):
    try:
        socket.create_connection((host, 80), timeout=5)
    except OSError as error:
        found[host] = os.strerror(error.errno)
print(json.dumps(found))
"""
    unreachable = "Network is unreachable"
    found = {"interfaces": ["lo"], "192.0.2.1": unreachable, "172.17.0.1": unreachable}
    assert inside(engine, code) == found


def test_a_trial_sees_nothing_of_the_host(
    parent: DockerParent, engine: docker.DockerClient, home: Path, folder: Path
) -> None:
    hidden = [
        *("/var/run/docker.sock", "/run/docker.sock", "/run/containerd", "/run/secrets"),
        *("/var/run/postgresql", "/root/.ssh", "/dev/kvm", "/dev/mem", "/dev/sda", "/dev/vda"),
        *("/dev/fuse", str(home / "secrets"), str(home / "store"), str(Path(__file__).resolve())),
    ]
    with socket.create_server(("0.0.0.0", 0)) as database:
        port = database.getsockname()[1]
        code = f"""
found = {{"seen": [path for path in {hidden!r} if os.path.exists(path)]}}
found["runs"] = os.listdir({str(folder.parent)!r})
found["environment"] = sorted(os.environ)
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5)
except OSError as error:
    found["database"] = os.strerror(error.errno)
print(json.dumps(found))
"""
        found = inside(engine, code)
    assert found["seen"] == []
    assert found["runs"] == [folder.name]  # and no neighbour
    assert found["database"] == "Connection refused"  # this host has a listener there
    threads = {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    python = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH"}
    assert set(found["environment"]) <= {
        *("HOME", "HOSTNAME", "LC_CTYPE", "PATH"), *threads, *python
    }  # fmt: skip


def test_a_trial_gains_no_privileges(parent: DockerParent, engine: docker.DockerClient) -> None:
    code = """
import ctypes, shutil, subprocess
libc = ctypes.CDLL(None, use_errno=True)
found = {}
def attempt(name, what):
    try:
        found[name] = what()
    except OSError as error:
        found[name] = os.strerror(error.errno)
def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "")
    return "done"
attempt("root", lambda: os.setuid(0))
attempt("user namespace", lambda: call(libc.unshare, 0x10000000))
attempt("mount", lambda: call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None))
attempt("device", lambda: os.mknod("/dev/shm/sda", 0o60666, os.makedev(8, 0)))
attempt("kernel", lambda: open("/proc/sys/kernel/core_pattern", "w"))
own = shutil.copy("/usr/bin/id", "/dev/shm/id")
os.chmod(own, 0o6755)
attempt("own setuid", lambda: subprocess.run([own, "-u"], capture_output=True).returncode)
print(json.dumps(found))
"""
    assert inside(engine, code) == {
        "root": "Operation not permitted",
        "user namespace": "Operation not permitted",
        "mount": "Operation not permitted",
        "device": "Operation not permitted",
        "kernel": "Read-only file system",
        "own setuid": "Permission denied",  # no folder that it may write to lets it run a file
    }


def test_a_trial_can_make_files_in_its_own_memory_only(
    parent: DockerParent, engine: docker.DockerClient
) -> None:
    code = """
writable = []
for path, names, _ in os.walk("/"):
    if path == "/":
        names[:] = [name for name in names if name not in ("proc", "sys")]
    try:
        os.close(os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600))
        writable.append(path)
    except OSError:
        if os.access(path, os.W_OK):
            writable.append(path)
print(json.dumps(writable))
"""
    assert set(inside(engine, code)) == {"/tmp", "/dev/shm", "/dev/mqueue"}


def test_a_trial_writes_to_its_own_log_and_trace(
    parent: DockerParent, engine: docker.DockerClient, spec: Spec, folder: Path
) -> None:
    log, trace = folder / "trial.log", folder / "trial.handlers"
    trial = TrialSpec(**{**vars(spec()), "log": str(log), "trace": str(trace)})
    parent.send(start(trial))
    assert any(event["event"] == "exit" for event in events_until_exit(parent))
    code = f"""
for name in ("trial.log", "trial.handlers"):
    with open(os.path.join({str(folder)!r}, name), "a") as file:
        file.write("mine")
print(json.dumps(sorted(os.listdir({str(folder)!r}))))
"""
    assert inside(engine, code) == ["trial.handlers", "trial.log"]
    assert log.read_text().endswith("mine")
    assert trace.read_text().endswith("mine")


def test_two_parents_of_a_run_do_not_see_each_others_files(
    sandbox: Sandbox, config: Config, spec: Spec, folder: Path, engine: docker.DockerClient
) -> None:
    run = sandbox()
    one, other = run.start(config()), run.start(config())
    try:
        log = folder / "trial.log"
        one.send(start(TrialSpec(**{**vars(spec()), "log": str(log)})))
        assert any(event["event"] == "exit" for event in events_until_exit(one))
        code = f"import os; print(os.listdir({str(folder)!r}))"
        seen = {
            container.exec_run(["python3", "-c", code]).output.decode().strip()
            for container in containers_of(engine, LABEL_OWNER, str(os.getpid()))
        }
        assert seen == {"[]", "['trial.log']"}
    finally:
        one.close()
        other.close()


def test_trials_that_write_too_much_are_ended(
    sandbox: Sandbox, config: Config, spec: Spec, folder: Path, engine: docker.DockerClient
) -> None:
    little = replace(LIMITS, kept=200_000)
    parent = sandbox(limits=little).start(config())
    try:
        log = str(folder / "trial.log")
        parent.send(start(TrialSpec(**{**vars(spec()), "log": log})))
        assert any(event["event"] == "exit" for event in events_until_exit(parent))
        the_container(engine).exec_run(["sh", "-c", f"head -c 900000 /dev/zero >> {log}"])
        assert list(events(parent)) == []
        assert "its trials wrote more than 0 MB" in parent.last_words()
    finally:
        parent.close()


def test_a_trial_cannot_fork_without_end(parent: DockerParent, engine: docker.DockerClient) -> None:
    code = """
import signal
children = []
try:
    while True:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except BlockingIOError:
    print(json.dumps(len(children)))
for child in children:
    os.kill(child, signal.SIGKILL)
"""
    assert 0 < inside(engine, code) < LIMITS.pids


def test_a_trial_cannot_write_a_file_without_end(
    parent: DockerParent, engine: docker.DockerClient, spec: Spec, folder: Path
) -> None:
    log = folder / "trial.log"
    parent.send(start(TrialSpec(**{**vars(spec()), "log": str(log)})))
    assert any(event["event"] == "exit" for event in events_until_exit(parent))
    code = f"""
written = 0
with open({str(log)!r}, "wb", buffering=0) as file:
    try:
        while True:
            written += file.write(bytes(1 << 16))
    except OSError as error:
        print(json.dumps([written, os.strerror(error.errno)]))
"""
    assert inside(engine, code) == [LIMITS.file, "File too large"]


def test_a_trial_fills_its_own_memory_and_no_disk(
    parent: DockerParent, engine: docker.DockerClient
) -> None:
    code = """
written = 0
try:
    for number in range(1000):
        with open(f"/tmp/{number}", "wb", buffering=0) as file:
            written += file.write(bytes(1 << 20))
except OSError as error:
    print(json.dumps([written, os.strerror(error.errno)]))
"""
    written, said = inside(engine, code)
    assert written <= LIMITS.tmp
    assert said == "No space left on device"


def test_memory_without_end_ends_the_parent_and_says_so(hostile: Callable[..., Any]) -> None:
    small = Limits(memory=64 * 2**20, cpus=1, pids=64, tmp=2**20)
    parent = hostile("for (;;) memset(malloc(1 << 20), 1, 1 << 20);", small)
    assert list(events(parent)) == []
    assert "ran out of memory: the limit is 0.1 GiB" in parent.last_words()


def test_a_parent_that_ends_says_how_and_what_it_printed(hostile: Callable[..., Any]) -> None:
    parent = hostile('write(2, "no such thing\\n", 14); _exit(7);')
    assert list(events(parent)) == []
    said = parent.last_words()
    assert "exit status 7" in said
    assert "no such thing" in said


def test_what_a_parent_prints_is_kept_up_to_a_limit(
    hostile: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_parent, "LOG_BYTES", 1000)
    parent = hostile('for (int i = 0; i < 100000; ++i) write(2, "0123456789", 10); _exit(0);')
    assert list(events(parent)) == []
    assert (folder / "parent-001.log").stat().st_size == 1000


def test_a_parent_that_reads_no_commands_is_ended(
    hostile: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_parent, "SEND_S", 0.5)
    parent = hostile("for (;;) pause();")
    for _ in range(1000):  # more than all buffers on the way hold
        if not parent.send({"op": "kill", "trial": 0, "padding": "x" * 10_000}):
            break
    else:
        pytest.fail("10 MB went to a parent that reads nothing")
    assert list(events(parent)) == []


def test_a_log_that_is_a_link_is_not_followed(
    sandbox: Sandbox, config: Config, engine: docker.DockerClient, folder: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    (folder / "parent-001.log").symlink_to(precious)
    with pytest.raises(InfrastructureError, match=r"parent-001\.log"):
        sandbox().start(config())
    assert not precious.exists()
    assert containers_of(engine, LABEL_OWNER, str(os.getpid())) == []


# A GPU


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        (
            [],
            {"Driver": "", "DeviceIDs": ["GPU-b"], "Capabilities": [["gpu", "compute", "utility"]]},
        ),
        (
            [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-b"}],
            {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-b"], "Capabilities": None},
        ),
    ],
)
def test_a_gpu_is_asked_for_by_its_uuid_and_is_the_only_one_inside(
    sandbox: Sandbox,
    config: Config,
    folder: Path,
    engine: docker.DockerClient,
    found: list[dict[str, str]],
    asked: dict[str, Any],
) -> None:
    cuda = Device("cuda", "GPU", ids=("2", "3"))
    uuids = {"2": "GPU-a", "3": "GPU-b"}
    made = sandbox(cuda, info={"DiscoveredDevices": found}, uuids=uuids)
    container = made.create(engine, config(device="3"), folder)
    try:
        container.reload()
        (request,) = container.attrs["HostConfig"]["DeviceRequests"]
        assert {key: request[key] or asked[key] for key in asked} == asked
        assert not request["Count"]
        assert json.loads(container.attrs["Args"][-2])["device"] == "0"
    finally:
        container.remove(force=True)


def test_an_engine_that_cannot_give_a_gpu_is_told_from_a_failing_commit(
    sandbox: Sandbox, config: Config, engine: docker.DockerClient
) -> None:
    if "nvidia" in engine.info()["Runtimes"]:
        pytest.skip("this engine has a GPU runtime")
    with pytest.raises(InfrastructureError, match=r"GPU 3: install the NVIDIA container toolkit"):
        sandbox(Device("cuda", "GPU", ids=("3",))).start(config(device="3"))
    assert containers_of(engine, LABEL_OWNER, str(os.getpid())) == []


# Nothing is left


def test_close_removes_the_container(
    sandbox: Sandbox, config: Config, engine: docker.DockerClient
) -> None:
    parent = sandbox().start(config())
    container = the_container(engine)
    parent.close()
    assert container.id not in {one.id for one in engine.containers.list(all=True)}


def test_close_ends_a_parent_that_does_not_end_itself(
    hostile: Callable[..., Any], engine: docker.DockerClient
) -> None:
    hostile("signal(SIGTERM, SIG_IGN); for (;;) pause();").close()
    assert containers_of(engine, LABEL_OWNER, str(os.getpid())) == []


def test_a_container_that_somebody_removes_is_a_parent_that_is_gone(
    parent: DockerParent, engine: docker.DockerClient
) -> None:
    the_container(engine).remove(force=True)
    assert list(events(parent)) == []
    assert "is gone" in parent.last_words()
    assert not parent.send({"op": "kill", "trial": 0})


@pytest.fixture
def long_run(image: str, build_image: str, racewatch: Racewatch) -> subprocess.Popen[str]:
    """A run in docker in the middle of its trials."""
    run = racewatch(
        *("run", "--subject", "demo", "--ref", "race", "--trials", "2000"),
        *("--cell", "stock, alone", "--sandbox", "docker"),
        *("--image", image, "--build-image", build_image),
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "[3/" in line:
            return run
    pytest.fail(f"it ended early: {run.communicate()[1]}")


def test_an_interrupted_run_leaves_no_container(
    long_run: subprocess.Popen[str], engine: docker.DockerClient
) -> None:
    assert containers_of(engine, LABEL_OWNER, str(long_run.pid))
    long_run.send_signal(signal.SIGINT)
    said = long_run.communicate(timeout=WAIT_S)
    assert long_run.returncode == 130, said
    assert containers_of(engine, LABEL_OWNER, str(long_run.pid)) == []


def test_what_a_killed_run_leaves_ends_by_itself_and_is_removed_at_the_next_start(
    long_run: subprocess.Popen[str], engine: docker.DockerClient
) -> None:
    left = containers_of(engine, LABEL_OWNER, str(long_run.pid))
    assert len(left) == 1
    long_run.kill()
    long_run.communicate()
    for container in left:
        container.wait(timeout=WAIT_S)  # its standard input ended with the run
    remove_leftovers(engine)
    assert containers_of(engine, LABEL_OWNER, str(long_run.pid)) == []


def test_the_containers_of_a_living_runner_are_left_alone(
    parent: DockerParent, engine: docker.DockerClient
) -> None:
    remove_leftovers(engine)
    assert the_container(engine).status == "running"


def test_opening_the_sandbox_removes_leftovers(
    image: str, folder: Path, engine: docker.DockerClient
) -> None:
    nobody = engine.containers.create(
        image, ["true"], labels={LABEL_OWNER: "another boot/pid:[1]/1/1"}
    )
    DockerSandbox.open(folder, run="r", device=EMULATED, parallel=1, image=image)
    assert nobody.id not in {one.id for one in engine.containers.list(all=True)}


# What is missing


def test_a_missing_image_is_named_with_the_way_out(engine: docker.DockerClient) -> None:
    with pytest.raises(InfrastructureError, match=r"no image no-such-image: .*--image"):
        require("no-such-image")


def test_a_missing_engine_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(InfrastructureError, match=r"no Docker engine answers at .*docker\.sock"):
        require("any")


def test_an_engine_on_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine.example:2375")
    with pytest.raises(InfrastructureError, match=r"must be this host's"):
        require("any")


def test_a_build_folder_that_containers_cannot_read_is_named_with_the_way_out(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    config = ParentConfig("demo", str(tmp_path / "private"), "registered", "0")
    with pytest.raises(InfrastructureError, match=r"private cannot be read .* chmod -R o\+rX"):
        sandbox().start(config)


def test_limits_leave_memory_to_the_host_and_grow_with_parallel_trials() -> None:
    info = {"NCPU": 128, "MemTotal": 512 * GIB}
    one, many = Limits.of_trials(info, 1), Limits.of_trials(info, 16)
    assert (one.memory, one.cpus) == (384 * GIB, 128)
    assert (one.pids, many.pids) == (2 * 1024, 17 * 1024)
