"""Trials of a commit that means harm, in a container: the run goes on and tells what they did.

A library in place of the demo's does, when its program is executed, what the cell's hold says.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from runner import demo_build, result
from runner.outcome import Outcome
from runner.result import Fold
from runner.run import Plan, PreparedBuild, Run
from runner.sandbox.docker import DockerSandbox
from runner.sandbox.docker_engine import Limits
from runner.sandbox.docker_owner import LABEL_OWNER
from runner.trial.supervise import Deadlines

MIB = 2**20
LIMITS = Limits(memory=256 * MIB, cpus=1, pids=64, tmp=8 * MIB, file=MIB, kept=16 * MIB)
ATTACKS = {
    "behaves": "",
    "forks without end": "for (;;) fork();",
    "eats memory": "for (;;) memset(malloc(1 << 20), 1, 1 << 20);",
    "prints without end": 'for (;;) write(1, "0123456789", 10);',
    "fills its memory": """
        char zeros[4096] = {};
        int file = open("/tmp/zeros", O_WRONLY | O_CREAT, 0600);
        while (write(file, zeros, sizeof zeros) > 0) {}
        if (errno != EFBIG) _exit(9);
        for (int n = 0; errno != ENOSPC; ++n) {
          file = open(("/tmp/" + std::to_string(n)).c_str(), O_WRONLY | O_CREAT, 0600);
          while (write(file, zeros, sizeof zeros) > 0) {}
        }""",
    "leaves a process": 'if (!fork()) { setsid(); execlp("sleep", "sleep", MARK, NULL); }',
    "kills its siblings and its parent": "kill(-1, SIGKILL);",
    "speaks for others": """
        const char *line = "{\\"event\\": \\"exit\\", \\"trial\\": 0}\\nnoise\\n";
        write(3, line, strlen(line)); for (;;) pause();""",
}
EXPECTED = {
    "behaves": Outcome.PASS,
    "forks without end": Outcome.HANG,
    "eats memory": Outcome.INFRA_ERROR,
    "prints without end": Outcome.HANG,
    "fills its memory": Outcome.PASS,
    "leaves a process": Outcome.PASS,
    "kills its siblings and its parent": Outcome.INFRA_ERROR,
    "speaks for others": Outcome.INFRA_ERROR,
}
LIBRARY = """
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <unistd.h>
static char output[64];
extern "C" {
const char *emulation_error() { return ""; }
const char *emulation_registrations() { return ""; }
int emulation_register(const char *, const char *) { return 0; }
int emulation_open(int) { return 0; }
const char *emulation_device_name() { return "hostile"; }
int emulation_compile(const char *, const char *) { return 0; }
int emulation_execute() {
  const char *hold = getenv("RACEWATCH_HOLD_MS");
  switch (hold == nullptr ? 0 : atoi(hold)) { CASES }
  return 0;
}
void *emulation_output() { return output; }
uint64_t emulation_output_size() { return sizeof output; }
int emulation_background_run(const char *, double, int) { return 0; }
void emulation_background_await_first() {}
void emulation_background_stop() {}
uint64_t emulation_background_updates() { return 1; }
int emulation_stale_rows() { return 0; }
}
"""


@pytest.fixture(scope="module")
def hostile(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> PreparedBuild:
    folder = tmp_path_factory.mktemp("hostile")
    cases = "".join(f"case {n}: {{ {code} }} break;\n" for n, code in enumerate(ATTACKS.values()))
    source = folder / "hostile.cpp"
    mark = f'#define MARK "{_mark()}"\n'
    source.write_text(mark + LIBRARY.replace("CASES", cases))
    command = [*compiler.split(), "-shared", "-fPIC", "-O0", "-w", str(source)]
    subprocess.run([*command, "-o", str(folder / demo_build.LIBRARY)], check=True)
    folder.chmod(0o755)
    return PreparedBuild("hostile", folder=str(folder))


def _mark() -> str:
    return f"7{os.getpid()}"


@pytest.fixture
def fold(
    engine: docker.DockerClient, image: str, plan: Callable[..., Plan], hostile: PreparedBuild
) -> Fold:
    """One run of every attack."""
    cells = [
        {"name": name, "variant": "stock", "background": False, "hold_ms": number, "trials": 1}
        for number, name in enumerate(ATTACKS)
    ]
    # Two trials hang, one of them beside processes that take all that the container may have.
    deadlines = Deadlines(progress=5.0, kill=10.0)
    planned = plan(*cells, parallel=1, deadlines=deadlines)
    planned = replace(planned, builds=dict.fromkeys(planned.builds, hostile))
    sandbox = DockerSandbox(
        planned.folder, run=planned.run, device=planned.device, image=image, limits=LIMITS
    )
    return result.fold(Run(planned, sandbox))


def test_a_hostile_commit_gets_the_outcomes_it_earns(
    fold: Fold, engine: docker.DockerClient, tmp_path: Path
) -> None:
    seen: dict[str, set[Outcome]] = {name: set() for name in ATTACKS}
    for trial in fold.trials.values():
        if trial.cell in seen:
            seen[trial.cell].add(trial.outcome)
    assert seen == {name: {outcome} for name, outcome in EXPECTED.items()}
    assert fold.ended is not None
    assert fold.ended.status == "complete"
    logs = list((tmp_path / "run").glob("*.log"))
    assert max(log.stat().st_size for log in logs) == LIMITS.file
    assert sum(log.stat().st_size for log in logs) < 3 * LIMITS.file
    left = engine.containers.list(all=True, filters={"label": LABEL_OWNER})
    assert [one for one in left if str(os.getpid()) in one.labels[LABEL_OWNER].split("/")] == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert f"sleep {_mark()}" not in running.splitlines()
