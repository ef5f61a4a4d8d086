"""The stand-in for GitHub as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.github.standin import StandIn


@pytest.fixture
def github() -> Iterator[StandIn]:
    """A stand-in that serves for this test; a test that meant to send good requests only asserts
    that its `complaints` are empty."""
    with StandIn() as standin:
        yield standin
