"""Tables in Markdown, to paste into a comment at GitHub; text from outside stays text there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from runner.bisect.settings import Observe
from runner.report import EMULATED, FOREIGN_WORK
from service.github.markdown import code, plain
from service.pages.words import chance, counted, interval, p_value, percent, short_sha
from service.reading.bisections import BisectionPage
from service.reading.changes import Of
from service.reading.commits import CommitPage
from service.reading.compare import ComparedRow, ComparePage
from service.reading.rate import Rate, Swallow
from service.reading.runs import RunPage
from service.reading.trend import TrendChange, TrendPage

POINTS = 30
"""Measured commits of a trend's table, the newest: a comment is read, not scrolled."""


def run(found: RunPage, home: str) -> str:
    """A run's table. home: where the pages are, without a slash at the end."""
    rows = [
        (
            code(row.name),
            str(row.rate.n),
            str(row.rate.k) if row.rate.n else "-",
            _rate(row.rate),
            plain(row.label),
            *((_foreign(row.rate),) if found.watched else ()),
        )
        for row in found.rows
    ]
    headings = ["cell", "trials", "failed", "rate (95 % interval)", "verdict"]
    headings += [FOREIGN_WORK] if found.watched else []
    where = f" on {plain(found.environment.full)}" if found.environment else ""
    title = f"{code(found.matrix)} of {found.subject} {code(short_sha(found.sha) or found.ref)}"
    lines = [
        f"**[{title}]({home}/runs/{found.id})**{where}",
        "",
        *([f"**{EMULATED}**", ""] if found.emulated else []),
        *_table(headings, rows, {1, 2}),
    ]
    if found.swallowed:
        work = [
            (code(one.api), plain(one.thread or "without a name"), str(one.count), str(one.trials))
            for one in found.swallowed
        ]
        whose = ("swallowed work of API", "thread", "nodes or refused calls", "trials")
        lines += ["", *_table(whose, work, {2, 3})]
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
            *((_compared(row),) if found.watched else ()),
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
    headings = ["cell", of_a, of_b, "one-sided p", "verdict"]
    headings += [FOREIGN_WORK] if found.watched else []
    emulated = any(row.environment and row.environment.emulated for row in found.rows)
    return "\n".join(
        [
            f"**[{asked.subject}: {of_b} against {of_a}]({home}/compare?{query})**",
            "",
            *([f"**{EMULATED}**", ""] if emulated else []),
            *_table(headings, rows, set()),
            "",
        ]
    )


def trend(found: TrendPage, home: str, query: str) -> str:
    """A trend's changes and its newest points. query: of its page."""
    chosen = found.chosen
    what = f"{found.cell.full} along {chosen.branch} of {chosen.subject} on {chosen.queue}"
    did = "failed" if found.of is Of.FAILURE else FOREIGN_WORK
    rows = [
        (
            f"[{code(short_sha(point.commit.sha))}]"
            f"({home}/commits/{chosen.subject}/{point.commit.sha})",
            plain(point.commit.title),
            f"{point.shown.k}/{point.shown.n}",
            _rate(point.shown),
            plain(point.shown.label),
        )
        for point in reversed(found.points[-POINTS:])
    ]
    return "\n".join(
        [
            f"**[{plain(what)}]({home}/trend?{query})**",
            "",
            *([f"**{EMULATED}**", ""] if found.emulated else []),
            *(f"- {_change(change)}" for change in found.changes),
            *([""] if found.changes else []),
            *_table(("commit", "title", did, "rate (95 % interval)", "verdict"), rows, {2}),
            "",
        ]
    )


def _change(found: TrendChange) -> str:
    change, commit = found.change, found.commit
    way = "rose" if change.rises else "fell"
    held = "this commit" if found.count == 1 else f"one of {found.count} commits, likeliest this"
    return (
        f"{way} from {change.before.text} to {change.after.text} ({plain(p_value(change.p))}), "
        f"with 95 % by {held}: {code(short_sha(commit.sha))} {plain(commit.title)}"
    )


def commit(found: CommitPage, home: str) -> str:
    """What was measured of a commit, a table for each environment."""
    lines = [
        f"**[{found.subject} {code(short_sha(found.sha))} {plain(found.title)}]"
        f"({home}/commits/{found.subject}/{found.sha})**",
        "",
    ]
    for one in found.measured:
        rows = [
            (
                code(cell.cell.full) + (" (adaptive trials)" if cell.adaptive else ""),
                str(cell.rate.n),
                str(cell.rate.k) if cell.rate.n else "-",
                _rate(cell.rate),
                plain(cell.rate.label),
                *((_foreign(cell.rate),) if one.watched else ()),
            )
            for cell in one.cells
        ]
        headings = ["cell", "trials", "failed", "rate (95 % interval)", "verdict"]
        headings += [FOREIGN_WORK] if one.watched else []
        lines += [plain(one.environment.full), ""]
        lines += [f"**{EMULATED}**", ""] if one.environment.emulated else []
        lines += [*_table(headings, rows, {1, 2}), ""]
    return "\n".join(lines)


def bisection(found: BisectionPage, home: str) -> str:
    """A bisection's verdict, or how far it is, and the trials of each build."""
    line = found.line
    ends = f"{plain(line.good)} to {plain(line.bad)}"
    lines = [
        f"**[{code(line.cell)} of {line.subject}, {ends}]({home}/bisections/{line.id})**",
        "",
        *([f"**{EMULATED}**", ""] if line.emulated else []),
    ]
    said = found.verdict.text if found.verdict else line.reason or str(line.state)
    lines += [plain(f"{said[:1].upper()}{said[1:]}."), ""]
    tried = [one for part in found.searched for one in part.suspects if one.tally.n]
    rows = [
        (
            code(short_sha(one.built.sha)),
            plain(one.built.title),
            chance(one.probability) if one.probability is not None else "-",
            one.tally.text,
            f"{percent(one.rate or 0.0)} ({interval(one.low, one.high)})",
        )
        for one in tried
    ]
    did = "failed" if line.observe is Observe.FAILURE else FOREIGN_WORK
    headings = ("build of", "title", "probability", did, "rate (95 % interval)")
    lines += [*_table(headings, rows, {3}), ""] if rows else []
    builds, trials = found.spent.builds, found.spent.trials
    return "\n".join([*lines, f"{counted(builds, 'build')}, {counted(trials, 'trial')}.", ""])


def _foreign(rate: Rate) -> str:
    """The second rate of a cell."""
    found = rate.swallow
    if found is None:
        return "-"
    seen = f"{found.k}/{found.n} ({interval(found.low, found.high)}), {found.label}"
    return plain(f"{seen}, {found.passes} passed" if found.passes else seen)


def _compared(row: ComparedRow) -> str:
    found = row.swallow
    if found is None:
        return "-"
    a, b = (f"{one.k}/{one.n}" if one else "-" for one in (found.a, found.b))
    p = f", {found.direction}, {p_value(found.p)}" if found.p is not None else ""
    return plain(f"{a} to {b}{p}, {found.label}")


def _rate(rate: Rate | Swallow) -> str:
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
