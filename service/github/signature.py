"""Whether a delivery is GitHub's: an HMAC over its raw body, by a secret that both sides know."""

from __future__ import annotations

import hashlib
import hmac
import re

from runner.errors import InputError

HEADER = "X-Hub-Signature-256"
_SIGNATURE = re.compile(r"sha256=([0-9a-f]{64})")


def refusal(secret: str, body: bytes | bytearray, header: str | None) -> str | None:
    """Why a delivery is refused, as a sentence; None where its signature is right.

    body: as it arrived, byte by byte: JSON that is parsed and written again is another text.
    header: what X-Hub-Signature-256 held. The older X-Hub-Signature is SHA-1 and never enough:
    https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
    """
    if not secret:
        raise InputError("the webhook's secret must not be empty: anyone can sign with that")
    if not header:
        return (
            f"{HEADER} is missing (X-Hub-Signature, which is SHA-1, is not enough): give the "
            "webhook at GitHub the secret in RACEWATCH_WEBHOOK_SECRET"
        )
    # Only what has this form is compared: compare_digest raises for a text that is not ASCII.
    given = _SIGNATURE.fullmatch(header)
    if given is None:
        return f"{HEADER} must be sha256= and 64 hexadecimal digits"
    if not hmac.compare_digest(
        given[1], hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    ):
        return (
            f"{HEADER} does not fit the body: the secret of the webhook at GitHub and "
            "RACEWATCH_WEBHOOK_SECRET must be the same"
        )
    return None
