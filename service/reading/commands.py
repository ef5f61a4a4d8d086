"""The commands that run again, elsewhere, what a page shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from runner import matrix as matrices
from runner import toolchain
from runner.errors import MatrixError
from runner.matrix import Cell as MatrixCell
from runner.matrix import Matrix, Program, Recipe
from runner.rates import clean_trials
from runner.result import Commit as CommitFacts
from runner.variants.names import Variant
from service.tables import Cell

FILE = "matrix.toml"


@dataclass(frozen=True)
class What:
    """A commit and the cells to run; cells: names, empty for all. trials: of each, None for the
    matrix's."""

    subject: str
    sha: str
    matrix: Matrix
    cells: tuple[str, ...] = ()
    trials: int | None = None
    toolchain: str = ""


@dataclass(frozen=True)
class Command:
    """A command, and the text of the matrix file that it needs; empty where the matrix ships."""

    line: str
    file: str = ""


def rerun(what: What) -> Command:
    """Runs it on the host where it is typed, with no service."""
    line = ["racewatch", "run", *_what(what)]
    if what.toolchain not in ("", toolchain.DEFAULT):
        line += ["--toolchain", what.toolchain]
    return _command(line, what)


def order(what: What, queue: str) -> Command:
    """Orders a run of this service, on a host that has its database."""
    return _command(["racewatch", "submit", *_what(what), "--queue", queue], what)


def request(what: What, queue: str) -> dict[str, Any]:
    """The body that orders it through the API."""
    data = matrices.as_data(what.matrix.only(what.cells).with_trials(what.trials))
    named = "version" if CommitFacts(what.sha, "").is_release else "ref"
    body: dict[str, Any] = {"subject": what.subject, named: what.sha, "queue": queue}
    if _ships(what.matrix) and not what.cells and not _is_part(what.matrix):
        body["matrix"] = what.matrix.name
        return body | ({"trials": what.trials} if what.trials else {})
    return body | {"matrix": data}


def of_run(name: str, data: Mapping[str, Any]) -> Matrix | None:
    """A run's matrix as it was stored; None where only its name is known."""
    if data.get("cells"):
        try:
            return matrices.from_data(dict(data))
        except MatrixError:  # of a release whose matrices had something that this one's have not
            return None
    return matrices.load(name) if name in matrices.available() else None


def of_cell(cell: Cell, clean_below: float) -> tuple[Matrix, str]:
    """A matrix that has a cell, and the cell's name there: one that ships, or one of its own.

    Its trials are those that calling it clean takes.
    """
    wanted = MatrixCell(
        name="",
        variant=Variant.parse(cell.variant),
        program=Program(cell.program),
        background=cell.background,
        hold_ms=cell.hold_ms,
        recipe=Recipe(cell.recipe),
        background_period_ms=cell.background_period_ms,
    )
    for matrix in _shipped():
        for one in matrix.cells:
            if replace(one, name="", trials=wanted.trials) == wanted:
                return matrix, one.name
    own = replace(wanted, name=cell.variant, trials=clean_trials(clean_below))
    return Matrix("one cell", "", (own,), clean_below), own.name


@lru_cache(maxsize=1)
def _shipped() -> tuple[Matrix, ...]:
    first = "issue-3863"
    names = sorted(matrices.available(), key=lambda name: (name != first, name))
    return tuple(map(matrices.load, names))


def _ships(matrix: Matrix) -> bool:
    """Whether the matrix of that name has these cells, whatever their numbers of trials."""
    shipped = next((one for one in _shipped() if one.name == matrix.name), None)
    if shipped is None:
        return False
    there = _as_if_of_one_trial(shipped)
    asked = _as_if_of_one_trial(matrix)
    return replace(asked, cells=()) == replace(there, cells=()) and set(asked.cells) <= set(
        there.cells
    )


def _as_if_of_one_trial(matrix: Matrix) -> Matrix:
    """What is left of a matrix where title and trials make no difference."""
    return replace(matrix.with_trials(1), title="")


def _is_part(matrix: Matrix) -> bool:
    """Whether the matrix of that name has other cells besides."""
    return len(matrix.cells) < len(matrices.load(matrix.name).cells)


def _what(what: What) -> list[str]:
    is_release = CommitFacts(what.sha, "").is_release
    parts = ["--subject", what.subject, "--version" if is_release else "--ref", what.sha]
    ships = _ships(what.matrix)
    parts += ["--matrix", what.matrix.name if ships else FILE]
    cells = what.cells
    if not cells and ships and _is_part(what.matrix):
        cells = tuple(cell.name for cell in what.matrix.cells)
    for name in cells:
        parts += ["--cell", name]
    if what.trials:
        parts += ["--trials", str(what.trials)]
    return parts


def _command(line: list[str], what: What) -> Command:
    return Command(shlex.join(line), "" if _ships(what.matrix) else as_toml(what.matrix))


def as_toml(matrix: Matrix) -> str:
    """The matrix as its file."""
    data = matrices.as_data(matrix)
    cells = data.pop("cells")
    lines = [f"{name} = {_value(value)}" for name, value in data.items()]
    for cell in cells:
        lines += ["", "[[cells]]", *(f"{name} = {_value(value)}" for name, value in cell.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # A JSON string is a basic string of TOML too, as long as it escapes no surrogate pair.
    return json.dumps(value, ensure_ascii=False)
