"""The one comment that Racewatch keeps on a pull request: its runs' tables, edited all along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from runner.outcome import FAILURES, Outcome
from runner.rates import percent
from runner.report import EMULATED, HEADINGS
from runner.statistics.counts import span
from runner.statistics.kinds import Kind
from runner.statistics.verdict import StatusDecision
from service import judged
from service.github import status
from service.github.client import COMMENT_CHARACTERS, GitHub
from service.github.errors import Refused
from service.github.markdown import code, plain
from service.judged import JudgedCell
from service.settings import ServiceSettings
from service.tables import (
    ENDED_STATES,
    Commit,
    Environment,
    Pull,
    PullComment,
    Run,
    RunCell,
    RunState,
    Trial,
)

MARKER = "<!-- racewatch:pull -->"
"""How the comment begins, so that it is found again where its id was lost."""
CHARACTERS = COMMENT_CHARACTERS - 536
"""Of a comment at most: GitHub's limit, less what it may count differently."""
ROWS = (10_000, 200, 100, 40, 10, 0)
"""Rows of a table, tried in this order until the comment is short enough."""
RUNS = 12
"""Runs in one comment, one for each matrix and kind of device."""
SIGNATURES = 5
_SHA_CHARACTERS = 12
_TABLE = (*HEADINGS[:-1], "base failed", HEADINGS[-1])
_RIGHT = {"trials", "failed", "rate", "base failed"}


@dataclass(frozen=True)
class RunReport:
    """One run as the comment tells of it. seen: failing signatures with their numbers of trials.

    base_sha: of the commit it is compared with, empty for none. device: what it ran on, empty while
    that is unknown. parity: the sentence on the outputs, empty before the run's end.
    """

    matrix: str
    queue: str
    state: RunState
    reason: str
    link: str
    base_sha: str
    device: str
    emulated: bool
    decision: StatusDecision
    cells: tuple[JudgedCell, ...] = ()
    seen: tuple[tuple[str, int], ...] = ()
    parity: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PullReport:
    """A pull request's head commit with its runs, the newest of each matrix and kind of device.

    home: where all pages of this installation are. more: runs that are left out.
    """

    subject: str
    number: int
    head_sha: str
    head_title: str
    runs: tuple[RunReport, ...]
    home: str
    more: int = 0

    @property
    def says_something(self) -> bool:
        """True once someone is asked to approve, or a run has ended: before, nobody needs mail."""
        return any(
            run.state in ENDED_STATES or run.state == RunState.AWAITING_APPROVAL
            for run in self.runs
        )


def topic_of(subject: str, number: int) -> str:
    """The outbox's topic of a pull request's comment."""
    return f"comment:{subject}#{number}"


def content(
    settings: ServiceSettings, session: Session, payload: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The comment of a pull request (`subject`, `pull`) as of now; None where there is none."""
    subject, number = payload["subject"], payload["pull"]
    repository = status.repository_of(settings, subject)
    if not repository:
        return None
    report = report_of(session, settings, subject, number)
    known = session.get(PullComment, (subject, number)) is not None
    if report is None or not (report.says_something or known):
        return None
    return {
        "repository": repository,
        "subject": subject,
        "pull": number,
        "body": render(report),
    }


def send(github: GitHub, session: Session, content: Mapping[str, Any]) -> None:
    """Edit the comment; where there is none (any more), make it, and keep its id.

    Before it is made it is looked for: an earlier attempt may have made it and not known.
    """
    repository, number, body = content["repository"], content["pull"], content["body"]
    key = (content["subject"], number)
    kept = session.get(PullComment, key)
    if kept is not None:
        try:
            github.edit_comment(repository, kept.comment_id, body)
            return
        except Refused as error:
            if error.status != 404:
                raise
    found = github.find_comment(repository, number, MARKER)
    if found is None:
        found = github.create_comment(repository, number, body)
    else:
        github.edit_comment(repository, found, body)
    session.merge(PullComment(subject=key[0], pull=key[1], comment_id=found))
    session.flush()


def report_of(
    session: Session, settings: ServiceSettings, subject: str, number: int
) -> PullReport | None:
    """What there is to tell of a pull request's head; None where it never had a run."""
    of_pull = select(Run).where(Run.subject == subject, Run.pull == number, Run.head_sha != "")
    newest_first = of_pull.order_by(col(Run.created_at).desc(), col(Run.id).desc())
    options = {"populate_existing": True}
    newest = session.exec(newest_first.limit(1), execution_options=options).first()
    if newest is None:
        return None
    pull = session.get(Pull, (subject, number), populate_existing=True)
    head = pull.head_sha if pull else newest.head_sha
    runs: dict[tuple[str, str], Run] = {}
    for run in session.exec(newest_first.where(Run.head_sha == head), execution_options=options):
        if status.is_due(settings, run):
            runs.setdefault((run.matrix_name, run.queue), run)
    chosen = [run for _, run in sorted(runs.items())]
    commit = session.exec(
        select(Commit).where(Commit.subject == subject, Commit.sha == head)
    ).first()
    return PullReport(
        subject=subject,
        number=number,
        head_sha=head,
        head_title=commit.title if commit else "",
        runs=tuple(_run_report(session, settings, run) for run in chosen[:RUNS]),
        home=settings.link,
        more=max(0, len(chosen) - RUNS),
    )


def _run_report(session: Session, settings: ServiceSettings, run: Run) -> RunReport:
    cells = judged.cells_of(session, run)
    base = session.get(Commit, run.base_commit_id) if run.base_commit_id is not None else None
    environment = (
        session.get(Environment, run.environment_id) if run.environment_id is not None else None
    )
    parity = run.parity or {}
    told = [parity.get("status", ""), f"({parity['reason']})" if parity.get("reason") else ""]
    return RunReport(
        matrix=run.matrix_name,
        queue=run.queue,
        state=RunState(run.state),
        reason=run.reason,
        link=status.link_to(settings, run),
        base_sha=base.sha if base else "",
        device=_device(environment),
        emulated=environment.emulated if environment else run.queue == "emulated",
        decision=status.decide(run, cells),
        cells=tuple(cells),
        seen=_signatures(session, run),
        parity=f"outputs of {parity.get('between', '')}: {' '.join(told)}" if run.parity else "",
        notes=tuple(run.notes),
    )


def _device(environment: Environment | None) -> str:
    if environment is None:
        return ""
    capability = environment.compute_capability
    parts = [environment.device_name + (f" (sm {capability})" if capability else "")]
    parts += [f"driver {environment.driver}"] if environment.driver else []
    parts += [f"JAX {environment.jax}"] if environment.jax else []
    return ", ".join([*parts, f"toolchain {environment.toolchain}"])


def _signatures(session: Session, run: Run) -> tuple[tuple[str, int], ...]:
    """How often the run's cells failed in which way, the most frequent first."""
    count = func.count()
    found = session.exec(
        select(Trial.signature, count)
        .join(RunCell, col(RunCell.measurement_id) == col(Trial.measurement_id))
        .where(RunCell.run_id == run.id, col(Trial.outcome).in_(FAILURES), Trial.signature != "")
        .group_by(col(Trial.signature))
        .order_by(count.desc(), col(Trial.signature))
        .limit(SIGNATURES)
    )
    return tuple((signature, number) for signature, number in found)


def render(report: PullReport) -> str:
    """The comment as Markdown, of fewer characters than GitHub takes.

    What comes from outside stands in code spans. No line begins with a command, so that a service
    that reads this comment never takes it for one.
    """
    for rows in ROWS:
        body = _render(report, rows)
        if len(body) <= CHARACTERS:
            return body
    fewer = max(1, len(report.runs) // 2)
    left_out = len(report.runs) - fewer
    assert left_out, "one run without its rows is short"
    return render(replace(report, runs=report.runs[:fewer], more=report.more + left_out))


def _render(report: PullReport, rows: int) -> str:
    title = f" {code(report.head_title, 120)}" if report.head_title else ""
    lines = [
        MARKER,
        f"### Racewatch: pull request {report.number} at {_sha(report.head_sha)}{title}",
        "",
    ]
    if not report.runs:
        lines += ["No run of this head yet.", ""]
    if any(run.state == RunState.AWAITING_APPROVAL for run in report.runs):
        lines += [_approval(report.head_sha), ""]
    for run in report.runs:
        lines += _run_lines(run, rows)
    if report.more:
        lines += [f"{report.more} more runs: see [all runs]({report.home}/runs).", ""]
    lines.append(
        f"[Racewatch]({report.home}) edits this comment as its runs go on. Who may write here can "
        "comment `/racewatch run [matrix]` to run this head again."
    )
    return "\n".join(lines) + "\n"


def _approval(sha: str) -> str:
    return (
        "**This head has not run: it comes from another repository, and its code runs only once "
        "someone with write permission has read it** and says so, for exactly this commit, by the "
        f"comment `/racewatch approve {plain(sha)[:_SHA_CHARACTERS]}`."
    )


def _run_lines(run: RunReport, rows: int) -> list[str]:
    state = f": {run.decision.state}" if run.state in ENDED_STATES else ""
    heading = f"{code(run.matrix, 80)} on {code(run.queue, 40)}"
    lines = [f"#### {heading}{state}", ""]
    if run.emulated:
        lines += [f"> **{EMULATED}.**", ""]
    lines += [f"{code(run.decision.text)} ([run]({run.link}))", ""]
    where = [f"on {code(run.device)}"] if run.device else []
    where += [f"compared with the merge base {_sha(run.base_sha)}"] if run.base_sha else []
    lines += [", ".join(where), ""] if where else []
    lines += _table(run, rows)
    lines += [f"- {line}" for line in _remarks(run)]
    return [*lines, ""]


def _table(run: RunReport, rows: int) -> list[str]:
    measured = any(any(cell.counts.values()) or cell.outcome for cell in run.cells)
    if run.state not in ENDED_STATES or not measured:
        return []
    shown = run.cells[:rows]
    left_out = len(run.cells) - len(shown)
    more = [f"{left_out} cells are left out here: see the [run]({run.link}).", ""]
    if not shown:
        return more
    marks = ["---:" if name in _RIGHT else "---" for name in _TABLE]
    lines = [_row(_TABLE), _row(marks), *(_row(_cells(cell)) for cell in shown), ""]
    if any(not cell.ships for cell in shown):
        lines += ["† does not ship with the commit: it does not count for the status.", ""]
    return lines + (more if left_out else [])


def _row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _cells(cell: JudgedCell) -> list[str]:
    head, base = cell.head, cell.base
    return [
        code(cell.name, 80) + ("" if cell.ships else " †"),
        str(head.n),
        str(head.k) if head.n else "-",
        ", ".join(f"{n} {outcome}" for outcome, n in cell.counts.items() if n) or "-",
        percent(head.rate) if head.rate is not None else "-",
        span(cell.verdict.interval) if head.n else "-",
        _base(cell) if base is not None else "-",
        _verdict(cell),
    ]


def _base(cell: JudgedCell) -> str:
    assert cell.base is not None
    return f"{cell.base.text}{', same build' if cell.same_build else ''}"


def _verdict(cell: JudgedCell) -> str:
    if cell.outcome:
        return f"{plain(cell.outcome)}: see below"
    label = cell.verdict.label
    bold = cell.verdict.kind in (Kind.REGRESSED, Kind.RACES)
    if cell.verdict.trials_needed:
        return f"{label}: about {cell.verdict.trials_needed} more"
    return f"**{label}**" if bold else label


def _remarks(run: RunReport) -> list[str]:
    """What the table does not say, a line each."""
    if run.state not in ENDED_STATES:
        return []
    lines = []
    if run.state != RunState.COMPLETE:
        lines.append(f"{run.state}: {code(run.reason)}")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for cell in run.cells:
        if cell.outcome:
            key = (cell.outcome, cell.signature, cell.reason)
            reasons.setdefault(key, []).append(cell.name)
    for (outcome, signature, reason), names in list(reasons.items())[:SIGNATURES]:
        lines.append(f"{_could_not(outcome, signature, reason)} ({_names(names)})")
    if run.seen:
        seen = "; ".join(f"{number} x {code(signature)}" for signature, number in run.seen)
        lines.append(f"failed with {seen}")
    lines += [code(run.parity, 300)] if run.parity else []
    lines += [code(note) for note in run.notes[:SIGNATURES]]
    return lines


def _could_not(outcome: str, signature: str, reason: str) -> str:
    what = "build error" if outcome == Outcome.BUILD_ERROR else plain(outcome)
    said = [code(text) for text in dict.fromkeys((signature, _first_line(reason))) if text]
    return f"{what}: {', '.join(said) or '-'}"


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(code(name, 80) for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _sha(sha: str) -> str:
    return code(sha[:_SHA_CHARACTERS])
