"""The variants by name, what they are built as, and what their trials are told."""

from __future__ import annotations

import pytest

from runner.errors import VariantError
from runner.variants import BuildKind, Variant


@pytest.mark.parametrize(
    ("text", "hold_ms", "kind", "environment"),
    [
        ("stock", 0, BuildKind.STOCK, {}),
        ("unregistered", 0, BuildKind.STOCK, {}),
        ("stock", 20, BuildKind.INSTRUMENTED, {"RACEWATCH_HOLD_MS": "20"}),
        ("owned-stream", 0, BuildKind.INSTRUMENTED, {"RACEWATCH_CAPTURE_STREAM": "owned"}),
        (
            "owned-stream",
            2.5,
            BuildKind.INSTRUMENTED,
            {"RACEWATCH_CAPTURE_STREAM": "owned", "RACEWATCH_HOLD_MS": "2.5"},
        ),
        ("ffi13", 0, BuildKind.FFI13, {}),
        ("ffi13", 20, BuildKind.FFI13, {"RACEWATCH_HOLD_MS": "20"}),
        ("ffi13+owned-stream", 0, BuildKind.FFI13, {"RACEWATCH_CAPTURE_STREAM": "owned"}),
        ("pr-2800", 0, BuildKind.STOCK, {}),
        ("pr-2800+pr-3864", 20, BuildKind.INSTRUMENTED, {"RACEWATCH_HOLD_MS": "20"}),
    ],
)
def test_a_cell_has_one_build_and_one_environment(
    text: str, hold_ms: float, kind: BuildKind, environment: dict[str, str]
) -> None:
    variant = Variant.parse(text)
    assert variant.build_kind(hold_ms) is kind
    assert variant.environment(hold_ms) == environment


def test_only_unregistered_changes_the_registration() -> None:
    assert Variant.parse("unregistered").registration == "unregistered"
    assert Variant.parse("ffi13+owned-stream").registration == "registered"


def test_pull_requests_combine_in_one_canonical_order() -> None:
    assert Variant.parse("pr-3864+pr-2800") == Variant.parse("pr-2800+pr-3864")
    assert Variant.parse("pr-3864+pr-2800").pulls == (2800, 3864)


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "pr-0", "pr-x", "stock+owned-stream", "stock+ffi13", "unregistered+owned-stream"],
)
def test_another_name_is_refused_with_those_that_exist(text: str) -> None:
    with pytest.raises(VariantError, match="ffi13\\+owned-stream") as caught:
        Variant.parse(text)
    assert repr(text) in str(caught.value)
