#!/usr/bin/env python3
"""Runs a matrix from an unpacked bundle on a GPU host with no network: `python3 run.py`.

Needs only Python 3.12, JAX and the CUDA libraries on that host. The result file is what
`racewatch run --json` writes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":  # else `runner` is where it was found, and its folder is no path
    sys.path.insert(0, str(HERE))

from runner import device, matrix, report, result, run  # noqa: E402
from runner.controls import none_for  # noqa: E402
from runner.detector.record import Detector  # noqa: E402
from runner.errors import InfrastructureError, InputError, RacewatchError  # noqa: E402
from runner.outcome import Outcome  # noqa: E402
from runner.sandbox.process import ProcessSandbox  # noqa: E402
from runner.trial import te  # noqa: E402
from runner.trial.supervise import Deadlines  # noqa: E402
from runner.variants.names import BuildKind  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run and print the table; returns the exit status of `racewatch run`."""
    options = _parser().parse_args(arguments)
    return guarded(lambda: _run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    parser.add_argument(
        "--matrix", help="a matrix by name or a TOML file (default: the first of the bundle's)"
    )
    parser.add_argument("--ref", help="which of the bundle's commits (default: the first)")
    parser.add_argument("--cell", action="append", default=[], help="only this cell (repeatable)")
    parser.add_argument("--trials", type=int, help="trials of each cell, instead of the matrix's")
    parser.add_argument("--parallel", type=int, help="trials at a time on one device")
    parser.add_argument("--devices", default="", help="GPU indices, such as 0,1 (default: all)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--events", type=Path, help="append each event to this file as it happens")
    parser.add_argument("--cold", action="store_true", help="no compilation cache between trials")
    parser.add_argument("--fresh", action="store_true", help="a fresh interpreter for each trial")
    parser.add_argument(
        "--detect",
        action=argparse.BooleanOptionalAction,
        help="watch what capture windows swallow (default: as the matrix says)",
    )
    parser.add_argument(
        "--controls",
        action=argparse.BooleanOptionalAction,
        help="prove each device by control cells (default: as the matrix says)",
    )
    parser.add_argument("--progress-s", type=float, default=Deadlines().progress)
    parser.add_argument("--bisect", action="store_true", help="bisect what the bundle was made for")
    parser.add_argument("--confidence", type=float, default=0.99, help="of the bisection")
    parser.add_argument(
        "--observe", choices=["failure", "swallow"], default="failure", help="of its trials"
    )
    parser.add_argument("--budget-s", type=float, help="of the bisection: seconds at most")
    parser.add_argument("--record", type=Path, help="where a bisection keeps its events")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="logs and caches")
    return parser


def prepared(row: dict[str, Any], root: Path) -> run.PreparedBuild:
    """A build of the bundle's manifest, its folder made absolute."""
    folder = str(root / row["folder"]) if row["folder"] else ""
    outcome = Outcome(row["outcome"]) if row["outcome"] else None
    initialize = None if row["initialize"] is None else tuple(row["initialize"])
    return run.PreparedBuild(
        **{**row, "folder": folder, "outcome": outcome, "initialize": initialize}
    )


def detector(row: dict[str, str], root: Path) -> Detector:
    """The detector of the bundle's manifest, its library made absolute."""
    library = str(root / row["library"]) if row["library"] else ""
    return Detector(library, row["reason"])


def _run(options: argparse.Namespace) -> int:
    check_progress(options.progress_s)
    check_parallel(options.parallel)
    check_output(options.json, "--json")
    check_output(options.events, "--events")
    if not (HERE / "bundle.json").is_file():
        raise InputError(f"no bundle.json beside {HERE / 'run.py'}: unpack a whole bundle")
    manifest = json.loads((HERE / "bundle.json").read_text())
    commits = manifest["commits"]
    if options.bisect:
        return _bisect(options, manifest)
    by_ref = {row["commit"]["ref"]: row for row in commits}
    if options.ref is not None and options.ref not in by_ref:
        raise InputError(f"--ref: no {options.ref!r} in this bundle; it has {', '.join(by_ref)}")
    chosen = by_ref[options.ref] if options.ref else commits[0]
    wanted = _matrix(options.matrix, manifest)
    wanted = wanted.with_trials(options.trials).only(tuple(options.cell))
    wanted = wanted.with_detect(options.detect).with_controls(options.controls)
    builds = {
        run.BuildId(BuildKind(row["kind"]), tuple(row["pulls"])): prepared(row["build"], HERE)
        for row in chosen["builds"]
    }
    for build_id in run.builds_of(wanted):
        if build_id not in builds:
            raise InputError(
                f"matrix {wanted.name} needs the build {build_id}, which this bundle does not "
                f"hold; it has {', '.join(map(str, builds))}{_made_for(manifest)}"
            )
    base = _base(chosen["base"])
    control = _base(manifest.get("control")) if wanted.controls else None
    lacking = wanted.controls and (control is None or not control.build.folder)
    notes = (none_for("this bundle holds none"),)
    commit = result.Commit(**chosen["commit"])
    plan = _plan(options, manifest, commit, wanted, builds)
    plan = replace(plan, base=base, control=control, notes=notes if lacking else ())
    plan = in_own_folder(plan)
    progress = report.PlainProgress(sys.stdout)
    ending = carry_out(run.Run(plan, _sandbox(options, plan)), progress, options.events)
    return conclude(ending, options.json)


def _base(row: dict[str, Any] | None) -> run.Base | None:
    """Another commit's stock build, of the bundle's manifest."""
    if row is None:
        return None
    return run.Base(result.Commit(**row["commit"]), prepared(row["build"], HERE))


def _made_for(manifest: Mapping[str, Any]) -> str:
    names = [row["name"] for row in manifest.get("matrices", ())]
    return f", for --matrix {' or '.join(names)}" if names else ""


def _matrix(name: str | None, manifest: Mapping[str, Any]) -> matrix.Matrix:
    """One that the bundle was made for, or that ships, or a file."""
    carried = {row["name"]: row for row in manifest.get("matrices", ())}
    chosen = name or next(iter(carried), "issue-3863")
    if chosen in carried:
        return matrix.from_data(carried[chosen], chosen)
    others = ", ".join(sorted(carried.keys() - set(matrix.available())))
    if others and chosen not in matrix.available() and not Path(chosen).is_file():
        raise InputError(
            f"matrix {chosen!r}: neither a file nor one of {', '.join(matrix.available())}, nor "
            f"of this bundle's own, {others}"
        )
    return matrix.load(chosen)


def _plan(
    options: argparse.Namespace,
    manifest: dict[str, Any],
    commit: result.Commit,
    wanted: matrix.Matrix,
    builds: dict[run.BuildId, run.PreparedBuild],
) -> run.Plan:
    """A run of a commit's builds on this host's devices. Raises InputError."""
    devices = device.cuda(device_ids(options.devices))
    architecture = manifest["architecture"]
    major, minor = devices.device.compute_capability
    if f"{major}{minor}" != architecture:
        raise InputError(
            f"this bundle is for sm_{architecture}, the device is sm_{major}{minor}: make one with "
            f"`racewatch bundle --arch {major}{minor}`"
        )
    parallel = options.parallel
    if parallel is None:
        parallel = run.default_parallel(devices.device, devices.memory_gib, device.cores())
    return run.Plan(
        subject="te",
        commit=commit,
        matrix=wanted,
        builds=builds,
        device=devices.device,
        parallel=parallel,
        toolchain=manifest["toolchain"],
        folder=options.work,
        expected_handlers=te.expected_handlers,
        command=shlex.join(["python3", "run.py", *sys.argv[1:]]),
        environment=te.environment(),
        fallback_path=(str(HERE / "deps"),),
        deadlines=replace(Deadlines(), progress=options.progress_s),
        fresh=options.fresh,
        detector=detector(manifest["detector"], HERE) if wanted.detect else None,
    )


def _sandbox(options: argparse.Namespace, plan: run.Plan) -> ProcessSandbox:
    environment = dict(plan.environment) | compilation_cache(plan, options.cold)
    return ProcessSandbox(plan.folder, environment=environment)


def _bisect(options: argparse.Namespace, manifest: dict[str, Any]) -> int:
    """Bisect what the bundle was made for; the exit status of `racewatch bisect`."""
    # Imported here: what bisects uses this module's functions too.
    from runner.bisect import packed
    from runner.bisect.bisection import Settings
    from runner.bisect.settings import Observe

    if not manifest.get("bisection"):
        raise InputError(
            "--bisect: this bundle holds no bisection: make one with `racewatch bisect --bundle`"
        )
    if not 0.5 < options.confidence < 1:
        raise InputError(f"--confidence: must be 0.5 to 1, got {options.confidence:g}")
    asked = packed.Packed.from_data(manifest["bisection"])
    observe = Observe(options.observe)
    wanted = matrix.Matrix("bisection", "", (asked.cell,), detect=options.detect is not False)
    watched = detector(manifest["detector"], HERE)
    if observe is Observe.SWALLOW and (watched.reason or not wanted.detect):
        why = watched.reason or "--no-detect"
        raise InputError(f"--observe swallow: trials cannot be watched here: {why}")
    builds = {
        row["commit"]["sha"]: {
            run.BuildId(BuildKind(one["kind"]), tuple(one["pulls"])): prepared(one["build"], HERE)
            for one in row["builds"]
        }
        for row in manifest["commits"]
    }
    options.work.mkdir(parents=True, exist_ok=True)
    return packed.carry_out(
        asked,
        builds,
        _plan(options, manifest, asked.searched.bad, wanted, {}),
        lambda plan: _sandbox(options, plan),
        Settings(confidence=options.confidence, budget_s=options.budget_s, observe=observe),
        options.record or options.work / "bisection.jsonl",
        options.json,
    )


def device_ids(text: str) -> list[str]:
    """What `--devices` names. Raises InputError where it names one twice."""
    ids = [part.strip() for part in text.split(",") if part.strip()]
    for one in ids:
        if ids.count(one) > 1:
            raise InputError(f"--devices: {one!r} is named more than once in {text!r}")
    return ids


def check_parallel(parallel: int | None) -> None:
    """Raises InputError for a number of trials at a time that is none."""
    if parallel is not None and parallel < 1:
        raise InputError(f"--parallel: must be at least 1, got {parallel}")


def check_progress(seconds: float) -> None:
    """Raises InputError for a deadline that every trial would miss."""
    if not seconds > 0:
        raise InputError(f"--progress-s: must be more than 0, got {seconds:g}")


def check_output(path: Path | None, option: str) -> None:
    """Raises InputError where a file that is asked for could not be written when a run ends."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{option}: no folder {folder} to write {path.name} to")
    if path.is_dir():
        raise InputError(f"{option}: {path} is a folder, name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{option}: {path} cannot be written: permission denied")


def in_own_folder(plan: run.Plan) -> run.Plan:
    """The plan with a new folder for its run below the one it names."""
    folder = plan.folder / plan.run
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InfrastructureError(
            f"no folder for the run's logs: {folder}: {error.strerror}"
        ) from error
    return replace(plan, folder=folder)


class Stopped(BaseException):
    """A signal asked this process to end. Not a KeyboardInterrupt, which a command line's framework
    turns into an exit status of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def guarded(command: Callable[[], int]) -> int:
    """The exit status of a command; an error of ours is one sentence, a signal ends it in order."""
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        return command()
    except RacewatchError as error:
        print(f"racewatch: {report.plain(str(error))}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"racewatch: {where}{error.strerror or error}", file=sys.stderr)
        return InfrastructureError.exit_code
    except Stopped as stopped:
        print(f"racewatch: {stopped}", file=sys.stderr)
        return stopped.exit_code


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal must not cut short how the first one ends the trials, which takes seconds.
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


@dataclass(frozen=True)
class Ending:
    """How far a run came; early: the signal or the error that ended it before its own end."""

    fold: result.Fold
    early: BaseException | None = None


def compilation_cache(plan: run.Plan, cold: bool) -> dict[str, str]:
    """Environment that gives the trials of one run, and of no other, a compilation cache."""
    return {} if cold else {"JAX_COMPILATION_CACHE_DIR": os.fspath(plan.folder / "jax-cache")}


def carry_out(a_run: run.Run, progress: report.PlainProgress, events: Path | None) -> Ending:
    """Run to the end, to a signal or to an error; what finished is kept either way.

    Each event is written as it happens, to `events` or beside the run's logs: a host that dies
    loses no finished trial.
    """
    early: BaseException | None = None
    with ExitStack() as stack:
        kept = events or a_run.plan.folder / "events.jsonl"
        out = stack.enter_context(closing(EventsFile(kept)))
        try:
            with closing(a_run.events()) as stream:
                for event in stream:
                    out.write(event)
                    progress.show(event, a_run.fold)
        except (Stopped, Exception) as error:
            early = error
            status = "interrupted" if isinstance(error, Stopped) else "failed"
            for event in a_run.stopped(status, str(error)):
                out.write(event)
    return Ending(a_run.fold, early)


def conclude(ending: Ending, json_file: Path | None) -> int:
    """Print the table and write the result; the exit status. Raises what ended the run, if any."""
    try:
        print("\n" + report.table(ending.fold), flush=True)
    finally:
        if json_file:
            write_json(ending.fold, json_file)
    if ending.early is not None:
        raise ending.early
    return ending.fold.exit_code


class EventsFile:
    """Events appended to a file, a whole line each or none of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InputError(f"--events: cannot write {path}: {error.strerror}") from error

    def write(self, event: result.Event) -> None:
        """Append one event. Raises InfrastructureError where that fails, after which it is shut."""
        if self._failed:
            return
        data = result.dump(event).encode() + b"\n"
        whole = self._file.seek(0, os.SEEK_END) if self._file.seekable() else None
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._failed = True
            if whole is not None:
                with suppress(OSError):  # then the torn line stays: the disk is what it is
                    self._file.truncate(whole)
            raise InfrastructureError(
                f"--events: cannot write {self._path}: {error.strerror}"
            ) from error

    def close(self) -> None:
        """Shut the file."""
        self._file.close()


def write_json(fold: result.Fold, path: Path) -> None:
    """Write the result whole or not at all. Raises InfrastructureError where that fails."""
    # A pipe or a device, such as /dev/stdout, is no place to put a file in.
    special = path.exists() and not path.is_file()
    place = path if special else path.resolve()
    temporary = place if special else place.with_name(f".{place.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(fold.as_json(), indent=1, default=str) + "\n")
        if not special:
            temporary.replace(place)
    except OSError as error:
        if not special:
            temporary.unlink(missing_ok=True)
        raise InfrastructureError(f"--json: cannot write {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
