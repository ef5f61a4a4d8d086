"""Matrix files: named lists of cells with trial counts, read from TOML and validated."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from runner.errors import MatrixError, VariantError
from runner.rates import clean_trials
from runner.variants.names import Variant

_E = TypeVar("_E", bound=StrEnum)

MATRICES = Path(__file__).parent / "matrices"
MAX_TRIALS = 100_000
MAX_HOLD_MS = 60_000.0
MAX_PERIOD_MS = 1_000.0
"""A trial's background thread makes 64 updates before the program executes, and each later one is a
sign of life: with longer pauses, deadlines would take a trial for one that hangs."""
CONTROL_TRIALS = 6
"""Of each control cell on a device: failures of all of the known-bad, and none of the known-good,
then prove it (see `runner.statistics.control`)."""


class Program(StrEnum):
    """What the main thread first-executes."""

    NORM_ACT_GEMM = "norm-act-gemm"
    SOFTMAX_QUANTIZE_ROUTER = "softmax-quantize-router"


class Recipe(StrEnum):
    """Precision of the low-precision GEMM; `auto` is resolved by `resolve_recipe`."""

    AUTO = "auto"
    NVFP4 = "nvfp4"
    MXFP8 = "mxfp8"
    FP8 = "fp8-current-scaling"
    BF16 = "bf16"


@dataclass(frozen=True)
class Cell:
    """variant x program x background thread on/off x hold x recipe, and how many trials it gets.

    hold_ms: milliseconds that each capture is held open longer.
    background_period_ms: pause between two updates of the background thread, 0 for full rate.
    """

    name: str
    variant: Variant
    program: Program = Program.NORM_ACT_GEMM
    background: bool = True
    hold_ms: float = 0.0
    recipe: Recipe = Recipe.AUTO
    trials: int = 10
    background_period_ms: float = 0.0

    @property
    def is_reference(self) -> bool:
        """True where the cell's output is what every other cell of its program must reproduce."""
        return self.variant.text == "stock" and not self.background and self.hold_ms == 0


@dataclass(frozen=True)
class Matrix:
    """A named list of cells.

    clean_below: a cell without failures is `clean` once its interval ends below this rate.
    detect: whether the detector watches its trials, where it can. controls: trials of each control
    cell on each device (see `runner.controls`).
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    clean_below: float = 0.05
    detect: bool = False
    controls: int = 0

    def with_trials(self, trials: int | None) -> Matrix:
        """The same cells, each with `trials` trials; None leaves them as they are."""
        if trials is None:
            return self
        if not 1 <= trials <= MAX_TRIALS:
            raise MatrixError(f"--trials: must be 1 to {MAX_TRIALS}, got {trials}")
        return replace(self, cells=tuple(replace(cell, trials=trials) for cell in self.cells))

    def with_detect(self, detect: bool | None) -> Matrix:
        """The same cells, watched by the detector or not; None leaves that as it is."""
        return self if detect is None else replace(self, detect=detect)

    def with_controls(self, controls: bool | None) -> Matrix:
        """The same cells, with or without control cells beside them; None leaves that as it is."""
        if controls is None:
            return self
        return replace(self, controls=(self.controls or CONTROL_TRIALS) if controls else 0)

    def decisive(self) -> Matrix:
        """The same cells, those that ship with as many trials as it takes to call them clean.

        The number is fixed beforehand, so that it takes nothing from what the counts say.
        """
        enough = min(MAX_TRIALS, clean_trials(self.clean_below))
        cells = (
            replace(cell, trials=max(cell.trials, enough)) if cell.variant.ships else cell
            for cell in self.cells
        )
        return replace(self, cells=tuple(cells))

    def only(self, names: tuple[str, ...]) -> Matrix:
        """The cells with these names, in the matrix's order."""
        known = [cell.name for cell in self.cells]
        for name in names:
            if name not in known:
                raise MatrixError(
                    f"matrix {self.name}: no cell {name!r}; it has {'; '.join(known)}"
                )
        if not names:
            return self
        return replace(self, cells=tuple(cell for cell in self.cells if cell.name in names))


def available() -> tuple[str, ...]:
    """Names of the matrices that ship with Racewatch."""
    return tuple(sorted(path.stem for path in MATRICES.glob("*.toml")))


def load(name_or_path: str) -> Matrix:
    """The matrix of that name, or in that TOML file.

    Raises MatrixError where there is none or where it is not valid.
    """
    path = Path(name_or_path)
    if name_or_path in available():
        path = MATRICES / f"{name_or_path}.toml"
    elif not path.is_file():
        raise MatrixError(
            f"matrix {name_or_path!r}: neither a file nor one of {', '.join(available())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(f"matrix {name_or_path!r}: cannot be read: {error}") from error
    return parse(text, path.stem)


def parse(text: str, name: str) -> Matrix:
    """A matrix from its TOML text; `name` is used where the text gives none, and in errors."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter of brackets in brackets in ...
        raise MatrixError(f"matrix {name}: not valid TOML: {error}") from error
    return from_data(data, name)


def as_data(matrix: Matrix) -> dict[str, Any]:
    """A matrix as plain data, in the form of its file."""
    data = asdict(matrix)
    data["cells"] = [{**asdict(c), "variant": c.variant.text} for c in matrix.cells]
    if not matrix.detect:
        del data["detect"]  # as it was before there was a detector, for whoever compares or reads
    if not matrix.controls:
        del data["controls"]
    return data


def from_data(data: Mapping[str, Any], name: str = "") -> Matrix:
    """A matrix from plain data in the form of its file. Raises MatrixError."""
    where = f"matrix {data.get('name', name)}"
    _only_keys(data, {"name", "title", "clean_below", "detect", "controls", "cells"}, where)
    rows = data.get("cells")
    if not isinstance(rows, list) or not rows:
        raise MatrixError(f"{where}: needs at least one [[cells]] table")
    cells = tuple(_cell(row, f"{where}, cell {n}") for n, row in enumerate(rows, start=1))
    seen: dict[str, int] = {}
    for n, cell in enumerate(cells, start=1):
        if cell.name in seen:
            raise MatrixError(
                f"{where}, cell {n}: name {cell.name!r} is taken by cell {seen[cell.name]}"
            )
        seen[cell.name] = n
    clean_below = _number(data, "clean_below", 0.05, where)
    if not 0 < clean_below < 1:
        raise MatrixError(f"{where}: clean_below must be between 0 and 1, got {clean_below:g}")
    return Matrix(
        name=_text(data, "name", name, where),
        title=_text(data, "title", "", where),
        cells=cells,
        clean_below=clean_below,
        detect=_flag(data, "detect", False, where),
        controls=_trials(data, "controls", 0, 0, where),
    )


def _cell(row: Any, where: str) -> Cell:
    if not isinstance(row, dict):
        raise MatrixError(f"{where}: must be a table, got {row!r}")
    keys = {"name", "variant", "program", "background", "hold_ms", "recipe", "trials"}
    _only_keys(row, keys | {"background_period_ms"}, where)
    if "variant" not in row:
        raise MatrixError(f'{where}: needs a variant, such as variant = "stock"')
    try:
        variant = Variant.parse(_text(row, "variant", "", where))
    except VariantError as error:
        raise MatrixError(f"{where}: {error}") from error
    background = _flag(row, "background", True, where)
    hold_ms = _number(row, "hold_ms", 0.0, where)
    if hold_ms < 0:
        raise MatrixError(f"{where}: hold_ms must be >= 0, got {hold_ms:g}")
    if hold_ms > MAX_HOLD_MS:
        raise MatrixError(f"{where}: hold_ms must be <= {MAX_HOLD_MS:g}, got {hold_ms:g}")
    if hold_ms and variant.unregistered:
        raise MatrixError(
            f"{where}: hold_ms must be 0 with variant {variant.text!r} (nothing is captured), "
            f"got {hold_ms:g}"
        )
    period_ms = _number(row, "background_period_ms", 0.0, where)
    if period_ms < 0:
        raise MatrixError(f"{where}: background_period_ms must be >= 0, got {period_ms:g}")
    if period_ms > MAX_PERIOD_MS:
        raise MatrixError(
            f"{where}: background_period_ms must be <= {MAX_PERIOD_MS:g}, got {period_ms:g}"
        )
    trials = _trials(row, "trials", 10, 1, where)
    cell = Cell(
        name="",
        variant=variant,
        program=_choice(Program, row, "program", Program.NORM_ACT_GEMM, where),
        background=background,
        hold_ms=hold_ms,
        recipe=_choice(Recipe, row, "recipe", Recipe.AUTO, where),
        trials=trials,
        background_period_ms=period_ms,
    )
    name = _text(row, "name", _default_name(cell), where)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 .,_+/-]{0,79}", name):
        raise MatrixError(
            f"{where}: name must be 1 to 80 letters, digits, spaces or . , _ + / -, got {name!r}"
        )
    return replace(cell, name=name)


def _default_name(cell: Cell) -> str:
    parts = [str(cell.program), cell.variant.text, "background" if cell.background else "alone"]
    if cell.hold_ms:
        parts.append(f"hold{cell.hold_ms:g}ms")
    if cell.recipe is not Recipe.AUTO:
        parts.append(str(cell.recipe))
    return "/".join(parts)


def _only_keys(data: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise MatrixError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")


def _text(data: Mapping[str, Any], key: str, default: str, where: str) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise MatrixError(f"{where}: {key} must be text, got {value!r}")
    return value


def _flag(data: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise MatrixError(f"{where}: {key} must be true or false, got {value!r}")
    return value


def _trials(data: Mapping[str, Any], key: str, default: int, least: int, where: str) -> int:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_TRIALS:
        raise MatrixError(
            f"{where}: {key} must be a whole number from {least} to {MAX_TRIALS}, got {value!r}"
        )
    return value


def _number(data: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise MatrixError(f"{where}: {key} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise MatrixError(f"{where}: {key} must be a number, got one too large") from None


def _choice(kind: type[_E], data: Mapping[str, Any], key: str, default: _E, where: str) -> _E:
    value = data.get(key, str(default))
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise MatrixError(f"{where}: unknown {key} {value!r}; known: {known}") from None


def resolve_recipe(recipe: Recipe, compute_capability: tuple[int, int]) -> Recipe:
    """The recipe that runs for `auto` on a device of that compute capability (major, minor)."""
    if recipe is not Recipe.AUTO:
        return recipe
    if compute_capability >= (10, 0):
        return Recipe.NVFP4
    if compute_capability >= (8, 9):
        return Recipe.FP8
    return Recipe.BF16
