"""Signatures: only what GitHub made over exactly these bytes, with SHA-256, is GitHub's."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InputError
from service.github import signature
from tests.service.github.deliveries import SECRET, signed

BODY = b'{"zen": "Keep it logically awesome."}'


def test_githubs_own_example() -> None:
    # https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
    header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"

    assert signature.refusal("It's a Secret to Everybody", b"Hello, World!", header) is None


@given(body=st.binary(), secret=st.text(min_size=1))
def test_any_signed_body_is_taken(body: bytes, secret: str) -> None:
    assert signature.refusal(secret, body, signed(body, secret)) is None


@given(body=st.binary(min_size=1), position=st.integers(min_value=0), flip=st.integers(1, 255))
def test_any_changed_byte_is_refused(body: bytes, position: int, flip: int) -> None:
    changed = bytearray(body)
    changed[position % len(body)] ^= flip

    assert signature.refusal(SECRET, bytes(changed), signed(body)) is not None


def test_another_secret_is_refused_with_the_way_out() -> None:
    refused = signature.refusal(SECRET, BODY, signed(BODY, "another"))

    assert refused is not None
    assert "RACEWATCH_WEBHOOK_SECRET" in refused


def test_a_missing_signature_is_refused() -> None:
    refused = signature.refusal(SECRET, BODY, None)

    assert refused is not None
    assert "missing" in refused


@pytest.mark.parametrize(
    "header",
    [
        "",
        "sha256=",
        "sha1=" + hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest(),
        "sha256=" + hmac.new(SECRET.encode(), BODY, hashlib.sha1).hexdigest(),
        signed(BODY).removeprefix("sha256="),
        signed(BODY).upper(),
        signed(BODY) + " ",
        signed(BODY) + "00",
        signed(BODY)[:-1],
        signed(BODY)[:-1] + "\u00e9",
        "sha256=" + "\u0663" * 64,
        f"{signed(BODY)}, {signed(BODY)}",
    ],
)
def test_anything_of_another_form_is_refused(header: str) -> None:
    assert signature.refusal(SECRET, BODY, header) is not None


def test_an_empty_secret_verifies_nothing() -> None:
    with pytest.raises(InputError, match="must not be empty"):
        signature.refusal("", BODY, "sha256=" + hmac.new(b"", BODY, hashlib.sha256).hexdigest())
