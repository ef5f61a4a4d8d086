"""The grid's cells as HTML. A page has thousands, most of them alike, so each kind is made once."""

from __future__ import annotations

from functools import lru_cache

from markupsafe import Markup

from service.pages.view import macro
from service.reading.cells import CellName
from service.reading.grid import GridCell, GridRow
from service.reading.told import Told

_HERE = "@@"
"""Stands in a template where the cell's own address goes; no text of a cell reaches that place."""


def row_cells(row: GridRow, columns: tuple[CellName, ...], queue: str) -> Markup:
    """All cells of a commit."""
    parts: list[str] = []
    for cell, column in zip(row.cells, columns, strict=True):
        head, tail = _around(
            cell.told,
            cell.active,
            cell.repeated,
            cell.older,
            cell.change,
            _kind(cell),
            queue,
        )
        parts += (head, _address(cell, row.id, column.id), tail)
    return Markup("".join(parts))


def _kind(cell: GridCell) -> str:
    """What its link leads to."""
    if cell.measurement:
        return "measurement"
    return "build" if cell.build else "run" if cell.run else "order"


def _address(cell: GridCell, commit: int, column: int) -> str:
    return str(cell.measurement or cell.build or cell.run or f"{commit}/{column}")


@lru_cache(maxsize=65_536)
def _around(
    told: Told, active: bool, repeated: bool, older: bool, change: str, kind: str, queue: str
) -> tuple[str, str]:
    classes = [str(told.mark)]
    classes += [f"r{told.strength}"] if told.strength else []
    classes += [f"l{told.low}"] if told.low else []
    classes += [f"h{told.high}"] if told.high else []
    flags = {
        "same": repeated, "active": active, "older": older, "swallowed": told.swallows,
        change: bool(change),
    }  # fmt: skip
    classes += [name for name, holds in flags.items() if holds]
    html = macro("cell.html", "cell")(told, " ".join(classes), kind, queue, _HERE)
    head, _, tail = html.partition(_HERE)
    return head, tail
