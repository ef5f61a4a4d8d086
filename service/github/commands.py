"""The commands that a pull request's comment may hold: `/racewatch ...` on a line of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

HELP = (
    "/racewatch approve <sha>: let exactly this head commit run; "
    "/racewatch run [matrix]: run the head commit (of a fork: this approves it too); "
    "/racewatch cancel: end this pull request's runs; "
    "/racewatch help: this. All but help need write permission."
)
MAX_COMMANDS = 5
"""Of one comment that are carried out."""
_LINE = re.compile(r"/racewatch(?:[ \t]+(.*))?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Verb(StrEnum):
    """What can be asked for."""

    APPROVE = "approve"
    RUN = "run"
    CANCEL = "cancel"
    HELP = "help"


@dataclass(frozen=True)
class Command:
    """One command. argument: the commit to approve or the matrix to run, empty where none is given.

    problem: why it is none, as a sentence; empty for one that can be carried out.
    """

    verb: Verb
    argument: str = ""
    problem: str = ""


def commands_in(comment: str) -> list[Command]:
    """The commands in a comment, in order. Quotes and code blocks are not looked into."""
    found = [_command(line) for line in _own_lines(comment) if _LINE.fullmatch(line)]
    return found[:MAX_COMMANDS]


def _own_lines(comment: str) -> list[str]:
    """The lines outside of fenced code, without blanks at their ends."""
    lines: list[str] = []
    fence = ""
    # Not splitlines: it also splits where nobody sees a line end.
    for line in re.split(r"\r\n|\r|\n", comment):
        marker = _FENCE.match(line)
        if marker and not fence:
            fence = marker[1]
        elif fence:
            if marker and marker[1].startswith(fence) and not line[marker.end() :].strip():
                fence = ""
        else:
            lines.append(line.rstrip())
    return lines


def _command(line: str) -> Command:
    words = line.split()[1:]
    name = words[0].lower() if words else Verb.HELP
    if name not in list(Verb):
        return Command(Verb.HELP, problem=f"unknown command {words[0][:40]!r}")
    verb, arguments = Verb(name), words[1:]
    most = 1 if verb in (Verb.APPROVE, Verb.RUN) else 0
    if len(arguments) > most:
        return Command(
            verb, problem=f"{verb} takes {most or 'no'} word{'s' * (most != 1)} after it"
        )
    if verb is Verb.APPROVE and not arguments:
        return Command(verb, problem="approve needs the commit: /racewatch approve <sha>")
    return Command(verb, arguments[0] if arguments else "")
