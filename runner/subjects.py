"""The subjects that there are, by name."""

from __future__ import annotations

from collections.abc import Callable

from runner.controls import none_for
from runner.errors import InfrastructureError, RefError, SubjectError
from runner.result import Commit
from runner.subject import Options, Subject


def _demo(options: Options) -> Subject:
    from runner.demo_subject import DemoSubject

    return DemoSubject(options)


def _te(options: Options) -> Subject:
    from runner.te_subject import TeSubject

    return TeSubject(options)


# Each imports its own when it is opened: a worker starts a process for every job, and what one
# subject needs (a client of the package index, say) took longer to import than all the rest.
SUBJECTS: dict[str, Callable[[Options], Subject]] = {"demo": _demo, "te": _te}


def control_of(subject: Subject) -> tuple[Commit | None, str]:
    """What control cells run; None, and a sentence that says why, where that cannot be had."""
    try:
        return subject.control(), ""
    except (RefError, SubjectError, InfrastructureError) as error:
        return None, none_for(str(error))


def open_subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises SubjectError."""
    if name not in SUBJECTS:
        raise SubjectError(f"--subject: unknown {name!r}; known: {', '.join(SUBJECTS)}")
    return SUBJECTS[name](options)
