"""Reading what a runner wrote of a run, a result or a stream of events, and checking all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from runner import controls, result
from runner import matrix as matrices
from runner.errors import ResultError
from runner.matrix import Cell, Matrix, Program, Recipe, resolve_recipe
from runner.result import BASE, REFERENCE, Device, RunEnded, RunStarted, TrialFinished
from runner.run import BuildId, PreparedBuild
from runner.subjects import SUBJECTS
from service import storable

_MOST = 2**31 - 1
_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z:._+-]{0,199}")
_T = TypeVar("_T")


@dataclass
class WrittenRun:
    """One run as its file tells it.

    trials: by index. ended: None where the stream of events stops early.
    """

    run: UUID
    started: RunStarted
    builds: Mapping[str, PreparedBuild]
    trials: dict[int, TrialFinished] = field(default_factory=dict)
    ended: RunEnded | None = None

    @property
    def fold(self) -> result.Fold:
        """All of it as the runner's own fold."""
        return result.Fold(self.started, self.ended, dict(self.trials))

    @property
    def architecture(self) -> str:
        """What its trials ran on, such as `sm90` or `emulated`."""
        device = self.started.device
        major, minor = device.compute_capability
        return "emulated" if device.emulated else f"sm{major}{minor}"

    def reference(self, trial: TrialFinished) -> Cell | None:
        """The cell of a trial that the run added to those of its matrix; None for the others."""
        name = trial.cell
        control = controls.control_of(name)
        if control is not None:
            return controls.cell(control)
        if not name.startswith((REFERENCE, BASE)):
            return None
        program = name.removeprefix(REFERENCE).removeprefix(BASE)
        cells = [c for c in self.started.matrix.cells if str(c.program) == program]
        if not cells:
            raise ResultError(f"trial {trial.index}: no cell of its matrix runs {program!r}")
        capability = self.started.device.compute_capability
        ordered = next(
            (c for c in cells if str(resolve_recipe(c.recipe, capability)) == trial.recipe),
            cells[0],
        )
        return Cell(
            name="",
            variant=type(ordered.variant).parse("stock"),
            program=Program(program),
            background=False,
            recipe=ordered.recipe,
        )


def read(text: str) -> list[WrittenRun]:
    """The runs of a file: a result, or events of one run or several (a file that was added to).

    A line that was torn off as its host died counts for nothing. Raises ResultError.
    """
    text = text.removeprefix("\ufeff")
    first = text.strip().partition("\n")[0]
    head = _parsed(first)
    if isinstance(head, dict) and "event" in head:
        return _of_events(text.split("\n"))
    whole = head if first == text.strip() else _parsed(text)
    if not isinstance(whole, dict):
        what = "is empty" if not text.strip() else "is no JSON object, and no lines of them"
        raise ResultError(f"neither a result nor events of a run: it {what}")
    return [_of_result(whole)]


def _parsed(text: str) -> Any:
    """Data as the database can keep it; None for what is no JSON."""
    try:
        return storable.data(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _of_events(lines: list[str]) -> list[WrittenRun]:
    runs: dict[str, WrittenRun] = {}
    last = len(lines)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        data = _parsed(line)
        if data is None and number == last:
            break
        where = f"line {number}"
        event = _event(where, data, line)
        if isinstance(event, RunStarted):
            new = _started(where, event)
            known = runs.setdefault(event.run, new)
            if known.started != new.started:
                raise ResultError(f"{where}: run {event.run} begins a second time, differently")
            continue
        if event.run not in runs:
            raise ResultError(f"{where}: its run event is missing: run {event.run} did not begin")
        _add(where, runs[event.run], event)
    return list(runs.values())


def _of_result(data: dict[str, Any]) -> WrittenRun:
    schema = data.get("schema", result.SCHEMA)
    if isinstance(schema, int) and schema > result.SCHEMA:
        raise ResultError(
            f"a result of schema {schema}, newer than {result.SCHEMA}: update Racewatch"
        )
    names = {each.name for each in fields(RunStarted)} - {"matrix"}
    head = {name: data[name] for name in names if name in data}
    # A result without its run event's fields is one of something else: name the first.
    for name in ("run", "subject", "commit", "device", "matrix", "cells", "trials"):
        if name not in data:
            raise ResultError(f"not a result of a run: it has no {name!r}")
    event = {"event": "run", "schema": schema, **head, "matrix": _matrix(data)}
    started = _event("the result", event, "its head")
    assert isinstance(started, RunStarted)
    written = _started("the result", started)
    if not all("ordered_recipe" in row for row in data["cells"]):
        matrix = _as_ordered(written.started.matrix, written.started.device)
        written.started = replace(written.started, matrix=matrix)
    if not isinstance(data["trials"], list):
        raise ResultError("the result: trials must be a list")
    for number, row in enumerate(data["trials"]):
        where = f"trial {number} of the result"
        plain = {"event": "trial", "schema": schema, **(row if isinstance(row, dict) else {})}
        _add(where, written, _event(where, plain, "its data"))
    ended = {
        "event": "end",
        "schema": schema,
        "run": data["run"],
        "status": data.get("status", ""),
        "reason": data.get("reason", ""),
        "finished": data.get("finished") or "",
        "seconds": data.get("seconds") or 0.0,
        "notes": data.get("notes") or [],
    }
    # What a fold says of a stream that had no end event.
    if not (ended["status"] == "interrupted" and not ended["finished"]):
        _add("the result", written, _event("the result", ended, "its end"))
    return written


def _matrix(data: dict[str, Any]) -> dict[str, Any]:
    rows = data["cells"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ResultError("the result: cells must be a list of objects")
    keys = ("name", "variant", "program", "background", "background_period_ms", "hold_ms", "trials")
    matrix = {
        "name": data["matrix"],
        "title": data.get("title", ""),
        "cells": [
            {key: row[key] for key in keys if key in row}
            | {"recipe": row.get("ordered_recipe", row.get("recipe", str(Recipe.AUTO)))}
            for row in rows
        ],
    }
    asked = {"clean_below": "clean_below", "detect": "detect", "controls": "control_trials"}
    return matrix | {key: data[name] for key, name in asked.items() if name in data}


def _as_ordered(matrix: Matrix, device: Device) -> Matrix:
    """A matrix that shipped, with the recipe `auto` where the result tells only which one ran."""
    if matrix.name not in matrices.available():
        return matrix
    shipped = {cell.name: cell for cell in matrices.load(matrix.name).cells}
    capability = device.compute_capability

    def ordered(cell: Cell) -> Cell:
        auto = shipped.get(cell.name)
        if auto is None or replace(auto, recipe=cell.recipe, trials=cell.trials) != cell:
            return cell
        ran = resolve_recipe(auto.recipe, capability)
        return replace(cell, recipe=auto.recipe) if device.emulated or ran == cell.recipe else cell

    return replace(matrix, cells=tuple(map(ordered, matrix.cells)))


def _event(where: str, data: Any, line: str) -> result.Event:
    try:
        event = result.from_data(data, line)
    except ResultError as error:
        raise ResultError(f"{where}: {error}") from error
    if not isinstance(event.run, str):
        raise ResultError(f"{where}: run must be a UUID, got {str(event.run)[:80]}")
    return event


def _started(where: str, event: RunStarted) -> WrittenRun:
    plain = {**vars(event), "device": asdict(event.device), "commit": asdict(event.commit)}
    plain["base"] = asdict(event.base) if event.base else None
    plain["control"] = asdict(event.control) if event.control else None
    started = _checked(where, _STARTED, plain)
    if started.subject not in SUBJECTS:
        known = ", ".join(SUBJECTS)
        raise ResultError(f"{where}: unknown subject {started.subject!r}; known: {known}")
    _check_device(where, started.device)
    for commit in filter(None, (started.commit, started.base, started.control)):
        _check_key(where, "commit", commit.sha)
    for what, value in (("toolchain", started.toolchain), ("harness", started.harness)):
        if not 1 <= len(value) <= 200 or not value.isprintable():
            raise ResultError(f"{where}: {what} must be 1 to 200 characters, got {value[:80]!r}")
    builds = {name: _build(where, name, facts) for name, facts in started.builds.items()}
    return WrittenRun(_uuid(where, started.run), started, builds)


def _check_device(where: str, device: Device) -> None:
    if device.kind not in {"cuda", "emulated"}:
        raise ResultError(f"{where}: device kind must be cuda or emulated, got {device.kind!r}")
    if not device.emulated and not 1 <= device.compute_capability[0] <= 99:
        raise ResultError(f"{where}: device {device.name} needs its compute capability")


def _check_key(where: str, what: str, value: str) -> None:
    if not _KEY.fullmatch(value):
        raise ResultError(
            f"{where}: {what} must be 1 to 200 letters, digits or : . _ + -, got {value[:80]!r}"
        )


def _build(where: str, name: str, facts: Mapping[str, Any]) -> PreparedBuild:
    try:
        BuildId.parse(name)
    except ValueError:
        raise ResultError(f"{where}: unknown build {name[:80]!r}") from None
    known = {each.name for each in fields(PreparedBuild)} - {"folder"}
    plain = {key: value for key, value in facts.items() if key in known}
    build = _checked(f"{where}, build {name}", _BUILD, plain)
    if build.key:
        _check_key(where, f"build {name}'s key", build.key)
    elif build.outcome is None:
        raise ResultError(f"{where}: build {name} has neither a key nor an outcome")
    return build


def _add(where: str, written: WrittenRun, event: result.Event) -> None:
    if event.run != written.started.run:
        raise ResultError(f"{where}: it is of run {event.run[:80]}, not {written.run}")
    if isinstance(event, RunEnded):
        written.ended = _ended(where, event)
    elif isinstance(event, TrialFinished):
        trial = _trial(where, written.started.matrix, event)
        written.reference(trial)
        written.trials.setdefault(trial.index, trial)


def _ended(where: str, event: RunEnded) -> RunEnded:
    ended = _checked(where, _ENDED, vars(event))
    if ended.status not in STATUSES:
        known = ", ".join(STATUSES)
        raise ResultError(f"{where}: status must be one of {known}, got {ended.status[:80]!r}")
    return ended


def _trial(where: str, matrix: Matrix, event: TrialFinished) -> TrialFinished:
    trial = _checked(where, _TRIAL, vars(event))
    if not 0 <= trial.index <= _MOST:
        raise ResultError(f"{where}: index must be 0 to {_MOST}, got {trial.index}")
    if trial.build:
        _check_key(where, "build", trial.build)
    names = {cell.name for cell in matrix.cells}
    added = trial.cell.startswith((REFERENCE, BASE)) or trial.control
    if trial.cell not in names and not added:
        raise ResultError(f"{where}: no cell {trial.cell[:80]!r} in its matrix {matrix.name}")
    return trial


def _uuid(where: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ResultError(f"{where}: run must be a UUID, got {text[:80]!r}") from None


def _checked(where: str, adapter: TypeAdapter[_T], plain: Mapping[str, Any]) -> _T:
    try:
        return adapter.validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        given = repr(first["input"])[:80]
        raise ResultError(f"{where}: {name}: {first['msg'].lower()}, got {given}") from None


STATUSES = ("complete", "interrupted", "failed")
_STARTED = TypeAdapter(RunStarted)
_BUILD = TypeAdapter(PreparedBuild)
_TRIAL = TypeAdapter(TrialFinished)
_ENDED = TypeAdapter(RunEnded)
