"""Becomes a program of PostgreSQL: a child that dies with its parent, under another user if asked.

Run as a script, by `command`, in an interpreter of its own: what Python does between fork and exec
(a `preexec_fn`) may deadlock in a process that has threads, and the service has. Standard library
only, and no package around it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # prctl(2)


def command(program: Sequence[str], uid: int, gid: int, death: signal.Signals) -> list[str]:
    """The command that becomes `program` as that user, and gets the signal `death` when the
    *thread* that started it ends (so says prctl(2)): start it from one that lives long enough."""
    numbers = (uid, gid, int(death), os.getpid())
    return [sys.executable, "-I", "-S", __file__, *map(str, numbers), *program]


def _become(uid: int, gid: int, death: int, parent: int, program: list[str]) -> None:
    signal.signal(death, signal.SIG_DFL)  # a shell's background job has SIGINT ignored
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which clears it.
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death) != 0:
        sys.exit("the kernel refuses prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent ended meanwhile")
    os.execv(program[0], program)


if __name__ == "__main__":
    user, group, number, starter = map(int, sys.argv[1:5])
    try:
        _become(user, group, number, starter, sys.argv[5:])
    except OSError as failure:
        sys.exit(f"cannot start {sys.argv[5]} as uid {sys.argv[1]}: {failure.strerror}")
