"""The commands that pages offer do what they say: the runner and the API take them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from runner import matrix as matrices
from service.api.order import RunIn
from service.database import Database
from service.reading import commands
from service.reading.commands import What
from service.rows import cell_row

ISSUE = matrices.load("issue-3863")
SHA = "a" * 40
OWN = replace(
    ISSUE, name="my matrix", title='"quoted" \\ and 🏁', cells=(replace(ISSUE.cells[0], hold_ms=7),)
)


def options(line: str) -> dict[str, list[str]]:
    """The options of a command, as a shell takes it apart."""
    words = shlex.split(line)[2:]
    found: dict[str, list[str]] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        found.setdefault(name, []).append(value)
    return found


def test_a_cell_is_run_again_by_its_name() -> None:
    command = commands.rerun(What("te", SHA, ISSUE, ("stock, background",), 10))
    assert command.line == (
        f"racewatch run --subject te --ref {SHA} --matrix issue-3863 "
        "--cell 'stock, background' --trials 10"
    )
    assert command.file == ""


def test_every_cell_of_every_matrix_that_ships_is_named_so_that_the_runner_finds_it() -> None:
    for name in matrices.available():
        matrix = matrices.load(name)
        line = commands.rerun(What("te", SHA, matrix, tuple(c.name for c in matrix.cells))).line
        asked = options(line)
        assert matrices.load(asked["--matrix"][0]).only(tuple(asked["--cell"])) == matrix


def test_a_release_is_named_as_a_version_and_another_toolchain_is_told() -> None:
    asked = options(commands.rerun(What("te", "2.9.0", ISSUE, toolchain="cu12-jax08")).line)
    assert asked["--version"] == ["2.9.0"]
    assert asked["--toolchain"] == ["cu12-jax08"]
    assert "--ref" not in asked
    usual = options(commands.rerun(What("te", "2.9.0", ISSUE, toolchain="cu13-jax011")).line)
    assert "--toolchain" not in usual


def test_a_matrix_of_one_s_own_comes_as_a_file() -> None:
    command = commands.rerun(What("te", SHA, OWN))
    assert options(command.line)["--matrix"] == ["matrix.toml"]
    assert matrices.parse(command.file, "x") == OWN


def test_a_matrix_that_only_has_the_name_of_one_that_ships_comes_as_a_file_too() -> None:
    other = replace(OWN, name="quick", title="")
    assert matrices.parse(commands.rerun(What("te", SHA, other)).file, "x") == other
    fewer_trials = matrices.load("quick").with_trials(3)
    assert commands.rerun(What("te", SHA, fewer_trials)).file == ""


def test_a_part_of_a_matrix_that_ships_is_named_by_its_cells() -> None:
    part = ISSUE.only(("stock, background", "stock, alone"))
    command = commands.rerun(What("te", SHA, part))
    assert options(command.line)["--cell"] == ["stock, background", "stock, alone"]
    assert command.file == ""


def test_ordering_names_the_device() -> None:
    line = commands.order(What("demo", SHA, ISSUE, ("stock, alone",), 72), "emulated").line
    assert line.startswith("racewatch submit --subject demo ")
    assert line.endswith("--trials 72 --queue emulated")


@pytest.mark.parametrize(
    "what",
    [
        What("te", SHA, ISSUE),
        What("te", "2.9.0", ISSUE, (), 72),
        What("te", SHA, ISSUE, ("stock, background",), 72),
        What("te", SHA, OWN, ("stock, background",), 5),
    ],
)
def test_the_api_takes_the_request(what: What) -> None:
    body: dict[str, Any] = commands.request(what, "sm90")
    taken = RunIn.model_validate_json(json.dumps(body))
    assert (taken.subject, taken.queue, taken.ref or taken.version) == ("te", "sm90", what.sha)
    if what.cells:
        assert taken.matrix.model_dump()["cells"][0]["trials"] == what.trials  # type: ignore[union-attr]


def test_a_stored_cell_is_found_in_a_matrix_that_ships(db: Database) -> None:
    with db.session() as session:
        for name in ("stock, background", "softmax ffi13, background, hold 20 ms"):
            cell = next(one for one in ISSUE.cells if one.name == name)
            matrix, found = commands.of_cell(cell_row(session, cell), 0.05)
            assert (matrix.name, found) == ("issue-3863", name)


def test_a_stored_cell_of_no_such_matrix_gets_one_of_its_own(db: Database) -> None:
    wanted = replace(ISSUE.cells[0], background_period_ms=3.0)
    with db.session() as session:
        matrix, name = commands.of_cell(cell_row(session, wanted), 0.05)
    (cell,) = matrix.cells
    assert (cell.background_period_ms, cell.trials, name) == (3.0, 72, cell.name)
    command = commands.rerun(What("te", SHA, matrix, (name,)))
    assert matrices.parse(command.file, "x").only((name,)) == matrix


def test_a_run_s_matrix_is_read_again_as_far_as_it_is_known() -> None:
    assert commands.of_run("issue-3863", matrices.as_data(ISSUE)) == ISSUE
    assert commands.of_run("quick", {}) == matrices.load("quick")
    assert commands.of_run("of another host", {}) is None
    assert commands.of_run("new", {"name": "new", "cells": [{"variant": "of tomorrow"}]}) is None


def test_toml_of_a_matrix_is_that_matrix() -> None:
    for matrix in (OWN, *(matrices.load(name) for name in matrices.available())):
        assert matrices.parse(commands.as_toml(matrix), "") == matrix
