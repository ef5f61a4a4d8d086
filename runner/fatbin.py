"""Keeps one GPU architecture's device code in a library, so that the rest of it compresses away."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path

from runner.errors import InfrastructureError, InputError

SECTION = ".nv_fatbin"
_ELF_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: all that CUDA's hosts are
_ELF_HEADER = struct.Struct("<40xQ10xHHH")  # section table: offset; entry size, count, names' index
_SECTION_HEADER = struct.Struct("<I20xQQ24x")  # name, offset, size
_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, header size, payload size
_ENTRY_HEADER = struct.Struct("<HHIQ12xI")  # kind, version, header size, payload size; architecture
_ALIGNMENT = 8
_ZEROS = bytes(1 << 20)
IMAGES = 1_000_000
"""More than a library holds: TE's core has some thousands."""


class Kind(IntEnum):
    """What an entry of a fatbin holds."""

    PTX = 1
    CUBIN = 2


@dataclass(frozen=True)
class Image:
    """One entry's payload: device code for one architecture, at `offset` in the file."""

    kind: int
    architecture: int
    offset: int
    size: int


@dataclass(frozen=True)
class Trimmed:
    """What trimming kept and zeroed, in images and in bytes."""

    kept: int
    zeroed: int
    kept_bytes: int
    zeroed_bytes: int


def keep_architecture(source: Path, target: Path, architecture: str) -> Trimmed:
    """Copy a library to `target` with the device code that no device of `architecture` runs zeroed.

    Of each fatbin the driver's choices stay: code for exactly this architecture; else for an older
    one of the same major number; else PTX, which the driver compiles. Everything keeps its place.
    """
    wanted = int(architecture)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    os.close(handle)
    try:
        shutil.copyfile(source, scratch)
        with open(scratch, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            trimmed = _trim(view, wanted, source)
        shutil.copymode(source, scratch)
        os.replace(scratch, target)
    except OSError as error:
        raise InfrastructureError(
            f"{source} cannot be trimmed into {target}: {error.strerror or error}"
        ) from error
    finally:
        Path(scratch).unlink(missing_ok=True)
    return trimmed


def architectures(library: Path) -> dict[int, int]:
    """For each architecture that a library has compiled device code for, how many bytes of it."""
    found: dict[int, int] = {}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for fatbin in _fatbins(view, library):
            for image in fatbin:
                if image.kind == Kind.CUBIN:
                    found[image.architecture] = found.get(image.architecture, 0) + image.size
    return dict(sorted(found.items()))


def _trim(view: mmap.mmap, wanted: int, source: Path) -> Trimmed:
    kept: list[Image] = []
    dropped: list[Image] = []
    for fatbin in _fatbins(view, source):
        usable, rest = split(fatbin, wanted)
        kept += usable
        dropped += rest
        if len(kept) + len(dropped) > IMAGES:
            raise InputError(f"{source.name} holds more than {IMAGES} images: it is not used")
    if not kept:
        there = ", ".join(
            f"sm_{each}" for each in sorted({image.architecture for image in dropped})
        )
        raise InputError(
            f"{source.name} has no device code for sm_{wanted}: it has {there or 'none at all'}"
        )
    for image in dropped:
        _zero(view, image)
    return Trimmed(
        kept=len(kept),
        zeroed=len(dropped),
        kept_bytes=sum(image.size for image in kept),
        zeroed_bytes=sum(image.size for image in dropped),
    )


def split(fatbin: list[Image], wanted: int) -> tuple[list[Image], list[Image]]:
    """The images of a fatbin that a device of that architecture may run, and the others."""
    usable = _usable(fatbin, wanted)
    kept = set(usable)
    return usable, [image for image in fatbin if image not in kept]


def _usable(fatbin: list[Image], wanted: int) -> list[Image]:
    cubins = [image for image in fatbin if image.kind == Kind.CUBIN]
    exact = [image for image in cubins if image.architecture == wanted]
    if exact:
        return exact
    older = [
        image
        for image in cubins
        if image.architecture // 10 == wanted // 10 and image.architecture < wanted
    ]
    if older:
        return older
    return [image for image in fatbin if image.kind == Kind.PTX and image.architecture <= wanted]


def _zero(view: mmap.mmap, image: Image) -> None:
    end = image.offset + image.size
    for start in range(image.offset, end, len(_ZEROS)):
        size = min(len(_ZEROS), end - start)
        view[start : start + size] = _ZEROS[:size]


def _fatbins(view: mmap.mmap, source: Path) -> Iterator[list[Image]]:
    """The images of each fatbin in the library, one list for each."""
    start, size = _section(view, source)
    position, end = start, start + size
    while position + _FATBIN_HEADER.size <= end:
        magic, _, header_size, payload = _FATBIN_HEADER.unpack_from(view, position)
        if magic != _FATBIN_MAGIC:
            if any(view[position : position + _ALIGNMENT]):
                raise InputError(
                    f"{source.name}: what is at byte {position} of {SECTION} is no fatbin, "
                    "so this CUDA's format is unknown here"
                )
            position += _ALIGNMENT
            continue
        stop = position + header_size + payload
        if header_size < _FATBIN_HEADER.size or stop > end:
            raise InputError(f"{source.name}: the fatbin at byte {position} is cut short")
        yield list(islice(_images(view, position + header_size, stop, source), IMAGES + 1))
        position = stop + (start - stop) % _ALIGNMENT


def _images(view: mmap.mmap, position: int, end: int, source: Path) -> Iterator[Image]:
    while position + _ENTRY_HEADER.size <= end:
        kind, _, header_size, size, architecture = _ENTRY_HEADER.unpack_from(view, position)
        if header_size < _ENTRY_HEADER.size or position + header_size + size > end:
            raise InputError(f"{source.name}: the fatbin entry at byte {position} is cut short")
        yield Image(kind, architecture, position + header_size, size)
        position += header_size + size


def _section(view: mmap.mmap, source: Path) -> tuple[int, int]:
    """Offset and size of the device code in an ELF library."""
    if view[: len(_ELF_MAGIC)] != _ELF_MAGIC:
        raise InputError(f"{source.name} is no 64-bit ELF library")
    try:
        table, entry_size, count, names_index = _ELF_HEADER.unpack_from(view, 0)
        headers = [
            _SECTION_HEADER.unpack_from(view, table + index * entry_size) for index in range(count)
        ]
        _, names, _ = headers[names_index]
    except (struct.error, IndexError) as error:
        raise InputError(f"{source.name}: its section table is cut short") from error
    wanted = SECTION.encode() + b"\0"
    for name, offset, size in headers:
        if view[names + name : names + name + len(wanted)] == wanted:
            return offset, size
    raise InputError(f"{source.name} has no device code: no section {SECTION}")
