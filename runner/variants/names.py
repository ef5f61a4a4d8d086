"""The variants by name: which build a cell needs, what its trials are told (stdlib only)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from runner.errors import VariantError


class BuildKind(StrEnum):
    """The builds that one commit can need."""

    STOCK = "stock"
    INSTRUMENTED = "instrumented"
    FFI13 = "ffi13"


NAMES = ("stock", "owned-stream", "unregistered", "ffi13", "ffi13+owned-stream", "pr-N")
_BASES = {"stock", "unregistered", "ffi13"}


@dataclass(frozen=True)
class Variant:
    """A way to build or load a commit.

    text: canonical name, for example `ffi13+owned-stream` or `pr-2800+pr-3864`.
    pulls: pull requests whose heads are merged onto the commit, ascending.
    """

    text: str
    ffi13: bool = False
    owned_stream: bool = False
    unregistered: bool = False
    pulls: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Variant:
        """The variant of that name. Raises VariantError, which lists the names there are."""
        parts = text.split("+")
        pulls: set[int] = set()
        words: set[str] = set()
        for part in parts:
            match = re.fullmatch(r"pr-([1-9][0-9]{0,8})", part)
            if match:
                pulls.add(int(match.group(1)))
            elif part in {"stock", "owned-stream", "unregistered", "ffi13"} and part not in words:
                words.add(part)
            else:
                raise VariantError(f"unknown variant {text!r}; known: {', '.join(NAMES)}")
        if len(words & _BASES) > 1 or {"stock", "owned-stream"} <= words:
            raise VariantError(
                f"variant {text!r} combines what excludes itself; known: {', '.join(NAMES)}"
            )
        if "unregistered" in words and "owned-stream" in words:
            raise VariantError(
                f"variant {text!r} combines what excludes itself; known: {', '.join(NAMES)}"
            )
        if pulls:
            words.discard("stock")
        ordered = [f"pr-{n}" for n in sorted(pulls)]
        ordered += [
            word for word in ("stock", "unregistered", "ffi13", "owned-stream") if word in words
        ]
        return cls(
            text="+".join(ordered),
            ffi13="ffi13" in words,
            owned_stream="owned-stream" in words,
            unregistered="unregistered" in words,
            pulls=tuple(sorted(pulls)),
        )

    def build_kind(self, hold_ms: float) -> BuildKind:
        """The build that a cell of this variant needs; a hold needs an instrumented one."""
        if self.ffi13:
            return BuildKind.FFI13
        if self.owned_stream or hold_ms > 0:
            return BuildKind.INSTRUMENTED
        return BuildKind.STOCK

    def environment(self, hold_ms: float) -> dict[str, str]:
        """What an instrumented build reads at every capture of a trial."""
        environment = {}
        if hold_ms > 0:
            environment["RACEWATCH_HOLD_MS"] = f"{hold_ms:g}"
        if self.owned_stream:
            environment["RACEWATCH_CAPTURE_STREAM"] = "owned"
        return environment

    @property
    def registration(self) -> str:
        """`registered`, or `unregistered` where the initialize handlers are dropped at import."""
        return "unregistered" if self.unregistered else "registered"

    @property
    def ships(self) -> bool:
        """True for what a user of stock TE, of the fix or of the named pull request runs."""
        return not self.ffi13 and not self.unregistered
