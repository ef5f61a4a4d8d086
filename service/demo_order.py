"""Orders the demo's runs from a service that runs already, and waits for those of its tagged
commits: what the profile `demo` of compose.yaml runs besides a worker.

Arguments name tagged commits that are to be run and no others, such as `race fix`. Exit status 1
where the pages do not show what they should.
"""

from __future__ import annotations

import sys
import time

from sqlmodel import col, func, select

from runner.node import guarded
from service import demo
from service.opening import opened
from service.settings import load
from service.tables import ENDED_STATES, Run


def main() -> int:
    """Order, wait, look."""
    settings = load()
    with opened(settings) as database:
        with database.session() as session:
            ordered = demo.order(session, sys.argv[1:])
        tagged = list(ordered.tagged.values())
        print(f"{len(ordered.runs)} runs ordered; waiting for the tagged commits", flush=True)
        before = -1
        while before < len(tagged):
            with database.session() as session:
                ended = session.exec(
                    select(func.count())
                    .select_from(Run)
                    .where(col(Run.id).in_(tagged), col(Run.state).in_(ENDED_STATES))
                ).one()
            if ended != before:
                print(f"{ended} of {len(tagged)} done", flush=True)
            before = ended
            time.sleep(demo.LOOK_S)
        wrong = demo.check(settings, ordered)
    for sentence in wrong:
        print(f"racewatch: {sentence}", file=sys.stderr)
    if not wrong:
        print("the pages show what they should", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
