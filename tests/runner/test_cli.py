"""The command, as a user meets it: exit statuses, what is written, signals, and bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner import result
from runner.cli import app
from runner.errors import InfrastructureError, InputError, RacewatchError, StoreError
from runner.outcome import Outcome

Racewatch = Callable[..., "subprocess.Popen[str]"]
Eventually = Callable[[Callable[[], object], str], None]
Needs = Callable[[object, str], None]

MATRIX = """
name = "small"
[[cells]]
name = "stock, background"
variant = "stock"
trials = 2
[[cells]]
name = "stock, alone"
variant = "stock"
background = false
trials = 2
[[cells]]
name = "owned-stream"
variant = "owned-stream"
trials = 2
"""
LONG = """
name = "long"
[[cells]]
name = "alone"
variant = "stock"
background = false
trials = 5000
[[cells]]
name = "hangs"
variant = "stock"
trials = 5000
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(MATRIX)
    return str(path)


@pytest.fixture
def long(tmp_path: Path) -> str:
    path = tmp_path / "long.toml"
    path.write_text(LONG)
    return str(path)


def demo(ref: str, matrix: str, *more: str) -> list[str]:
    return ["run", "--subject", "demo", "--ref", ref, "--matrix", matrix, *more]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


# What a commit answers


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--ref", "race"], 1, "the race is there"),
        (["--ref", "fix"], 0, "outputs of stock and its base"),
        (["--ref", "before"], 0, "unsupported: this commit has no stream capture"),
        (["--ref", "broken"], 3, "error: 'count_saturated' was not declared in this scope"),
        (["--ref", "pull/7"], 0, "no cell that ships fails"),
        (["--ref", "race", "--with", "pull/7"], 0, "no cell that ships fails"),
    ],
)
def test_the_exit_status_is_the_answer(
    racewatch: Racewatch, small: str, arguments: list[str], status: int, said: str
) -> None:
    process = racewatch("run", "--subject", "demo", "--matrix", small, *arguments)
    got, out, err = finish(process)
    assert (got, err) == (status, "")
    assert said in out
    assert "EMULATED" in out


def test_events_fold_to_what_json_says(racewatch: Racewatch, small: str, tmp_path: Path) -> None:
    events, answer = tmp_path / "events.jsonl", tmp_path / "result.json"
    files = ["--events", str(events), "--json", str(answer)]
    status, *_ = finish(racewatch(*demo("race", small, *files)))
    fold = result.fold(result.load(line) for line in events.read_text().splitlines())
    assert status == fold.exit_code == 1
    assert json.loads(json.dumps(fold.as_json(), default=str)) == json.loads(answer.read_text())
    assert fold.started.command.endswith(f"--json {answer}")


def test_events_are_appended(racewatch: Racewatch, small: str, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    for _ in range(2):
        finish(racewatch(*demo("race", small, "--cell", "stock, alone", "--events", str(events))))
    loaded = [result.load(line) for line in events.read_text().splitlines()]
    assert len({event.run for event in loaded}) == 2


@pytest.mark.parametrize(
    ("matrix", "options", "watched"),
    [("small", [], False), ("small", ["--detect"], True), ("quick", ["--no-detect"], False)],
)
def test_trials_are_watched_as_the_matrix_or_the_option_says(
    racewatch: Racewatch, small: str, tmp_path: Path, matrix: str, options: list[str], watched: bool
) -> None:
    answer = tmp_path / "result.json"
    name = small if matrix == "small" else matrix
    arguments = demo("race", name, "--cell", "stock, alone", "--json", str(answer), *options)
    _, out, _ = finish(racewatch(*arguments))
    (row,) = json.loads(answer.read_text())["cells"]
    assert (row["swallow"] is not None) == watched
    assert ("trials with foreign work" in out) == watched


def test_one_cell_and_a_number_of_trials_can_be_asked_for(
    racewatch: Racewatch, small: str, tmp_path: Path
) -> None:
    answer = tmp_path / "result.json"
    asked = ["--cell", "stock, alone", "--trials", "5", "--devices", "0,1", "--json", str(answer)]
    assert finish(racewatch(*demo("race", small, *asked)))[0] == 0
    (cell,) = json.loads(answer.read_text())["cells"]
    assert (cell["name"], cell["n"]) == ("stock, alone", 5)


def test_a_hang_is_called_one_after_as_long_as_is_asked_for(
    racewatch: Racewatch, small: str, tmp_path: Path
) -> None:
    answer = tmp_path / "result.json"
    asked = ["--cell", "stock, background", "--progress-s", "0.5", "--json", str(answer)]
    process = racewatch(*demo("race", small, *asked), EMULATION_BACKGROUND="wait")
    assert finish(process)[0] == 1
    hung = [t for t in json.loads(answer.read_text())["trials"] if t["outcome"] == "hang"]
    assert len(hung) == 2
    assert all(0.5 < trial["seconds"] < 8 for trial in hung)


# Signals


def processes_of(run: str) -> list[str]:
    """Command lines of what runs in the folder of a run, or was given it."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = os.readlink(process / "cwd")
        except OSError:  # it ended meanwhile
            continue
        if run in command or run in where:
            found.append(command)
    return found


class Underway:
    """A run with a trial that has finished and one that hangs."""

    def __init__(self, process: subprocess.Popen[str], events: Path, answer: Path) -> None:
        self.process = process
        self.events = events
        self.answer = answer

    def await_trials(self, count: int) -> None:
        """Returns once that many trials have finished."""
        assert self.process.stdout is not None
        seen = 0
        while seen < count:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()  # type: ignore[union-attr]
            seen += line.startswith(("  [", "! ["))

    @property
    def run(self) -> str:
        return result.load(self.events.read_text().splitlines()[0]).run


@pytest.fixture
def underway(
    racewatch: Racewatch, long: str, tmp_path: Path, home: Path, eventually: Eventually
) -> Iterator[Underway]:
    events, answer = tmp_path / "events.jsonl", tmp_path / "result.json"
    files = ["--events", str(events), "--json", str(answer), "--parallel", "2"]
    files += ["--progress-s", "600"]  # what hangs does so until a test ends it
    process = racewatch(*demo("race", long, *files), EMULATION_BACKGROUND="wait")
    started = Underway(process, events, answer)
    started.await_trials(1)
    # Trial 0 is the reference; of the next two at least one is of the cell that hangs.
    logs = [home / "runs" / started.run / f"trial-{index:05d}.log" for index in (1, 2)]
    eventually(lambda: all(log.exists() for log in logs), "trials are in flight")
    yield started
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("whole_group", [True, False])
def test_a_signal_ends_every_process_and_keeps_what_finished(
    underway: Underway, number: signal.Signals, whole_group: bool
) -> None:
    assert processes_of(underway.run)
    if whole_group:
        os.killpg(underway.process.pid, number)
    else:
        underway.process.send_signal(number)
    status, out, err = finish(underway.process)
    assert status == 128 + number
    assert processes_of(underway.run) == []
    assert f"interrupted: stopped by {number.name}" in out
    assert err == f"racewatch: stopped by {number.name}\n"
    answer = json.loads(underway.answer.read_text())
    fold = result.fold(map(result.load, underway.events.read_text().splitlines()))
    assert answer == json.loads(json.dumps(fold.as_json(), default=str))
    assert (answer["status"], len(answer["trials"]) >= 1) == ("interrupted", True)
    # What was ended is no finding: the trials that hung in flight are not there.
    assert {trial["outcome"] for trial in answer["trials"]} == {"pass"}


def test_nothing_outlives_a_command_that_is_killed(
    underway: Underway, eventually: Eventually
) -> None:
    run = underway.run
    assert processes_of(run)
    underway.process.kill()
    eventually(lambda: not processes_of(run), "every trial ended")
    for line in underway.events.read_text().splitlines():
        result.load(line)


def test_a_signal_while_building_leaves_nothing_and_is_no_answer(
    racewatch: Racewatch, small: str, tmp_path: Path, compiler: str, eventually: Eventually
) -> None:
    home, begun = tmp_path / "home", tmp_path / "compiling"
    slow = tmp_path / "compiler"
    slow.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && exec {compiler} --version\n'
        f': > {begun}\nexec {compiler} "$@"\n'
    )
    slow.chmod(0o755)
    process = racewatch(*demo("race", small), RACEWATCH_HOME=str(home), CXX=str(slow))
    eventually(begun.exists, "the build has begun")
    os.killpg(process.pid, signal.SIGINT)
    status, _, err = finish(process)
    assert (status, err) == (130, "racewatch: stopped by SIGINT\n")
    assert processes_of(str(home)) == []
    left = [path for path in (home / "builds").iterdir() if not path.name.endswith(".lock")]
    assert left == []


# Bad input: one sentence, and nothing is left behind


@pytest.fixture
def refused(
    home: Path, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RacewatchError]:
    """The error of a command that is refused, which leaves no file where it ran."""
    monkeypatch.setenv("RACEWATCH_HOME", str(home))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> RacewatchError:
        runs = set((home / "runs").glob("*"))
        with pytest.raises(RacewatchError) as caught:
            app(list(arguments), standalone_mode=False)
        assert "\n" not in str(caught.value)
        assert list(folder.iterdir()) == []
        assert set((home / "runs").glob("*")) == runs
        return caught.value

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subject", "jax", "--ref", "main"], "unknown 'jax'; known: demo, te"),
        (["--subject", "demo", "--ref", "rcae"], "did you mean race"),
        (["--subject", "demo", "--ref", "pull/99"], "pull request 99"),
        (["--subject", "demo", "--ref", "-x"], "'-x' cannot name a commit"),
        (["--subject", "demo", "--ref", "race", "--matrix", "nonsense"], "after-fix"),
        (["--subject", "demo", "--ref", "race", "--cell", "nonsense"], "no cell 'nonsense'"),
        (["--subject", "demo", "--ref", "race", "--trials", "0"], "--trials: must be 1 to"),
        (
            ["--subject", "demo", "--ref", "race", "--parallel", "0"],
            "--parallel: must be at least 1",
        ),
        (["--subject", "demo", "--ref", "race", "--progress-s", "0"], "--progress-s: must be more"),
        (["--subject", "demo", "--ref", "race", "--progress-s", "nan"], "--progress-s: must be"),
        (["--subject", "demo", "--ref", "race", "--devices", "x"], "got 'x'"),
        (["--subject", "demo", "--ref", "race", "--devices", "1,1"], "'1' is named more than once"),
        (["--subject", "demo", "--ref", "race", "--sandbox", "jail"], "unknown 'jail'; known:"),
        (["--subject", "demo", "--ref", "race", "--with", "main"], "--with: must be pull/N"),
        (["--subject", "demo", "--ref", "race", "--with", "pull/"], "--with: must be pull/N"),
        (["--subject", "demo", "--ref", "race", "--with", "pull/99"], "pull request 99"),
        (["--subject", "demo", "--ref", "race", "--version", "1.0"], "either --ref"),
        (["--subject", "demo"], "either --ref"),
        (["--subject", "demo", "--version", "1.0"], "the demo has no releases"),
        (["--version", "2.20.2", "--with", "pull/1"], "which a release has no history for"),
        (["--subject", "demo", "--ref", "race", "--json", "no/r.json"], "no folder"),
        (["--subject", "demo", "--ref", "race", "--json", "/"], "is a folder"),
        (["--subject", "demo", "--ref", "race", "--events", "no/e"], "no folder"),
        (["--subject", "demo", "--ref", "race", "--repo", "/nowhere"], "there is no such folder"),
        (["--ref", "main", "--repo", "."], "not a git repository"),
        (["--ref", "main", "--toolchain", "nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_sentence(
    refused: Callable[..., RacewatchError], arguments: list[str], said: str
) -> None:
    error = refused("run", *arguments)
    assert isinstance(error, InputError)
    assert said in str(error)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ('variant = "stock"\nhold_ms = -5', "hold_ms must be >= 0, got -5"),
        ('variant = "stonk"', "unknown variant 'stonk'"),
        ('variant = "stock"\nprogram = "x"', "unknown program 'x'"),
        ("variant = ", "not valid TOML"),
    ],
)
def test_a_matrix_that_is_none_is_one_sentence(
    refused: Callable[..., RacewatchError], tmp_path: Path, cell: str, said: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[[cells]]\n{cell}\n")
    error = refused("run", "--subject", "demo", "--ref", "race", "--matrix", str(path))
    assert isinstance(error, InputError)
    assert said in str(error)


def test_a_repository_of_something_else_is_no_subject(
    refused: Callable[..., RacewatchError], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    git = ["git", "-C", str(other), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    other.mkdir()
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (other / "file").write_text("something else")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "something else"], check=True)
    of_te = refused("run", "--ref", "main", "--repo", str(other))
    assert isinstance(of_te, InputError)
    assert "is no TransformerEngine" in str(of_te)
    of_demo = refused("run", "--subject", "demo", "--ref", "main", "--repo", str(other))
    assert isinstance(of_demo, InputError)
    assert "not the demo subject" in str(of_demo)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subject", "demo", "--ref", "race"], "only te runs on a GPU node"),
        (["--version", "2.20.2", "--arch", "nonsense"], "--arch: must be a compute capability"),
        (["--version", "2.20.2", "--arch", "sm_90"], "--arch: must be a compute capability"),
        (["--version", "2.20.2", "--part-mib", "0"], "--part-mib: must be at least 1"),
        (["--version", "2.20.2", "--matrix", "nonsense"], "nonsense"),
    ],
)
def test_a_bundle_that_cannot_be_is_one_sentence(
    refused: Callable[..., RacewatchError], arguments: list[str], said: str
) -> None:
    error = refused("bundle", "-o", "b.tar.xz", *arguments)
    assert isinstance(error, InputError)
    assert said in str(error)


@pytest.mark.parametrize("out", ["no/b.tar.xz", "b.zip", ".tar.xz"])
def test_a_bundle_is_not_written_just_anywhere(
    refused: Callable[..., RacewatchError], out: str
) -> None:
    assert isinstance(refused("bundle", "--version", "2.20.2", "-o", out), InputError)


# A host that cannot


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty RACEWATCH_HOME, where nothing is built yet."""
    monkeypatch.setenv("RACEWATCH_HOME", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


def built_in(home: Path) -> list[Path]:
    return [path for path in home.glob("builds/*") if not path.name.endswith(".lock")]


def test_no_gpu_is_the_hosts_fault(
    refused: Callable[..., RacewatchError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    repository = tmp_path / "te"
    extension = repository / "transformer_engine/jax/csrc/extensions.h"
    extension.parent.mkdir(parents=True)
    extension.touch()
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "A miniature"], check=True)
    error = refused("run", "--ref", "main", "--repo", str(repository))
    assert isinstance(error, InfrastructureError)
    assert str(error).startswith("no GPU here: nvidia-smi is not installed; ")


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"CXX": "nonsense"}, "CXX=nonsense"), ({"CXX": ""}, "no C++ compiler")],
)
def test_no_compiler_is_the_hosts_fault(
    refused: Callable[..., RacewatchError],
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environment: dict[str, str],
    said: str,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    error = refused("run", "--subject", "demo", "--ref", "race")
    assert isinstance(error, InfrastructureError)
    assert said in str(error)
    assert built_in(elsewhere) == []


def test_a_compiler_that_is_no_compiler_is_the_hosts_fault(
    refused: Callable[..., RacewatchError], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    error = refused("run", "--subject", "demo", "--ref", "race")
    assert isinstance(error, InfrastructureError)
    assert built_in(elsewhere) == []


def test_no_git_is_the_hosts_fault(
    refused: Callable[..., RacewatchError],
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused("run", "--subject", "demo", "--ref", "race")
    assert isinstance(error, InfrastructureError)
    assert "git" in str(error)


@pytest.fixture
def full_disk(tmp_path: Path, needs: Needs) -> Iterator[Path]:
    """A file system with no room for a build."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a tiny file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.usefixtures("build")
def test_a_full_store_is_one_sentence_and_holds_nothing(
    refused: Callable[..., RacewatchError],
    elsewhere: Path,
    full_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
) -> None:
    monkeypatch.setenv("RACEWATCH_STORE", str(full_disk))
    monkeypatch.setenv("CXX", compiler)
    error = refused("run", "--subject", "demo", "--ref", "race", "--matrix", "quick")
    assert isinstance(error, StoreError)
    assert "No space left on device" in str(error)
    assert built_in(elsewhere) == []
    assert [path for path in full_disk.rglob("*") if path.is_file()] == []


def test_events_that_find_no_room_stop_the_run_and_stay_whole(
    racewatch: Racewatch, long: str, full_disk: Path, tmp_path: Path
) -> None:
    events, answer = full_disk / "events.jsonl", tmp_path / "result.json"
    files = ["--events", str(events), "--json", str(answer), "--cell", "alone"]
    status, out, err = finish(racewatch(*demo("race", long, *files)))
    assert status == 3
    assert err == f"racewatch: --events: cannot write {events}: No space left on device\n"
    assert "so far" in out
    assert json.loads(answer.read_text())["status"] == "failed"
    loaded = [result.load(line) for line in events.read_text().splitlines()]
    assert len(loaded) > 1


def test_a_home_that_is_no_folder_is_one_sentence(racewatch: Racewatch, small: str) -> None:
    status, out, err = finish(racewatch(*demo("race", small), RACEWATCH_HOME="/dev/null"))
    assert (status, out) == (3, "")
    assert err.startswith("racewatch: /dev/null")
    assert err.count("\n") == 1


def test_bad_input_exits_2_with_nothing_but_a_sentence(racewatch: Racewatch) -> None:
    status, out, err = finish(racewatch(*demo("rcae", "quick")))
    assert (status, out) == (2, "")
    assert err.startswith("racewatch: ref 'rcae' names nothing in ")
    assert err.count("\n") == 1


def test_an_unknown_option_exits_2(racewatch: Racewatch) -> None:
    assert finish(racewatch("run", "--nonsense"))[0] == 2


def test_the_matrices_that_ship_are_listed(racewatch: Racewatch) -> None:
    status, out, _ = finish(racewatch("matrices"))
    assert status == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        "after-fix", "issue-3863", "quick",
    ]  # fmt: skip


def test_outcomes_of_a_result_are_known_words(
    racewatch: Racewatch, small: str, tmp_path: Path
) -> None:
    answer = tmp_path / "result.json"
    finish(racewatch(*demo("race", small, "--json", str(answer))))
    read = json.loads(answer.read_text())
    assert set(read["cells"][0]["counts"]) == set(Outcome)
    assert read["device"]["kind"] == "emulated"
    assert read["emulated"] is True
