"""Builds in containers, on a real engine: what a hostile source tries, and what becomes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from runner import te_core, te_extension, toolchain
from runner.build_command import BuildCommands, CompilerCache, Workspace
from runner.errors import BuildError, InfrastructureError
from runner.sandbox.docker_build import DockerBuilds, default_image, require
from runner.sandbox.docker_engine import GIB, UNPRIVILEGED, Limits
from runner.sandbox.docker_owner import (
    LABEL_ATTEMPT,
    LABEL_KIND,
    LABEL_OWNER,
    LABEL_RUN,
    remove_leftovers,
)
from runner.toolchain import ToolchainEnv

Eventually = Callable[[Callable[[], object], str], None]
Attempt = Callable[..., str]

MIB = 2**20
LIMITS = Limits(
    memory=256 * MIB, cpus=1, pids=48, tmp=4 * MIB, file=64 * MIB, kept=32 * MIB, files=2000
)  # fmt: skip
SECRET = "webhook-secret-of-the-service"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RACEWATCH_HOME of a host, with a secret in it and another build beside."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "github").write_text(SECRET)
    (folder / "builds" / ".building-other" / "tree").mkdir(parents=True)
    (folder / "builds" / ".building-other" / "tree" / "source.cpp").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def builds(engine: docker.DockerClient, build_image: str, home: Path) -> DockerBuilds:
    made = DockerBuilds.start(home, jobs=2, image=build_image, run="a-run", attempt="an-attempt")
    return with_limits(made, LIMITS)


def with_limits(builds: DockerBuilds, limits: Limits) -> DockerBuilds:
    builds._limits = limits
    return builds


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Workspace:
    """A tree that is built, and a folder for what it becomes."""
    folder = home / "builds" / f".building-{tmp_path.name}"
    tree, out = folder / "tree", folder / "out"
    tree.mkdir(parents=True)
    out.mkdir()
    (tree / "source.cpp").write_text("int f() { return 1; }\n")
    return Workspace(tree, out, reads=(tree,))


@pytest.fixture
def attempt(builds: DockerBuilds, workspace: Workspace, tmp_path: Path) -> Attempt:
    """`attempt("id -u")`: what a build prints that runs this; `fetch` names what it left."""

    def of(script: str, *, fetch: str = "", **limits: Any) -> str:
        log = tmp_path / "log"
        with BuildCommands(builds, workspace, log, **limits) as commands:
            commands.run(["/bin/sh", "-c", script], "the build")
            if fetch:
                commands.fetch(workspace.out / fetch)
        return log.read_text().partition("\n")[2]

    return of


def containers_of_this_process(engine: docker.DockerClient) -> list[Container]:
    found = engine.containers.list(all=True, filters={"label": LABEL_OWNER}, ignore_removed=True)
    return [one for one in found if str(os.getpid()) in one.labels[LABEL_OWNER].split("/")]


@pytest.fixture(autouse=True)
def nothing_left(engine: docker.DockerClient) -> Iterator[None]:
    """Whatever a build did, its container is gone when it is over."""
    yield
    assert containers_of_this_process(engine) == []


# What it is for


def test_a_library_comes_out_as_it_was_made(attempt: Attempt, workspace: Workspace) -> None:
    attempt(f"g++ -shared -fPIC source.cpp -o {workspace.out}/f.so", fetch="f.so")
    made = workspace.out / "f.so"
    assert made.read_bytes().startswith(b"\x7fELF")
    assert made.stat().st_uid == os.getuid()
    assert [path.name for path in workspace.out.iterdir()] == ["f.so"]


def test_a_source_that_does_not_compile_is_the_sources_fault(
    attempt: Attempt, workspace: Workspace
) -> None:
    (workspace.folder / "source.cpp").write_text("int f() { return missing; }\n")
    with pytest.raises(BuildError) as caught:
        attempt("g++ -c source.cpp -o /dev/null")
    assert caught.value.first_error.startswith("source.cpp:1:18: error: 'missing' was not")


def test_the_host_cannot_be_read_by_including_it(
    attempt: Attempt, workspace: Workspace, home: Path
) -> None:
    secret = home / "secrets" / "github"
    (workspace.folder / "source.cpp").write_text(f'#include "{secret}"\n')
    with pytest.raises(BuildError, match=r"No such file or directory"):
        attempt("g++ -c source.cpp -o /dev/null")


def test_commands_run_at_once_and_the_first_failure_ends_the_others(
    builds: DockerBuilds, workspace: Workspace, tmp_path: Path
) -> None:
    begun = workspace.out / "begun"
    lines: dict[str, Sequence[str]] = {
        "waits": ["/bin/sh", "-c", f"touch {begun}; exec sleep 1000"],
        "fails": ["/bin/sh", "-c", f"until [ -e {begun} ]; do :; done; echo a.c: error: no; false"],
    }  # fmt: skip
    with (
        pytest.raises(BuildError, match=r"fails: a\.c: error: no"),
        BuildCommands(builds, workspace, tmp_path / "log") as commands,
    ):
        commands.run_all(lines, jobs=2)


# The wall


def test_the_engine_reports_every_limit_of_a_build(
    builds: DockerBuilds, workspace: Workspace, engine: docker.DockerClient, build_image: str
) -> None:
    workshop = builds.open(workspace)
    try:
        (container,) = containers_of_this_process(engine)
        reported = container.attrs
    finally:
        workshop.end()
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
    assert host["IpcMode"] == "private"
    assert set(host["Tmpfs"]) == {"/tmp", str(workspace.out)}
    for options in host["Tmpfs"].values():
        assert {"nosuid", "nodev"} <= set(options.split(","))
        assert "nr_inodes=" in options
    assert f"size={LIMITS.kept}" in host["Tmpfs"][str(workspace.out)]
    assert [(m["Source"], m["Destination"], m["RW"]) for m in reported["Mounts"]] == [
        (str(workspace.folder), str(workspace.folder), False)
    ]
    assert reported["Config"]["User"] == f"{UNPRIVILEGED}:{UNPRIVILEGED}"
    assert reported["Image"] == engine.images.get(build_image).id
    labels = reported["Config"]["Labels"]
    assert (labels[LABEL_KIND], labels[LABEL_RUN]) == ("build", "a-run")
    assert labels[LABEL_ATTEMPT] == "an-attempt"


PROBE = """
import ctypes, glob, json, os, socket, subprocess, sys
places = json.loads(sys.argv[1])
said = {}

def attempt(name, what):
    try:
        said[name] = what()
    except (OSError, subprocess.SubprocessError) as error:
        said[name] = os.strerror(error.errno) if getattr(error, "errno", 0) else repr(error)

said["interfaces"] = [name for _, name in socket.if_nameindex()]
for host in ("192.0.2.1", "172.17.0.1", "127.0.0.1"):
    attempt(host, lambda: socket.create_connection((host, places["port"]), timeout=5) and "reached")
attempt("name", lambda: socket.getaddrinfo("example.org", 80) and "resolved")
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and "opened")
said["seen"] = [path for path in places["hidden"] if os.path.exists(path)]
said["builds"] = os.listdir(places["builds"])
said["environment"] = sorted(os.environ)
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
said["writable"] = sorted(writable)
said["sys"] = [p for p in glob.glob("/proc/sys/**", recursive=True) if os.access(p, os.W_OK)]
libc = ctypes.CDLL(None, use_errno=True)

def call(function, *arguments):
    if function(*arguments) != -1:
        return "done"
    raise OSError(ctypes.get_errno(), "")

attempt("user namespace", lambda: call(libc.unshare, 0x10000000))
attempt("mount namespace", lambda: call(libc.unshare, 0x00020000))
attempt("mount", lambda: call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None))
attempt("root", lambda: os.setuid(0) or "done")
attempt("device", lambda: os.mknod(places["out"] + "/sda", 0o60666, os.makedev(8, 0)) or "done")
found = subprocess.run(["find", "/", "-xdev", "-perm", "-4000", "-type", "f"], capture_output=True)
said["setuid"] = found.stdout.decode().split()
attempt("su", lambda: subprocess.run(["su", "-c", "id -u"], input=b"", capture_output=True,
                                     timeout=20).stdout.decode())
own = places["out"] + "/python"
with open(sys.executable, "rb") as source, open(own, "wb") as target:
    target.write(source.read())
os.chmod(own, 0o6755)
attempt("own setuid", lambda: subprocess.run([own, "-I", "-c", "import os; print(os.geteuid())"],
                                             capture_output=True).stdout.decode().strip())
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
wanted = ("Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
said["status"] = {name: status[name].strip() for name in wanted}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def seen(
    builds: DockerBuilds, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What code that a build runs finds out and gets done."""
    folder = home / "builds" / ".building-probing"
    tree, out = folder / "tree", folder / "out"
    tree.mkdir(parents=True)
    out.mkdir()
    (tree / "probe.py").write_text(PROBE)
    log = tmp_path_factory.mktemp("probe") / "log"
    with subprocess.Popen([sys.executable, "-m", "http.server", "--bind", "0.0.0.0", "0"],
                          cwd=log.parent, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONUNBUFFERED": "1"}) as listener:  # fmt: skip
        assert listener.stdout is not None
        port = re.search(r"port (\d+)", listener.stdout.readline())
        assert port is not None
        places = {
            "port": int(port[1]),
            "out": str(out),
            "builds": str(folder.parent),
            "hidden": [
                *("/var/run/docker.sock", "/run/docker.sock", "/run/containerd"),
                *("/var/run/postgresql", "/run/secrets", "/root/.ssh", "/dev/kvm", "/dev/mem"),
                *("/dev/sda", "/dev/vda", "/dev/fuse", str(home / "secrets"), str(home / "store")),
                str(Path(__file__).resolve()),
            ],
        }  # fmt: skip
        with BuildCommands(builds, Workspace(tree, out, reads=(tree,)), log) as commands:
            commands.run(["python3", tree / "probe.py", json.dumps(places)], "probing")
        listener.terminate()
    answer: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return answer


def test_a_build_reaches_no_network(seen: dict[str, Any]) -> None:
    assert seen["interfaces"] == ["lo"]
    unreachable = "Network is unreachable"
    assert (seen["192.0.2.1"], seen["172.17.0.1"]) == (unreachable, unreachable)
    assert seen["127.0.0.1"] == "Connection refused"  # where this host has a listener
    assert seen["name"] != "resolved"
    assert seen["raw"] == "Operation not permitted"


def test_a_build_sees_nothing_of_the_host(seen: dict[str, Any]) -> None:
    assert seen["seen"] == []
    assert seen["builds"] == [".building-probing"]
    assert set(seen["environment"]) <= {"HOME", "HOSTNAME", "LC_ALL", "LC_CTYPE", "PATH"}


def test_a_build_writes_to_its_own_memory_only(seen: dict[str, Any], home: Path) -> None:
    out = str(home / "builds" / ".building-probing" / "out")
    assert seen["writable"] == sorted(["/tmp", "/dev/shm", "/dev/mqueue", out])
    assert seen["sys"] == []


def test_a_build_gains_no_privileges(seen: dict[str, Any]) -> None:
    denied = "Operation not permitted"
    for what in ("user namespace", "mount namespace", "mount", "root", "device"):
        assert seen[what] == denied, what
    assert "/usr/bin/su" in seen["setuid"], "there is nothing to gain them with"
    assert seen["su"] != "0\n"
    assert seen["own setuid"] == str(UNPRIVILEGED)
    status = seen["status"]
    assert status["Uid"].split() == [str(UNPRIVILEGED)] * 4
    assert (int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (0, 0)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


# What has no end


def test_a_build_does_not_outlive_its_time(attempt: Attempt) -> None:
    with pytest.raises(InfrastructureError, match=r"was not done after 1 s, which is its limit"):
        attempt("trap '' TERM INT; while :; do :; done", time_s=1.0)


def test_what_a_build_leaves_running_ends_with_it(attempt: Attempt, eventually: Eventually) -> None:
    mark = f"sleep 1{os.getpid()}"
    attempt(f"setsid {mark} </dev/null >/dev/null 2>&1 &")

    def gone() -> bool:
        lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        return mark not in lines.splitlines()

    eventually(gone, "the end of what a build left running")


def test_forks_without_end_stop_at_the_limit(attempt: Attempt) -> None:
    with pytest.raises(InfrastructureError, match=r"more than 48 processes and threads"):
        attempt("bomb() { bomb | bomb & }; bomb; sleep 2; bomb; exit 1", time_s=30.0)


def test_memory_without_end_is_told_from_a_source_that_does_not_compile(attempt: Attempt) -> None:
    with pytest.raises(InfrastructureError, match=r"ran out of memory: the limit is 0\.2 GiB"):
        attempt("python3 -c 'x = b\"x\" * 2**30'")


def test_a_compiler_that_eats_memory_is_no_failure_of_the_commit(
    attempt: Attempt, workspace: Workspace
) -> None:
    tens = "\n".join(f"#define x{n} {','.join([f'x{n - 1}'] * 10)}" for n in range(1, 9))
    source = f"#define x0 1\n{tens}\nint x[] = {{x8}};\n"  # of a hundred million ones
    (workspace.folder / "source.cpp").write_text(source)
    with pytest.raises(InfrastructureError, match=r"ran out of memory"):
        attempt("g++ -c source.cpp -o /dev/null")


def test_output_without_end_is_cut_and_ends_the_build(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"printed more than 2 MB, which is its limit"):
        attempt("yes", output_bytes=2_000_000)
    assert (tmp_path / "log").stat().st_size < 3_000_000


@pytest.mark.parametrize("how", ["one file", "many files", "empty files"])
def test_a_build_fills_its_memory_and_no_disk(
    attempt: Attempt, workspace: Workspace, how: str
) -> None:
    out = workspace.out
    script = {
        "one file": f"cat /dev/zero > {out}/zeros",
        "many files": f"i=0; while head -c 1M /dev/zero > {out}/$i; do i=$((i+1)); done; false",
        "empty files": f"python3 -c 'for i in range(10**6): open(\"{out}/%d\" % i, \"w\").close()'",
    }[how]  # fmt: skip
    free = shutil.disk_usage(out).free
    with pytest.raises(InfrastructureError, match=r"filled the .* GiB of memory that it may write"):
        attempt(script, time_s=60.0)
    assert shutil.disk_usage(out).free > free - 16 * MIB
    assert list(out.iterdir()) == []


def test_a_build_that_ends_everything_in_its_container_is_infrastructures_loss(
    attempt: Attempt,
) -> None:
    with pytest.raises(InfrastructureError, match=r"its container ended with exit status 137"):
        attempt("kill -9 -1; sleep infinity")


# What comes out is data


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        ("ln -s /dev/zero {}", "has no end"),
        ("mkdir {}", "did not make library.so"),
        (": > {}", "did not make library.so"),
        ("ln -s {secret} {}", "did not make library.so"),
        ("true", "did not make library.so"),
    ],
)
def test_what_is_no_library_is_not_taken(
    attempt: Attempt, workspace: Workspace, home: Path, left: str, sentence: str
) -> None:
    script = left.format(workspace.out / "library.so", secret=home / "secrets" / "github")
    with pytest.raises(BuildError, match=sentence):
        attempt(script, fetch="library.so")


def test_a_pipe_in_place_of_a_library_ends_with_the_builds_time(
    attempt: Attempt, workspace: Workspace
) -> None:
    with pytest.raises(InfrastructureError, match=r"not done after 2 s"):
        attempt(f"mkfifo {workspace.out}/library.so", fetch="library.so", time_s=2.0)


def test_a_link_that_comes_out_is_a_file(attempt: Attempt, workspace: Workspace) -> None:
    attempt(f"ln -s /etc/hostname {workspace.out}/library.so", fetch="library.so")
    library = workspace.out / "library.so"
    assert not library.is_symlink()
    assert library.read_text().strip() != os.uname().nodename


# The compiler cache


@pytest.mark.parametrize(("trusted", "kept"), [(False, False), (True, True)])
def test_only_a_trusted_build_adds_to_the_compiler_cache(
    engine: docker.DockerClient, build_image: str, home: Path, workspace: Workspace,
    tmp_path: Path, trusted: bool, kept: bool,
) -> None:  # fmt: skip
    builds = DockerBuilds.start(home, jobs=1, image=build_image, trusted=trusted)
    cache = builds.cache_of(tmp_path)
    assert cache == CompilerCache(tmp_path / "containers" / "ccache", read_only=not trusted)
    cached = replace(workspace, cache=cache)
    with BuildCommands(builds, cached, tmp_path / "log") as commands:
        commands.run(
            ["ccache", "g++", "-c", "source.cpp", "-o", workspace.out / "a.o"], "compiling"
        )
        if not trusted:
            with pytest.raises(BuildError):
                commands.run(["touch", cache.folder / "poison"], "poisoning")
    assert bool(list(cache.folder.rglob("*R"))) is kept


# TransformerEngine, in miniature


@pytest.fixture
def env(builds: DockerBuilds, tmp_path: Path) -> ToolchainEnv:
    """A toolchain with empty headers, on the image's compiler and interpreter."""
    version = (
        builds.ask(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]) or ""
    ).strip()
    interpreter = toolchain.find_interpreter(version, builds)
    compiler = builds.which("g++")
    assert interpreter is not None
    assert interpreter.has_headers
    assert compiler is not None
    site = tmp_path / "toolchain"
    headers = [*te_extension._REQUIRED_HEADERS, *te_core._HEADERS]
    for header in headers:
        if header == "Python.h":
            continue
        for folder in ("nvidia/cu13/include", "include"):
            path = site / folder / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    library = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library], input=b"", check=True
    )
    for tool, path in (
        ("cmake", site / "cmake" / "data" / "bin" / "cmake"),
        ("ninja", site / "bin" / "ninja"),
        ("nvcc", site / "nvidia" / "cu13" / "bin" / "nvcc"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'#!/bin/sh\n[ "$1" = --list-gpu-code ] && exec echo sm_90\nexec {tool} "$@"\n'
        )
        path.chmod(0o755)
    made = replace(toolchain.load(), python=version)
    return ToolchainEnv(made, interpreter, compiler, "", site, site)


def test_the_extension_is_compiled_in_a_container(
    builds: DockerBuilds, env: ToolchainEnv, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    source = '#include <Python.h>\n#include <cudnn.h>\nextern "C" int entry() { return 7; }\n'
    for name, text in (
        ("csrc/extensions/a.cpp", source),
        ("common_headers/common/common.h", ""),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    made = te_extension.compile_extension(
        tree, env, tmp_path / "out", log=tmp_path / "log", jobs=2, sandbox=builds
    )
    assert made.read_bytes().startswith(b"\x7fELF")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [made.name]


CORE = """
cmake_minimum_required(VERSION 3.21)
project(transformer_engine LANGUAGES CXX)
file(READ "{secret}" stolen OFFSET 0)
execute_process(COMMAND sh -c "cat {secret}; echo '#!/bin/sh' > {evil}; : > {tree}/evil"
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
message(STATUS "stolen: ${{stolen}} ${{out}} ${{err}}")
add_library(transformer_engine SHARED core.cpp)
"""


@pytest.mark.parametrize("reads", ["by cmake", "by a command"])
def test_cmake_files_of_the_core_run_behind_the_wall(
    builds: DockerBuilds, env: ToolchainEnv, home: Path, tmp_path: Path, reads: str
) -> None:
    """TE's core is built by the commit's own CMake files, which may run anything."""
    tree, build, log = tmp_path / "work" / "tree", tmp_path / "work" / "build", tmp_path / "log"
    source = tree / te_core.SOURCES
    source.mkdir(parents=True)
    text = CORE.format(secret=home / "secrets" / "github", evil=home / "evil", tree=tree)
    if reads == "by a command":
        text = re.sub(r"file\(READ.*\n", "", text)
    (source / "CMakeLists.txt").write_text(text)
    (source / "core.cpp").write_text('extern "C" int nvte_f() { return 1; }\n')
    with_limits(builds, replace(LIMITS, pids=256))
    try:
        library = te_core.compile_core(
            tree, env, build, architecture="90", log=log, jobs=1, sandbox=builds
        )
        assert library.read_bytes().startswith(b"\x7fELF")
    except BuildError as error:
        assert reads == "by cmake"
        assert "No such file or directory" in error.log
    finally:
        with_limits(builds, LIMITS)
    assert SECRET not in log.read_text()
    assert not (home / "evil").exists()
    assert not (tree / "evil").exists()


# Nothing is left


def test_what_a_killed_build_leaves_ends_by_itself_and_is_removed_at_the_next_start(
    engine: docker.DockerClient, build_image: str, home: Path, workspace: Workspace,
    eventually: Eventually,
) -> None:  # fmt: skip
    code = f"""
from pathlib import Path
from runner.build_command import BuildCommands, Workspace
from runner.sandbox.docker_build import DockerBuilds
builds = DockerBuilds.start(Path({str(home)!r}), jobs=1, image={build_image!r})
tree, out = Path({str(workspace.folder)!r}), Path({str(workspace.out)!r})
with BuildCommands(builds, Workspace(tree, out, reads=(tree,)), tree.parent / "log") as commands:
    commands.follow(["sh", "-c", "echo begun; exec sleep 1000"], "sleeping")
"""
    runner = subprocess.Popen([sys.executable, "-c", code])
    try:
        log = workspace.folder.parent / "log"
        eventually(lambda: log.is_file() and "begun" in log.read_text()[3:], "the build's begin")
        found = engine.containers.list(all=True, filters={"label": LABEL_OWNER})
        left = [one for one in found if str(runner.pid) in one.labels[LABEL_OWNER].split("/")]
        assert len(left) == 1
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    left[0].wait(timeout=60)  # its standard input ended with the runner
    remove_leftovers(engine)
    assert left[0].id not in {one.id for one in engine.containers.list(all=True)}


# Questions to an image


def test_an_image_is_asked_once(builds: DockerBuilds, monkeypatch: pytest.MonkeyPatch) -> None:
    first = builds.ask(["g++", "--version"])
    assert first is not None
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert builds.ask(["g++", "--version"]) == first


def test_a_question_that_was_killed_is_asked_again(builds: DockerBuilds, home: Path) -> None:
    killed = ["/bin/sh", "-c", "kill -9 $$"]
    for _ in range(2):
        with pytest.raises(InfrastructureError, match=r"/bin/sh did not answer: SIGKILL ended it"):
            builds.ask(killed)
    assert not any("kill" in path.read_text() for path in (home / "images").glob("*.json"))


def test_what_an_image_does_not_have_is_none(builds: DockerBuilds) -> None:
    assert builds.which("no-such-compiler") is None
    assert builds.ask(["false"]) is None


def test_a_missing_image_is_named_with_the_way_out(engine: docker.DockerClient) -> None:
    with pytest.raises(InfrastructureError, match=r"no image no-such-image: .*--build-image"):
        require("no-such-image")


def test_the_demo_needs_no_image_with_cuda() -> None:
    assert default_image("te") == "racewatch-builder"
    assert default_image("demo") == "racewatch-builder-cpu"


def test_limits_leave_memory_to_the_host() -> None:
    limits = Limits.of_build({"NCPU": 128, "MemTotal": 512 * GIB}, 16)
    assert (limits.memory, limits.cpus, limits.kept) == (384 * GIB, 16, 16 * GIB)
    small = Limits.of_build({"NCPU": 2, "MemTotal": 8 * GIB}, 16)
    assert (small.memory, small.cpus, small.kept) == (6 * GIB, 2, 2 * GIB)
