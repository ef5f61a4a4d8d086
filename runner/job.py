"""One job of a worker, in a process of its own.

What is asked is one line of JSON on standard input; what is answered is lines of JSON on standard
output: a run's events, or one answer, or one error. When standard input ends, because who asked
wants no more of it or is dead, so does the job, with all its trials and compilers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runner import device as host
from runner import matrix as matrices
from runner import result
from runner.bisect.range import Range, between, into_merge
from runner.errors import (
    BisectionError,
    InfrastructureError,
    RacewatchError,
    RefError,
    VariantError,
)
from runner.lineage import Lineage
from runner.node import Stopped, compilation_cache, guarded, in_own_folder
from runner.result import Commit
from runner.run import HARNESS, Base, BuildId, Plan, PreparedBuild, Run, builds_of, default_parallel
from runner.sandbox.choice import Choice
from runner.settings import Settings
from runner.subject import Options, Request, Subject
from runner.subjects import control_of, open_subject
from runner.trial.supervise import Deadlines
from runner.variants.names import BuildKind

Answer = Callable[[dict[str, Any]], None]
_PULL = re.compile(r"(?:refs/)?pull/[1-9][0-9]*(?:/head)?")


def main() -> int:
    """Do the job that standard input names; the exit status says no more than the last line."""
    request = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what compilers and libraries print is no answer

    def answer(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line, default=str) + "\n")

    def work() -> int:
        threading.Thread(target=_end_with_input, daemon=True).start()
        try:
            _DO[request["do"]](request, answer)
        except BrokenPipeError:
            raise  # nobody listens any more
        except RacewatchError as error:
            answer({"error": type(error).__name__, "message": str(error)})
            return error.exit_code
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            answer({"error": "InfrastructureError", "message": f"{where}{error.strerror or error}"})
            return InfrastructureError.exit_code
        return 0

    return guarded(work)


def _end_with_input() -> None:
    while sys.stdin.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _open(request: dict[str, Any]) -> Subject:
    settings = Settings.load()
    options = Options(
        settings.folders,
        repository=request.get("repository", ""),
        toolchain=request.get("toolchain", ""),
        architecture=request.get("architecture", ""),
    )
    if request["do"] in _BUILDING:
        builds = _choice(request).builds(settings.home, options.jobs)
        options = replace(options, sandbox=builds)
    return open_subject(request["subject"], options)


def _choice(request: dict[str, Any]) -> Choice:
    return Choice(
        request["subject"],
        request.get("sandbox", "process"),
        request.get("image", ""),
        request.get("build_image", ""),
        trusted=request.get("trusted", False),
        run=request.get("of_run", ""),
        attempt=request.get("attempt", ""),
    )


def _resolve(request: dict[str, Any], answer: Answer) -> None:
    """The commit of a ref or release, what it came from, and the branch that it was found on.

    A pull request's head may have moved on since it was asked for: then `sha` is what counts.
    `title` is that of a commit that Racewatch itself may have made, on another host. A ref of a run
    that is `trusted` names a commit of a branch or a tag, or a pull request, which who asks has
    looked at.
    """
    subject = _open(request)
    if request.get("title"):
        made = Commit(request["sha"], request["ref"], request["title"])
        subject.lineage().fetch_commit(made)
    commit = _commit(subject, request)
    if request.get("trusted") and not request.get("sha") and not request.get("version"):
        _require_own(subject.lineage(), request, request["ref"], commit)
    base = subject.base_of(commit)
    control, lacking = control_of(subject) if request.get("controls") else (None, "")
    answer(
        {
            "commit": asdict(commit),
            "base": asdict(base) if base else None,
            "toolchain": subject.toolchain_name,
            "control": asdict(control) if control else None,
            "notes": [lacking] if lacking else [],
            "branches": {} if commit.is_release else _branches(subject, request),
        }
    )


def _branches(subject: Subject, request: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """First-parent commits, newest first, of those branches that are there."""
    found = {}
    for name in request.get("branches", []):
        if any(sign in name for sign in "*?["):
            continue
        try:
            head = subject.resolve(Request(ref=name))
        except RefError:
            continue
        found[name] = [asdict(commit) for commit in subject.history(head)]
    return found


def _describe(request: dict[str, Any], answer: Answer) -> None:
    """What this host can do for a subject: its device, or the reason why there is none."""
    subject = _open(request)
    said: dict[str, Any] = {"toolchain": subject.toolchain_name, "harness": HARNESS}
    if not request.get("trials", True):
        answer(said | {"reason": "it runs no trials"})
        return
    try:
        found = subject.devices(request.get("devices", []))
        jax = _jax(subject, request) if found.device.kind == "cuda" else ""
    except InfrastructureError as error:
        if request.get("devices") or not request.get("build", True):
            raise
        answer(said | {"reason": str(error)})
        return
    device = replace(found.device, jax=jax)
    major, minor = device.compute_capability
    parallel = request.get("parallel") or default_parallel(device, found.memory_gib, host.cores())
    answer(
        said
        | {
            "device": asdict(device),
            "queue": "emulated" if device.emulated else f"sm{major}{minor}",
            "parallel": parallel * max(1, len(device.ids)),
        }
    )


def _jax(subject: Subject, request: dict[str, Any]) -> str:
    """The version of JAX that trials import."""
    code = "import importlib.metadata as m; print(m.version('jax'))"
    choice = _choice(request)
    if choice.name == "docker":
        said = choice.ask_trials(["python3", "-c", code], Settings.load().home)
        if said is None:
            raise InfrastructureError(f"the image of trials, {choice.image}, has no JAX")
        return said.strip()
    python = subject.trial_python()
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise InfrastructureError(f"{python} has no JAX: {last or 'it does not say why'}")
    return done.stdout.strip()


def _commit(subject: Subject, request: dict[str, Any]) -> Commit:
    version, ref, sha = request.get("version", ""), request.get("ref", ""), request.get("sha", "")
    if version:
        return subject.resolve(Request(version=version))
    if not sha:
        return subject.resolve(Request(ref=ref))
    try:
        commit = subject.resolve(Request(ref=sha))
    except RefError:
        if not ref.startswith("pull/"):
            raise
        subject.resolve(Request(ref=ref))  # fetches what the pull request has now
        commit = subject.resolve(Request(ref=sha))
    return replace(commit, ref=ref or commit.ref)


def _history(request: dict[str, Any], answer: Answer) -> None:
    """The first-parent commits of a branch, newest first; those after `since` where that is named.

    Diverged ends start from their merge base.
    """
    subject = _open(request)
    head = subject.resolve(Request(ref=request["ref"]))
    since = subject.resolve(Request(ref=request["since"])) if request.get("since") else None
    answer(
        {
            "head": asdict(head),
            "since": asdict(since) if since else None,
            "history": [asdict(commit) for commit in subject.history(head, since)],
        }
    )


def _range(request: dict[str, Any], answer: Answer) -> None:
    """The range between two refs, as a bisection searches it.

    Where the repository is not made by Racewatch itself, an end has to be on a branch or a tag, or
    be one of `own`, or named as a pull request, which who asks has looked at: a fork's commits can
    be had by their hash as well, however that is written.
    """
    lineage = _open(request).lineage()
    good, bad = (lineage.resolve(request[end]) for end in ("good", "bad"))
    for end, commit in (("good", good), ("bad", bad)):
        if commit.sha not in request.get("own", ()):
            _require_own(lineage, request, request[end], commit, f"{end}: ")
    found = between(lineage, good, bad, BuildId.parse(request["build"]))
    answer({"range": found.to_data()})


def _require_own(
    lineage: Lineage, request: dict[str, Any], ref: str, commit: Commit, end: str = ""
) -> None:
    """Raise BisectionError or RefError for what may be a fork's commit."""
    made_here = not request.get("repository")
    if made_here or _PULL.fullmatch(ref) or lineage.is_on_branch(commit):
        return
    kind = BisectionError if end else RefError
    raise kind(
        f"{end}commit {ref} is on no branch or tag of the repository, so it may be a fork's: name "
        "a branch or a tag that has it"
    )


def _enter(request: dict[str, Any], answer: Answer) -> None:
    """The range inside the merge that leads into a class of a range, if it has one."""
    outer = Range.from_data(request["range"])
    inner = into_merge(_open(request).lineage(), outer, request["place"])
    answer({"range": inner.to_data() if inner else None})


def _revert(request: dict[str, Any], answer: Answer) -> None:
    """The head without a commit, or why there is none."""
    lineage = _open(request).lineage()
    try:
        commit = lineage.revert(Commit(**request["culprit"]), Commit(**request["head"]))
    except VariantError as error:
        answer({"reason": str(error)})
        return
    (key,) = lineage.keys([commit], BuildId.parse(request["build"]))
    answer({"commit": asdict(commit), "key": key})


def _build(request: dict[str, Any], answer: Answer) -> None:
    """One build of a commit."""
    subject = _open(request)
    built = subject.build(Commit(**request["commit"]), BuildId.parse(request["build"]))
    answer({"build": asdict(built)})


def _trials(request: dict[str, Any], answer: Answer) -> None:
    """The trials of a matrix, as a run of its own; the answers are its events."""
    subject = _open(request)
    commit, wanted = Commit(**request["commit"]), matrices.from_data(request["matrix"])
    found = _without(subject.devices(request.get("devices", [])), request.get("without", []))
    builds = {build_id: subject.build(commit, build_id) for build_id in builds_of(wanted)}
    _check_keys(builds, request.get("keys", {}))
    choice = _choice(request).pinned()
    plan = in_own_folder(
        Plan(
            subject=subject.name,
            commit=commit,
            matrix=wanted,
            builds=builds,
            device=found.device,
            parallel=request.get("parallel")
            or default_parallel(found.device, found.memory_gib, host.cores()),
            toolchain=subject.toolchain_name,
            folder=Path(request["folder"]),
            expected_handlers=subject.expected_handlers,
            command=request.get("command", ""),
            environment=subject.trial_environment(found.device) | choice.recorded(),
            fallback_path=subject.trial_packages(),
            deadlines=replace(Deadlines(), **request.get("deadlines", {})),
            base=_base(subject, request.get("base")),
            detector=subject.detector() if wanted.detect else None,
            control=_base(subject, request.get("control")),
            run=request["run"],
        )
    )
    python = subject.trial_python() if choice.name == "process" else ""
    environment = dict(plan.environment) | compilation_cache(plan, cold=False)
    a_run = Run(plan, choice.trials(plan, python, environment, Settings.load().home))
    _answer_events(a_run, answer)


def _without(found: host.HostDevices, devices: Sequence[str]) -> host.HostDevices:
    """The devices of this host less those, unless that leaves none."""
    kept = tuple(one for one in found.device.ids if one not in devices)
    return replace(found, device=replace(found.device, ids=kept)) if kept else found


def _answer_events(a_run: Run, answer: Answer) -> None:
    """All events; those of a run that was stopped, at whatever point, end with one that says so.

    One that had not begun does not begin then: nobody knows in which versions it would have.
    """
    try:
        with closing(a_run.events()) as events:
            for event in events:
                answer(json.loads(result.dump(event)))
    except Stopped as stopped:
        status, reason = "interrupted", str(stopped)
    except BrokenPipeError:
        raise  # nobody listens any more
    except (RacewatchError, OSError) as error:
        status, reason = "failed", str(error)
    else:
        return
    begun = a_run.fold.started is not None
    for event in a_run.stopped(status, reason):
        if begun or isinstance(event, result.RunEnded):
            answer(json.loads(result.dump(event)))


def _check_keys(builds: dict[BuildId, PreparedBuild], keys: dict[str, str]) -> None:
    for build_id, build in builds.items():
        wanted = keys.get(str(build_id), build.key)
        if build.key != wanted:
            raise InfrastructureError(
                f"build {build_id}: this host makes {build.key[:12]}, the run has {wanted[:12]}: "
                + (
                    "a pull request has moved on since, order the run anew"
                    if build_id.pulls
                    else "hosts that share runs need the same compiler and the same Racewatch"
                )
            )


def _base(subject: Subject, commit: dict[str, Any] | None) -> Base | None:
    if commit is None:
        return None
    of = Commit(**commit)
    return Base(of, subject.build(of, BuildId(BuildKind.STOCK)))


_BUILDING = frozenset({"build", "trials"})
"""Jobs that compile; the others only look."""
_DO: dict[str, Callable[[dict[str, Any], Answer], None]] = {
    "describe": _describe,
    "resolve": _resolve,
    "history": _history,
    "range": _range,
    "enter": _enter,
    "revert": _revert,
    "build": _build,
    "trials": _trials,
}


if __name__ == "__main__":
    sys.exit(main())
