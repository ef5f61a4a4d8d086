"""Cells as people read them: their order, their groups, and a few words for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from runner.matrix import Program, Recipe
from runner.run import BuildId
from runner.variants.names import Variant
from service.tables import Cell

_PROGRAMS = tuple(map(str, Program))
_VARIANTS = ("stock", "unregistered", "owned-stream", "ffi13", "ffi13+owned-stream")


@dataclass(frozen=True)
class CellName:
    """A cell in words.

    short: what tells it from others of its variant and program, such as `background, hold 20 ms`.
    full: `stock, background, hold 20 ms`; of another program than the first with its name before.
    build: the build that it needs, as `runner.run.BuildId` writes it.
    """

    id: int
    program: str
    variant: str
    short: str
    full: str
    build: str
    order: tuple[object, ...]


def cell_name(cell: Cell) -> CellName:
    """The words of a stored cell."""
    assert cell.id is not None, "the cell is stored"
    return _named(
        cell.id,
        cell.program,
        cell.variant,
        cell.background,
        cell.background_period_ms,
        cell.hold_ms,
        cell.recipe,
    )


@lru_cache(maxsize=4_096)
def _named(
    identity: int,
    program: str,
    variant: str,
    background: bool,
    period_ms: float,
    hold_ms: float,
    recipe: str,
) -> CellName:
    words = ["background" if background else "alone"]
    if period_ms:
        words.append(f"every {period_ms:g} ms")
    if hold_ms:
        words.append(f"hold {hold_ms:g} ms")
    if recipe != Recipe.AUTO:
        words.append(recipe)
    short = ", ".join(words)
    parsed = Variant.parse(variant)
    return CellName(
        id=identity,
        program=program,
        variant=variant,
        short=short,
        full=f"{program}: {variant}, {short}",
        build=str(BuildId(parsed.build_kind(hold_ms), parsed.pulls)),
        order=(
            _place(program, _PROGRAMS),
            program,
            parsed.pulls,
            _place(variant, _VARIANTS),
            variant,
            not background,
            hold_ms,
            period_ms,
            recipe,
        ),
    )


def _place(text: str, known: tuple[str, ...]) -> int:
    return known.index(text) if text in known else len(known)
