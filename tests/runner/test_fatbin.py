"""Trimming device code: only the images that the architecture's driver would pick keep bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InputError
from runner.fatbin import Image, Kind, architectures, keep_architecture, split

Entry = tuple[Kind, int, bytes]


def fatbin(entries: list[Entry]) -> bytes:
    """A fatbin as nvcc lays it out; entries are (kind, architecture, payload)."""
    body = b""
    for kind, architecture, payload in entries:
        padded = payload + bytes(-len(payload) % 8)
        header = struct.pack("<HHIQ", kind, 0x101, 64, len(padded)) + bytes(12)
        body += header + struct.pack("<I", architecture) + bytes(32) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(section: bytes, name: str = ".nv_fatbin") -> bytes:
    """A 64-bit ELF file with one named section of these contents."""
    names = b"\0" + name.encode() + b"\0.shstrtab\0"
    contents_at = 64
    names_at = contents_at + len(section)
    table_at = names_at + len(names)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table_at, 0, 64, 0, 0, 64, 3, 2
    )
    rows = [
        (0, 0, 0, 0),
        (1, 1, contents_at, len(section)),
        (2 + len(name), 3, names_at, len(names)),
    ]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", row[0], row[1], 0, 0, row[2], row[3], 0, 0, 8, 0) for row in rows
    )
    return header + section + names + table


def write_library(folder: Path, fatbins: list[list[Entry]]) -> Path:
    library = folder / "libkernels.so"
    library.write_bytes(elf(b"".join(fatbin(entries) for entries in fatbins)))
    return library


def trim(library: Path, architecture: str) -> bytes:
    target = library.with_name("trimmed.so")
    keep_architecture(library, target, architecture)
    return target.read_bytes()


def test_code_for_other_architectures_is_zeroed_in_place(tmp_path: Path) -> None:
    library = write_library(
        tmp_path, [[(Kind.CUBIN, 80, b"for-80!!"), (Kind.CUBIN, 90, b"for-90!!")]]
    )

    trimmed = trim(library, "90")

    assert trimmed == library.read_bytes().replace(b"for-80!!", bytes(8))


def test_a_library_of_countless_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A commit's own build made it, and this looks at it with no deadline.
    monkeypatch.setattr("runner.fatbin.IMAGES", 3)
    library = write_library(tmp_path, [[(Kind.CUBIN, 90, b"")] * 2, [(Kind.CUBIN, 90, b"")] * 2])
    with pytest.raises(InputError, match=r"libkernels.so holds more than 3 images"):
        trim(library, "90")


def test_each_image_is_looked_up_once(tmp_path: Path) -> None:
    compared = 0

    class Counting(Image):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = Image.__hash__

    fatbin = [Counting(Kind.CUBIN, 90 if n % 2 else 80, 64 * n, 8) for n in range(2000)]
    assert len(split(fatbin, 90)[0]) == 1000
    assert compared < 10_000


def test_every_fatbin_of_the_library_is_trimmed(tmp_path: Path) -> None:
    library = write_library(
        tmp_path,
        [
            [(Kind.CUBIN, 90, b"first-90"), (Kind.CUBIN, 100, b"firs-100")],
            [(Kind.CUBIN, 120, b"secn-120"), (Kind.CUBIN, 90, b"secon-90")],
        ],
    )

    trimmed = trim(library, "90")

    assert b"first-90" in trimmed
    assert b"secon-90" in trimmed
    assert b"firs-100" not in trimmed
    assert b"secn-120" not in trimmed


def test_ptx_is_zeroed_where_there_is_compiled_code(tmp_path: Path) -> None:
    library = write_library(
        tmp_path, [[(Kind.CUBIN, 90, b"compiled"), (Kind.PTX, 90, b"ptx text")]]
    )

    trimmed = trim(library, "90")

    assert b"compiled" in trimmed
    assert b"ptx text" not in trimmed


def test_ptx_stays_where_there_is_no_compiled_code(tmp_path: Path) -> None:
    library = write_library(
        tmp_path, [[(Kind.CUBIN, 80, b"compiled"), (Kind.PTX, 80, b"ptx text")]]
    )

    trimmed = trim(library, "90")

    assert b"ptx text" in trimmed
    assert b"compiled" not in trimmed


def test_ptx_for_a_newer_architecture_is_of_no_use(tmp_path: Path) -> None:
    library = write_library(
        tmp_path, [[(Kind.PTX, 100, b"ptx-100!")], [(Kind.CUBIN, 90, b"for-90!!")]]
    )

    assert b"ptx-100!" not in trim(library, "90")


def test_older_code_of_the_same_major_number_stays(tmp_path: Path) -> None:
    """A device of compute capability 8.6 runs code for 8.0 (CUDA's binary compatibility)."""
    library = write_library(
        tmp_path,
        [[(Kind.CUBIN, 75, b"for-75!!"), (Kind.CUBIN, 80, b"for-80!!"), (Kind.CUBIN, 89, b"89")]],
    )

    trimmed = trim(library, "86")

    assert b"for-80!!" in trimmed
    assert b"for-75!!" not in trimmed


def test_a_fatbin_without_any_use_is_zeroed_whole(tmp_path: Path) -> None:
    """Kernels for one architecture only have a fatbin of their own; others have theirs."""
    library = write_library(
        tmp_path, [[(Kind.CUBIN, 100, b"for-100!")], [(Kind.CUBIN, 90, b"for-90!!")]]
    )

    trimmed = trim(library, "90")

    assert b"for-90!!" in trimmed
    assert b"for-100!" not in trimmed


def test_an_architecture_without_code_is_one_sentence_and_no_file(tmp_path: Path) -> None:
    library = write_library(tmp_path, [[(Kind.CUBIN, 80, b"x"), (Kind.CUBIN, 90, b"y")]])
    target = tmp_path / "trimmed.so"

    with pytest.raises(InputError, match=r"no device code for sm_75: it has sm_80, sm_90"):
        keep_architecture(library, target, "75")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["libkernels.so"]


def test_what_was_kept_and_zeroed_is_counted(tmp_path: Path) -> None:
    library = write_library(
        tmp_path, [[(Kind.CUBIN, 80, bytes(16)), (Kind.CUBIN, 90, bytes(24)), (Kind.PTX, 90, b"p")]]
    )

    trimmed = keep_architecture(library, tmp_path / "out.so", "90")

    assert (trimmed.kept, trimmed.zeroed) == (1, 2)
    assert (trimmed.kept_bytes, trimmed.zeroed_bytes) == (24, 24)


def test_the_modes_of_the_library_are_kept(tmp_path: Path) -> None:
    library = write_library(tmp_path, [[(Kind.CUBIN, 90, b"x")]])
    library.chmod(0o755)

    keep_architecture(library, tmp_path / "out.so", "90")

    assert (tmp_path / "out.so").stat().st_mode & 0o777 == 0o755


def test_compiled_architectures_are_listed_with_their_bytes(tmp_path: Path) -> None:
    library = write_library(
        tmp_path,
        [[(Kind.CUBIN, 90, bytes(8)), (Kind.PTX, 75, bytes(8))], [(Kind.CUBIN, 90, bytes(16))]],
    )

    assert architectures(library) == {90: 24}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(b"#!/bin/sh\n" + bytes(64), "no 64-bit ELF library", id="script"),
        pytest.param(elf(b"", ".text"), "no device code: no section", id="no section"),
        pytest.param(elf(b"not a fatbin at all"), "no fatbin", id="other format"),
        pytest.param(elf(fatbin([(Kind.CUBIN, 90, b"x")])[:-8]), "cut short", id="cut fatbin"),
        pytest.param(elf(b"")[:100], "section table is cut short", id="cut file"),
    ],
)
def test_a_file_that_cannot_be_trimmed_is_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(content)

    with pytest.raises(InputError, match=sentence):
        keep_architecture(library, tmp_path / "out.so", "90")


images = st.tuples(
    st.sampled_from(Kind),
    st.sampled_from([75, 80, 89, 90, 100]),
    st.binary(min_size=1, max_size=40),
)


@given(fatbins=st.lists(st.lists(images, min_size=1, max_size=5), min_size=1, max_size=4))
def test_trimming_only_ever_zeroes_payloads_and_twice_is_once(
    tmp_path_factory: pytest.TempPathFactory, fatbins: list[list[Entry]]
) -> None:
    library = write_library(tmp_path_factory.mktemp("fatbin"), [*fatbins, [(Kind.CUBIN, 90, b"z")]])
    before = library.read_bytes()

    once = trim(library, "90")
    library.write_bytes(once)

    assert len(once) == len(before)
    assert all(new in (0, old) for new, old in zip(once, before, strict=True))
    assert trim(library, "90") == once
    kept = [entry for entries in fatbins for entry in entries if entry[:2] == (Kind.CUBIN, 90)]
    assert all(payload in once for _, _, payload in kept)
