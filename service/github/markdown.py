"""Text from outside (titles, errors, reasons) in Markdown, where it must stay nothing but text.

A code span is the one place where GitHub does nothing with it: no mention of a person or a team, no
reference to an issue, no link, no HTML. Source: https://github.github.com/gfm/#code-spans
"""

from __future__ import annotations

import re
import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Categories that show nothing: controls, and format characters, which turn text around."""


def plain(text: str, characters: int = 200) -> str:
    """One line of visible characters, cut at its end where it is longer."""
    shown = "".join(" " if unicodedata.category(c) in _HIDDEN else c for c in text)
    line = " ".join(shown.split())
    return line if len(line) <= characters else f"{line[: characters - 1].rstrip()}…"


def code(text: str, characters: int = 200) -> str:
    """Text as a code span, also within a table; where there is none, of a dash.

    A bare dash would make a list, or a heading of the line before.
    """
    line = plain(text, characters) or "-"
    # Within a table a | ends the cell also in a code span, and \\| is taken apart differently by
    # different parsers; the broken bar reads alike.
    line = line.replace("|", "¦")
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"
