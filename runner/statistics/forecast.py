"""How many more trials a question takes, if the rates stay as they were seen."""

from __future__ import annotations

from collections.abc import Callable


def smallest(enough: Callable[[int], bool], limit: int) -> int | None:
    """About the smallest number from 0 to `limit` that is enough, None where even `limit` is not.

    It gallops, then halves. The answer is enough and the number before it is not; there may be a
    smaller such number, since counts are whole and a test's p value is therefore jagged in n.
    """
    if limit < 0:
        return None
    if enough(0):
        return 0
    below, above = 0, 1
    while above < limit and not enough(above):
        below, above = above, above * 2
    if above >= limit:
        above = limit
        if not enough(above):
            return None
    while above - below > 1:
        middle = (below + above) // 2
        if enough(middle):
            above = middle
        else:
            below = middle
    return above
