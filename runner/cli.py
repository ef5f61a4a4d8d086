"""The command `racewatch`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from runner import bundle as bundling
from runner import device as host
from runner import matrix as matrices
from runner import report
from runner.controls import none_for
from runner.errors import InputError
from runner.live import LiveProgress
from runner.node import (
    carry_out,
    check_output,
    check_parallel,
    check_progress,
    compilation_cache,
    conclude,
    device_ids,
    guarded,
    in_own_folder,
)
from runner.outcome import Outcome
from runner.result import Commit
from runner.run import (
    Base,
    BuildId,
    Plan,
    PreparedBuild,
    Run,
    builds_of,
    default_parallel,
    needs_base,
)
from runner.sandbox.choice import BUILD_IMAGE, TRIAL_IMAGE, Choice
from runner.settings import Settings
from runner.subject import Options, Request, Subject
from runner.subjects import control_of, open_subject
from runner.te_subject import TeSubject
from runner.trial.supervise import Deadlines
from runner.variants.names import BuildKind

app = typer.Typer(
    help="Race trials, failure rates and bisection of TransformerEngine commits on a GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
SubjectName = Annotated[str, typer.Option("--subject", help="te or demo")]
Repository = Annotated[
    str, typer.Option("--repo", help="git URL or folder of the subject, instead of its own")
]
ToolchainName = Annotated[str, typer.Option("--toolchain", help="a toolchain by name or file")]
Image = Annotated[
    str,
    typer.Option(envvar=TRIAL_IMAGE, help="what docker's containers of trials are made of"),
]
BuildImage = Annotated[
    str,
    typer.Option(envvar=BUILD_IMAGE, help="what docker's containers of builds are made of"),
]
Controls = Annotated[
    bool | None,
    typer.Option(
        "--controls/--no-controls",
        help="prove each device by control cells (default: as the matrix says)",
        show_default=False,
    ),
]
"""Options that several commands share."""


@app.callback()
def _root() -> None:
    """Racewatch."""


@app.command()
def run(
    subject: SubjectName = "te",
    ref: Annotated[str, typer.Option(help="branch, tag, commit or pull/N")] = "",
    version: Annotated[str, typer.Option(help="a release from the package index instead")] = "",
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="pull/M to merge onto the ref (repeatable)")
    ] = None,
    matrix: Annotated[str, typer.Option(help="a matrix by name or a TOML file")] = "issue-3863",
    cell: Annotated[list[str] | None, typer.Option(help="only this cell (repeatable)")] = None,
    trials: Annotated[int | None, typer.Option(help="trials of each cell")] = None,
    parallel: Annotated[int | None, typer.Option(help="trials at a time on one device")] = None,
    devices: Annotated[str, typer.Option(help="devices, such as 0,1 (default: all GPUs)")] = "",
    sandbox: Annotated[str, typer.Option(help="process or docker")] = "process",
    image: Image = "",
    build_image: BuildImage = "",
    json: Annotated[Path | None, typer.Option(help="write the result to this file")] = None,
    events: Annotated[Path | None, typer.Option(help="append events as they happen")] = None,
    repo: Repository = "",
    toolchain: ToolchainName = "",
    fresh: Annotated[bool, typer.Option(help="a fresh interpreter for each trial")] = False,
    cold: Annotated[bool, typer.Option(help="no compilation cache between trials")] = False,
    detect: Annotated[
        bool | None,
        typer.Option(
            "--detect/--no-detect",
            help="watch what capture windows swallow (default: as the matrix says)",
            show_default=False,
        ),
    ] = None,
    controls: Controls = None,
    progress_s: Annotated[
        float, typer.Option(help="seconds without a sign of life that make a hang")
    ] = Deadlines().progress,
) -> None:
    """Build a commit, run a matrix of race trials on it, and print the table.

    Exit status: 0 no cell that ships fails, 1 the race is there, 2 bad input, 3 could not run.
    """
    settings = Settings.load()
    wanted = matrices.load(matrix).with_trials(trials).with_detect(detect).only(tuple(cell or ()))
    wanted = wanted.with_controls(controls)
    check_progress(progress_s)
    check_parallel(parallel)
    check_output(json, "--json")
    check_output(events, "--events")
    choice = Choice(subject, sandbox, image, build_image)
    choice.require()
    for warning in choice.warnings():
        print(f"racewatch: {warning}", file=sys.stderr)
    choice = choice.pinned()
    options = Options(settings.folders, repository=repo, toolchain=toolchain)
    options = replace(options, sandbox=choice.builds(settings.home, options.jobs))
    opened = open_subject(subject, options)
    commit = opened.resolve(_request(ref, version, with_ or []))
    found = opened.devices(device_ids(devices))
    python = opened.trial_python() if sandbox == "process" else ""
    if parallel is None:
        parallel = default_parallel(found.device, found.memory_gib, host.cores())
    console = Console()
    builds = _build_all(opened, commit, builds_of(wanted), console)
    control, lacking = _build_control(opened, wanted, console)
    plan = Plan(
        subject=opened.name,
        commit=commit,
        matrix=wanted,
        builds=builds,
        device=found.device,
        parallel=parallel,
        toolchain=opened.toolchain_name,
        folder=settings.runs,
        expected_handlers=opened.expected_handlers,
        command=shlex.join(["racewatch", *sys.argv[1:]]),
        environment=opened.trial_environment(found.device) | choice.recorded(),
        fallback_path=opened.trial_packages(),
        deadlines=replace(Deadlines(), progress=progress_s),
        fresh=fresh,
        base=_build_base(opened, commit, builds, console),
        detector=opened.detector() if wanted.detect else None,
        control=control,
        notes=(lacking,) if lacking else (),
    )
    plan = in_own_folder(plan)
    environment = dict(plan.environment) | compilation_cache(plan, cold)
    a_run = Run(plan, choice.trials(plan, python, environment, settings.home))
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            ending = carry_out(a_run, LiveProgress(live), events)
    else:
        ending = carry_out(a_run, report.PlainProgress(sys.stdout), events)
    try:
        status = conclude(ending, json)
    finally:
        print(f"logs: {plan.folder}")
    raise typer.Exit(status)


@app.command()
def bundle(
    out: Annotated[Path, typer.Option("-o", "--out", help="the file to write (.tar.xz)")],
    subject: SubjectName = "te",
    ref: Annotated[list[str] | None, typer.Option(help="a commit (repeatable)")] = None,
    version: Annotated[str, typer.Option(help="a release from the package index")] = "",
    with_: Annotated[
        list[str] | None, typer.Option("--with", help="pull/M to merge onto each ref")
    ] = None,
    arch: Annotated[str, typer.Option(help="GPU architecture, such as 90")] = "90",
    matrix: Annotated[list[str] | None, typer.Option(help="matrices whose builds it holds")] = None,
    repo: Repository = "",
    toolchain: ToolchainName = "",
    controls: Controls = None,
    part_mib: Annotated[int | None, typer.Option(help="split into parts of this size")] = None,
) -> None:
    """Pack trial harness, built variants and TE into a file for a GPU host with no network."""
    settings = Settings.load()
    if subject != "te":
        raise InputError(f"bundle: only te runs on a GPU node, got --subject {subject!r}")
    if not re.fullmatch(r"[1-9][0-9]{1,2}", arch):
        raise InputError(f"--arch: must be a compute capability such as 90, got {arch!r}")
    bundling.check_target(out, part_mib)
    wanted = [matrices.load(name) for name in matrix or ["issue-3863", "quick", "after-fix"]]
    needed = list(dict.fromkeys(build for m in wanted for build in builds_of(m)))
    opened = TeSubject(Options(settings.folders, repo, toolchain, architecture=arch))
    console = Console()
    requests = [_request(one, "", with_ or []) for one in ref or []]
    if version or not requests:
        requests.insert(0, _request("", version, with_ or []))
    commits = []
    for request in requests:
        commit = opened.resolve(request)
        builds = _build_all(opened, commit, needed, console)
        base = _build_base(opened, commit, builds, console)
        commits.append(bundling.BundledCommit(commit, builds, base))
    asking = max((m.with_controls(controls) for m in wanted), key=lambda m: m.controls)
    control, lacking = _build_control(opened, asking, console)
    if lacking:
        console.print(lacking, highlight=False, markup=False)
    detector = opened.detector()
    if detector.reason:
        console.print(f"no detector: {detector.reason}", highlight=False, markup=False)
    packed = bundling.pack(
        commits,
        architecture=arch,
        toolchain=opened.toolchain_name,
        dependencies=opened.node_packages(),
        detector=detector,
        control=control,
        matrices=wanted,
        out=out,
        part_mib=part_mib,
    )
    print(f"{packed.size / 1e6:.1f} MB in {', '.join(map(str, packed.parts))}")


@app.command()
def demo(
    trials: Annotated[int | None, typer.Option(help="trials of each cell")] = None,
) -> None:
    """Build the demo's commit that brings the race and the one that fixes it; run both.

    Exit status 0 when the first races and the second does not, else 1.
    """
    statuses = {}
    for ref in ("race", "fix"):
        print(f"\n== demo subject, commit `{ref}` ==\n", flush=True)
        command = [sys.executable, "-m", "runner.cli", "run", "--subject", "demo", "--ref", ref]
        command += ["--trials", str(trials)] if trials else []
        statuses[ref] = subprocess.run(command, check=False).returncode
    told = statuses == {"race": 1, "fix": 0}
    print("\nthe race is in `race` and gone in `fix`" if told else f"\nunexpected: {statuses}")
    raise typer.Exit(0 if told else 1)


@app.command("matrices")
def list_matrices() -> None:
    """List the matrices that ship with Racewatch."""
    for name in matrices.available():
        loaded = matrices.load(name)
        count = sum(cell.trials for cell in loaded.cells)
        print(f"{name}: {loaded.title} ({len(loaded.cells)} cells, {count} trials)")


def _request(ref: str, version: str, pulls: list[str]) -> Request:
    if bool(ref) == bool(version):
        raise InputError("name either --ref (a branch, tag, commit or pull/N) or --version")
    numbers = []
    for pull in pulls:
        number = pull.removeprefix("pull/")
        if not re.fullmatch(r"[1-9][0-9]*", number):
            raise InputError(f"--with: must be pull/N, got {pull!r}")
        numbers.append(int(number))
    if numbers and version:
        raise InputError(
            "--with merges pull requests, which a release has no history for: use --ref"
        )
    return Request(ref=ref, version=version, pulls=tuple(sorted(numbers)))


def _build_all(
    subject: Subject, commit: Commit, needed: list[BuildId], console: Console
) -> dict[BuildId, PreparedBuild]:
    builds: dict[BuildId, PreparedBuild] = {}
    for build_id in needed:
        with console.status(f"building {build_id} of {commit.ref}"):
            built = builds[build_id] = subject.build(commit, build_id)
        how = "cached" if built.cached else f"{built.seconds:.1f} s"
        said = built.outcome or "built"
        note = f": {built.reason}" if built.outcome else f", {how}"
        line = report.plain(f"{build_id} {commit.ref}: {said}{note}")
        console.print(line, highlight=False, markup=False)
        if built.outcome is Outcome.BUILD_ERROR and build_id.kind == "stock":
            console.print(report.plain(built.signature), highlight=False, markup=False)
    return builds


def _build_base(
    subject: Subject, commit: Commit, builds: dict[BuildId, PreparedBuild], console: Console
) -> Base | None:
    """The stock build that parity needs of a fixed commit's base."""
    commit_of_base = subject.base_of(commit) if needs_base(builds) else None
    if commit_of_base is None:
        return None
    stock = BuildId(BuildKind.STOCK)
    return Base(commit_of_base, _build_all(subject, commit_of_base, [stock], console)[stock])


def _build_control(
    subject: Subject, matrix: matrices.Matrix, console: Console
) -> tuple[Base | None, str]:
    """The build of the control cells; without one, a sentence where the matrix asks for some."""
    if not matrix.controls:
        return None, ""
    commit, lacking = control_of(subject)
    if commit is None:
        return None, lacking
    stock = BuildId(BuildKind.STOCK)
    made = Base(commit, _build_all(subject, commit, [stock], console)[stock])
    if not made.build.folder:
        return None, none_for(made.build.reason)
    return made, ""


def main() -> None:
    """Run the command; an error of ours is one sentence and its exit status."""
    sys.exit(guarded(app))


if __name__ == "__main__":
    main()
