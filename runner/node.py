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
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from runner import device, matrix, report, result, run  # noqa: E402
from runner.errors import InputError, RacewatchError  # noqa: E402
from runner.outcome import Outcome  # noqa: E402
from runner.sandbox.process import ProcessSandbox  # noqa: E402
from runner.trial import te  # noqa: E402
from runner.trial.supervise import Deadlines  # noqa: E402
from runner.variants.names import BuildKind  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run and print the table; returns the exit status of `racewatch run`."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run(options)
    except RacewatchError as error:
        print(f"racewatch: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("racewatch: interrupted; what had finished is kept", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    parser.add_argument("--matrix", default="issue-3863", help="a matrix by name or a TOML file")
    parser.add_argument("--ref", help="which of the bundle's commits (default: the first)")
    parser.add_argument("--cell", action="append", default=[], help="only this cell (repeatable)")
    parser.add_argument("--trials", type=int, help="trials of each cell, instead of the matrix's")
    parser.add_argument("--parallel", type=int, help="trials at a time on one device")
    parser.add_argument("--devices", default="", help="GPU indices, such as 0,1 (default: all)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--events", type=Path, help="append each event to this file as it happens")
    parser.add_argument("--fresh", action="store_true", help="a fresh interpreter for each trial")
    parser.add_argument("--progress-s", type=float, default=Deadlines().progress)
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


def _run(options: argparse.Namespace) -> int:
    manifest = json.loads((HERE / "bundle.json").read_text())
    commits = manifest["commits"]
    by_ref = {row["commit"]["ref"]: row for row in commits}
    if options.ref is not None and options.ref not in by_ref:
        raise InputError(f"--ref: no {options.ref!r} in this bundle; it has {', '.join(by_ref)}")
    chosen = by_ref[options.ref] if options.ref else commits[0]
    wanted = matrix.load(options.matrix).with_trials(options.trials).only(tuple(options.cell))
    builds = {
        run.BuildId(BuildKind(row["kind"]), tuple(row["pulls"])): prepared(row["build"], HERE)
        for row in chosen["builds"]
    }
    for build_id in run.builds_of(wanted):
        if build_id not in builds:
            raise InputError(
                f"matrix {wanted.name} needs the build {build_id}, which this bundle does not "
                f"hold; it has {', '.join(map(str, builds))}"
            )
    devices = device.cuda([d for d in options.devices.split(",") if d])
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
    if parallel < 1:
        raise InputError(f"--parallel: must be at least 1, got {parallel}")
    plan = run.Plan(
        subject="te",
        commit=result.Commit(**chosen["commit"]),
        matrix=wanted,
        builds=builds,
        device=devices.device,
        parallel=parallel,
        toolchain=manifest["toolchain"],
        folder=options.work,
        expected_handlers=te.expected_handlers,
        command=shlex.join(["python3", "run.py", *sys.argv[1:]]),
        fallback_path=(str(HERE / "deps"),),
        deadlines=replace(Deadlines(), progress=options.progress_s),
        fresh=options.fresh,
    )
    plan = replace(plan, folder=options.work / plan.run)
    plan.folder.mkdir(parents=True)
    cache = options.work / "jax-cache"
    environment = {"JAX_COMPILATION_CACHE_DIR": os.fspath(cache)}
    sandbox = ProcessSandbox(plan.folder, environment=environment)
    with ExitStack() as stack:
        events = stack.enter_context(options.events.open("a")) if options.events else None
        fold = carry_out(run.Run(plan, sandbox), report.PlainProgress(sys.stdout), events)
    if options.json:
        write_json(fold, options.json)
    print("\n" + report.table(fold))
    return fold.exit_code


def carry_out(a_run: run.Run, progress: report.PlainProgress, events: TextIO | None) -> result.Fold:
    """Run to the end or to Ctrl-C; what finished is in the fold either way."""
    try:
        for event in a_run:
            progress.show(event, a_run.fold)
            if events is not None:
                print(result.dump(event), file=events, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return a_run.fold


def write_json(fold: result.Fold, path: Path) -> None:
    """Write the result whole or not at all. Raises InputError where the file cannot be written."""
    if fold.started is None:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(fold.as_json(), indent=1, default=str) + "\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"--json: cannot write {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
