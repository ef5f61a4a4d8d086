"""The store: artifacts exist whole or not at all; a store that fails says so in one sentence."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import stat
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.store import Store, build_key

KEY = "ab" * 32
OTHER_KEY = "cd" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def build(tmp_path: Path) -> Path:
    folder = tmp_path / "build"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "extension.so").write_bytes(b"\x7fELF" + bytes(range(256)) * 64)
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    return folder


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mount = tmp_path / "full"
    mount.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("mounting a tiny file system needs root and mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def archive_of(store: Store, key: str) -> Path:
    manifest = store.manifest(key)
    assert manifest is not None
    return Path(store.url) / "archives" / manifest.archive


def test_a_stored_build_comes_back_with_contents_modes_and_facts(
    store: Store, build: Path, tmp_path: Path
) -> None:
    store.put(KEY, build, {"kind": "stock", "seconds": 75.5})

    manifest = store.get(KEY, tmp_path / "out")

    assert manifest is not None
    assert manifest.facts == {"kind": "stock", "seconds": 75.5}
    extension = "lib/extension.so"
    assert (tmp_path / "out" / extension).read_bytes() == (build / extension).read_bytes()
    assert stat.S_IMODE((tmp_path / "out" / "tool").stat().st_mode) == 0o755


def test_links_inside_an_artifact_stay_links(store: Store, build: Path, tmp_path: Path) -> None:
    (build / "lib" / "link").symlink_to("../tool")
    store.put(KEY, build, {})

    store.get(KEY, tmp_path / "target")

    assert os.readlink(tmp_path / "target" / "lib" / "link") == "../tool"


def hostile(**entries: tarfile.TarInfo) -> bytes:
    """An archive with entries that no build of ours has."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, entry in entries.items():
            entry.name = entry.name or name
            archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    return packed.getvalue()


def entry(kind: bytes, name: str = "", target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize(
    ("archive", "sentence"),
    [
        (hostile(a=entry(tarfile.REGTYPE, "../evil")), "outside"),
        (hostile(a=entry(tarfile.REGTYPE, "/tmp/evil")), "outside"),
        (hostile(a=entry(tarfile.SYMTYPE, target="/etc/passwd")), "outside"),
        (
            hostile(
                a=entry(tarfile.SYMTYPE, target="."),
                b=entry(tarfile.SYMTYPE, target="a/a/a/../../../../evil"),
            ),
            "outside",
        ),
        (
            hostile(a=entry(tarfile.SYMTYPE, target=".."), b=entry(tarfile.REGTYPE, "a/evil")),
            "File exists",
        ),
        (hostile(a=entry(tarfile.LNKTYPE, target="../../evil")), "no file, folder or link"),
        (hostile(a=entry(tarfile.CHRTYPE)), "no file, folder or link"),
        (hostile(a=entry(tarfile.FIFOTYPE)), "no file, folder or link"),
    ],
)
def test_an_archive_that_reaches_outside_is_refused(
    store: Store, build: Path, tmp_path: Path, archive: bytes, sentence: str
) -> None:
    manifest = store.put(KEY, build, {})
    (tmp_path / "store" / "archives" / manifest.archive).write_bytes(archive)
    document = tmp_path / "store" / "manifests" / f"{KEY}.json"
    digest = hashlib.sha256(archive).hexdigest()
    document.write_text(document.read_text().replace(manifest.digest, digest))
    (tmp_path / "deep").mkdir()

    with pytest.raises(StoreError, match=sentence):
        store.get(KEY, tmp_path / "deep" / "target")

    assert list((tmp_path / "deep").iterdir()) == []
    assert not list(tmp_path.rglob("evil"))


def test_a_key_that_was_never_stored_is_absent(store: Store, tmp_path: Path) -> None:
    assert not store.has(KEY)
    assert store.get(KEY, tmp_path / "out") is None
    assert not (tmp_path / "out").exists()


def test_equal_folders_make_equal_archives(store: Store, build: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(build, copy)
    os.utime(copy / "tool", (1, 1))

    assert store.put(KEY, build, {}).digest == store.put(OTHER_KEY, copy, {}).digest


def test_an_artifact_without_its_manifest_does_not_exist(store: Store, build: Path) -> None:
    store.put(KEY, build, {})
    (Path(store.url) / "manifests" / f"{KEY}.json").unlink()

    assert not store.has(KEY)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-20]), id="cut short"),
        pytest.param(lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]), id="changed"),
        pytest.param(lambda path: path.unlink(), id="missing"),
    ],
)
def test_a_damaged_archive_counts_as_absent_with_a_warning(
    store: Store, build: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    store.put(KEY, build, {})
    assert callable(damage)
    damage(archive_of(store, KEY))

    with caplog.at_level(logging.WARNING):
        assert store.get(KEY, tmp_path / "out") is None

    assert "damaged" in caplog.text
    assert not (tmp_path / "out").exists()


def test_a_damaged_archive_is_replaced_by_the_next_put(
    store: Store, build: Path, tmp_path: Path
) -> None:
    store.put(KEY, build, {})
    archive_of(store, KEY).write_bytes(b"noise")

    store.put(KEY, build, {})

    assert store.get(KEY, tmp_path / "out") is not None


@pytest.mark.parametrize("text", ["{", "[]", '{"archive": "a"}', ""])
def test_a_damaged_manifest_counts_as_absent_with_a_warning(
    store: Store, build: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    store.put(KEY, build, {})
    (Path(store.url) / "manifests" / f"{KEY}.json").write_text(text)

    with caplog.at_level(logging.WARNING):
        assert not store.has(KEY)

    assert "damaged" in caplog.text


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(
    full_disk: Path, tmp_path: Path
) -> None:
    build = tmp_path / "large"
    build.mkdir()
    (build / "core.so").write_bytes(os.urandom(200_000))
    store = Store(full_disk / "store")

    with pytest.raises(StoreError, match="No space left on device") as caught:
        store.put(KEY, build, {})

    assert "\n" not in str(caught.value)
    assert str(full_disk) in str(caught.value)
    assert files_below(full_disk) == []


def test_a_disk_that_fills_up_at_the_manifest_leaves_no_archive_behind(
    full_disk: Path, build: Path
) -> None:
    store = Store(full_disk / "store")
    facts = {"log": "x" * 100_000}

    with pytest.raises(StoreError):
        store.put(KEY, build, facts)

    assert files_below(full_disk) == []


def test_a_store_below_a_file_is_one_sentence(build: Path, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("")

    with pytest.raises(StoreError, match="cannot be written"):
        Store(tmp_path / "occupied" / "store").put(KEY, build, {})


def test_an_unknown_kind_of_url_is_one_sentence() -> None:
    with pytest.raises(StoreError, match="nowhere://"):
        Store("nowhere://bucket")


def test_any_fsspec_url_is_a_store(build: Path, tmp_path: Path) -> None:
    store = Store(f"memory://racewatch-{uuid.uuid4().hex}")
    store.put(KEY, build, {"kind": "ffi13"})

    manifest = store.get(KEY, tmp_path / "out")

    assert manifest is not None
    assert manifest.facts == {"kind": "ffi13"}
    assert (tmp_path / "out" / "tool").is_file()


def test_builders_that_store_one_key_at_once_leave_one_whole_artifact(
    store: Store, tmp_path: Path
) -> None:
    builds = []
    for number in range(4):
        folder = tmp_path / f"build-{number}"
        folder.mkdir()
        (folder / "number").write_text(str(number) * 10_000)
        builds.append(folder)
    threads = [
        threading.Thread(target=store.put, args=(KEY, folder, {"number": number}))
        for number, folder in enumerate(builds)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = store.get(KEY, tmp_path / "out")

    assert manifest is not None
    number = manifest.facts["number"]
    assert (tmp_path / "out" / "number").read_text() == str(number) * 10_000


def test_a_log_is_kept_without_an_artifact(store: Store) -> None:
    store.put_log(KEY, "softmax.cpp:3:1: error: expected ';'\n")

    assert store.log(KEY) == "softmax.cpp:3:1: error: expected ';'\n"
    assert store.log(OTHER_KEY) is None
    assert not store.has(KEY)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=6), st.randoms())
def test_a_build_key_does_not_depend_on_the_order_of_its_parts(
    parts: dict[str, str], random: object
) -> None:
    names = list(parts)
    random.shuffle(names)  # type: ignore[attr-defined]

    assert build_key({name: parts[name] for name in names}) == build_key(parts)


@given(
    st.dictionaries(st.text(min_size=1), st.text(), max_size=4),
    st.dictionaries(st.text(min_size=1), st.text(), max_size=4),
)
def test_different_parts_have_different_keys(one: dict[str, str], other: dict[str, str]) -> None:
    assert (build_key(one) == build_key(other)) == (one == other)


def test_a_build_key_is_the_same_on_every_host() -> None:
    """Stores are shared between hosts and versions: the key's form is part of the store."""
    assert build_key({"variant": "stock", "csrc": "1f"}) == (
        "b74e46a04e51fda7555ea37fda961df855444ff6a7e5f11d0785c457b8f14525"
    )
