"""What can go wrong when something is told to the outside: whether another attempt can help."""

from __future__ import annotations

from runner.errors import InfrastructureError


class DeliveryError(InfrastructureError):
    """A message did not arrive; the sentence names who refused what, and never holds a secret."""


class Refused(DeliveryError):
    """It was understood and refused: sending the same again gets the same answer.

    status: of the HTTP answer, 0 where it was another protocol, or nothing was sent at all.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TryAgain(DeliveryError):
    """Another attempt can help. after_s: seconds that the other side asks to wait, None if it does
    not say."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Unavailable(TryAgain):
    """Nothing at all arrives there for now: an outage, or a rate limit.

    Whatever else goes to the same place waits as well. GitHub may ban who goes on under a limit:
    https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api
    """
