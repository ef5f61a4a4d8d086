"""Source transforms that turn a commit into the variants whose race is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import VariantError
from runner.variants import ffi13, stream
from runner.variants.names import BuildKind, Variant

__all__ = ["Applied", "BuildKind", "Variant", "apply", "transform"]

SOURCE_BYTES = 4 * 2**20
"""How large one C++ source may be: tens of times TE's largest."""
_SUFFIXES = frozenset({".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".cu"})


@dataclass(frozen=True)
class Applied:
    """What a build kind made of a commit's csrc.

    files: new text by path below csrc of what was changed or added.
    gained, present, absent: which of ffi13's thirteen handlers got an initialize stage, had one,
    and are not in the commit (empty for the other kinds).
    captures: the captures that can be held open. stages: every initialize handler of the result and
    the function that it reports to RACEWATCH_TRACE.
    owned_stream_needed: False where the commit captures on a stream of its own already; None for
    a stock build, which is left as it is.
    """

    kind: BuildKind
    files: Mapping[str, str]
    gained: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    captures: tuple[stream.Capture, ...] = ()
    stages: tuple[stream.Stage, ...] = ()
    owned_stream_needed: bool | None = None

    @property
    def changed(self) -> tuple[str, ...]:
        """Paths below csrc of the files that differ from the commit's own."""
        return tuple(sorted(self.files))


def transform(kind: BuildKind, csrc: Mapping[str, str]) -> Applied:
    """What a build kind makes of file texts by path below csrc.

    Raises VariantError, whose message is the reason to show, where it does not apply.
    """
    if kind is BuildKind.STOCK:
        return Applied(kind, {}, stages=stream.stages(stream.parse(csrc)))
    widened = ffi13.widen(csrc) if kind is BuildKind.FFI13 else ffi13.Widened({})
    tree = {**csrc, **widened.files}
    instrumented = stream.instrument(tree)
    files = {**widened.files, **instrumented.files}
    return Applied(
        kind=kind,
        files=files,
        gained=widened.gained,
        present=widened.present,
        absent=widened.absent,
        captures=instrumented.captures,
        stages=stream.stages(stream.parse({**tree, **instrumented.files})),
        owned_stream_needed=instrumented.owned_stream_needed,
    )


def apply(kind: BuildKind, csrc_dir: Path) -> Applied:
    """Apply a build kind to a csrc folder in place; nothing is written where it does not apply."""
    if not csrc_dir.is_dir():
        raise VariantError(f"no folder {csrc_dir} of C++ sources to transform")
    applied = transform(kind, read(csrc_dir))
    for path, text in applied.files.items():
        (csrc_dir / path).write_bytes(text.encode("utf-8", "surrogateescape"))
    return applied


def read(csrc_dir: Path) -> dict[str, str]:
    """The C++ sources below a folder by their path in it, byte for byte as text.

    Raises VariantError for one so large that the parser, which has no deadline, were long at it.
    """
    found = {}
    for path in sorted(csrc_dir.rglob("*")):
        if path.suffix in _SUFFIXES and path.is_file():
            name, size = path.relative_to(csrc_dir).as_posix(), path.stat().st_size
            if size > SOURCE_BYTES:
                raise VariantError(
                    f"{name} has {size / 2**20:.1f} MiB, more than {SOURCE_BYTES / 2**20:g}"
                )
            found[name] = path.read_bytes().decode("utf-8", "surrogateescape")
    return found
