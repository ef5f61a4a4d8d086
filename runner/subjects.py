"""The subjects that there are, by name."""

from __future__ import annotations

from collections.abc import Callable

from runner.demo_subject import DemoSubject
from runner.errors import SubjectError
from runner.subject import Options, Subject
from runner.te_subject import TeSubject

SUBJECTS: dict[str, Callable[[Options], Subject]] = {"demo": DemoSubject, "te": TeSubject}


def open_subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises SubjectError."""
    if name not in SUBJECTS:
        raise SubjectError(f"--subject: unknown {name!r}; known: {', '.join(SUBJECTS)}")
    return SUBJECTS[name](options)
