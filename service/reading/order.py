"""What it takes to order trials of one cell at one commit."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlmodel import Session, col, select

from runner.rates import clean_trials
from service.reading import commands
from service.reading.cells import CellName, cell_name
from service.reading.commands import Command, What
from service.reading.environments import EMULATED
from service.reading.grid_choices import CLEAN_BELOW
from service.tables import Cell, Commit, Run


@dataclass(frozen=True)
class OrderPage:
    """A commit and a cell of it. trials: as many as calling it clean takes.

    queues: kinds of device that runs of the subject asked for; queue: the chosen one. body: of the
    request that orders it, as JSON. here: the command that orders it. elsewhere: the one that runs
    it with no service.
    """

    subject: str
    sha: str
    title: str
    cell: CellName
    queue: str
    queues: tuple[str, ...]
    trials: int
    body: str
    here: Command
    elsewhere: Command

    @property
    def emulated(self) -> bool:
        """True where no GPU takes part."""
        return self.queue == EMULATED


def read(
    session: Session, commit_id: int, cell_id: int, queue: str, trials: int | None
) -> OrderPage | None:
    """What is to be ordered; None where the commit or the cell is not known."""
    commit, cell = session.get(Commit, commit_id), session.get(Cell, cell_id)
    if commit is None or cell is None or cell.reference:
        return None
    queues = session.exec(
        select(Run.queue)
        .where(Run.subject == commit.subject)
        .group_by(col(Run.queue))
        .order_by(col(Run.queue) == EMULATED, col(Run.queue))
    ).all()
    matrix, name = commands.of_cell(cell, CLEAN_BELOW)
    wanted = trials or clean_trials(CLEAN_BELOW)
    what = What(commit.subject, commit.sha, matrix, (name,), wanted)
    chosen = queue or next(iter(queues), "")
    return OrderPage(
        subject=commit.subject,
        sha=commit.sha,
        title=commit.title,
        cell=cell_name(cell),
        queue=chosen,
        queues=tuple(dict.fromkeys([*queues, *([chosen] if chosen else [])])),
        trials=wanted,
        body=json.dumps(commands.request(what, chosen)),
        here=commands.order(what, chosen),
        elsewhere=commands.rerun(what),
    )
