"""Tables in Markdown, to paste into a comment at GitHub; text from outside stays text there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from runner.report import EMULATED
from service.github.markdown import code, plain
from service.pages.words import interval, p_value, percent, short_sha
from service.reading.compare import ComparePage
from service.reading.rate import Rate
from service.reading.runs import RunPage


def run(found: RunPage, home: str) -> str:
    """A run's table. home: where the pages are, without a slash at the end."""
    rows = [
        (
            code(row.name),
            str(row.rate.n),
            str(row.rate.k) if row.rate.n else "-",
            _rate(row.rate),
            plain(row.label),
        )
        for row in found.rows
    ]
    where = f" on {plain(found.environment.full)}" if found.environment else ""
    title = f"{code(found.matrix)} of {found.subject} {code(short_sha(found.sha) or found.ref)}"
    lines = [
        f"**[{title}]({home}/runs/{found.id})**{where}",
        "",
        *([f"**{EMULATED}**", ""] if found.emulated else []),
        *_table(("cell", "trials", "failed", "rate (95 % interval)", "verdict"), rows, {1, 2}),
    ]
    if found.parity:
        said = plain(str(found.parity.get("status", "not measured")))
        between = plain(str(found.parity.get("between", "stock and owned-stream")))
        lines += ["", f"Outputs of {between}: {said}."]
    return "\n".join(lines) + "\n"


def comparison(found: ComparePage, home: str) -> str:
    """A comparison's table; cells that neither has are left out."""
    asked = found.asked
    assert found.a is not None, "it was asked for"
    assert found.b is not None, "it was asked for"
    rows = [
        (
            code(row.cell.full),
            _seen(row.a, row.why_a),
            _seen(row.b, row.why_b),
            f"{row.direction}, {plain(p_value(row.p))}" if row.p is not None else "-",
            plain(row.label),
        )
        for row in found.rows
    ]
    a, b = short_sha(found.a.sha), short_sha(found.b.sha)
    of_a = f"{code(a)} {asked.base}".rstrip()
    of_b = f"{code(b)} {asked.head}".rstrip()
    parameters = {
        "subject": asked.subject, "a": found.a.sha, "b": found.b.sha, "base": asked.base,
        "head": asked.head, "queue": asked.queue,
    }  # fmt: skip
    query = urlencode({name: value for name, value in parameters.items() if value})
    emulated = any(row.environment and row.environment.emulated for row in found.rows)
    return "\n".join(
        [
            f"**[{asked.subject}: {of_b} against {of_a}]({home}/compare?{query})**",
            "",
            *([f"**{EMULATED}**", ""] if emulated else []),
            *_table(("cell", of_a, of_b, "one-sided p", "verdict"), rows, set()),
            "",
        ]
    )


def _rate(rate: Rate) -> str:
    if rate.rate is None:
        return "-"
    return f"{percent(rate.rate)} ({interval(rate.low, rate.high)})"


def _seen(rate: Rate | None, why: str) -> str:
    if rate is None:
        return code(why) if why else "-"
    return f"{rate.k}/{rate.n} ({interval(rate.low, rate.high)})" if rate.n else "-"


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: set[int]
) -> Iterable[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'|'.join('---:' if n in right else '---' for n in range(len(headings)))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
