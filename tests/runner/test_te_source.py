"""Releases from a package index: verified, unpacked safely and once, or refused in one sentence."""

from __future__ import annotations

import hashlib
import io
import platform
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runner.errors import InfrastructureError, RefError
from runner.te_source import fetch_core_wheel, fetch_sdist, released_versions

CORE = f"manylinux_2_28_{platform.machine()}"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are no part of a test's output."""


class Index:
    """A package index on this host: a folder, served over HTTP as an index's pages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(QuietHandler, directory=str(root))
        )
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def stop(self) -> None:
        """Stop answering; stopping twice is stopping."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def publish(
        self, project: str, filename: str, content: bytes, digest: str | None = None
    ) -> None:
        """Add a file to a project's page, which says `digest` of it (its own if None)."""
        folder = self.root / project
        folder.mkdir(exist_ok=True)
        (folder / filename).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest() if digest is None else digest
        fragment = f"#sha256={digest}" if digest else ""
        page = folder / "index.html"
        before = page.read_text() if page.exists() else ""
        page.write_text(f'{before}<a href="{filename}{fragment}">{filename}</a>\n')

    def publish_sdist(self, version: str, **changes: str) -> None:
        self.publish(
            "transformer-engine-jax",
            f"transformer_engine_jax-{version}.tar.gz",
            sdist({f"transformer_engine_jax-{version}/csrc/extensions/ffi.h": b"// sdist\n"}),
            **changes,
        )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    root = tmp_path / "index"
    root.mkdir()
    served = Index(root)
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    yield served
    served.stop()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def sdist(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def left_in(cache: Path) -> list[str]:
    """What a fetch left in the cache, other than locks."""
    return sorted(
        path.name for path in cache.rglob("*") if path.suffix != ".lock" and path.is_file()
    )


def test_an_sdist_is_unpacked_without_its_top_folder(index: Index, cache: Path) -> None:
    index.publish_sdist("2.20.2")

    folder = fetch_sdist("2.20.2", cache)

    assert (folder / "csrc" / "extensions" / "ffi.h").read_text() == "// sdist\n"


def test_a_release_that_was_fetched_needs_no_network(index: Index, cache: Path) -> None:
    index.publish_sdist("2.20.2")
    first = fetch_sdist("2.20.2", cache)
    index.stop()

    assert fetch_sdist("2.20.2", cache) == first


def test_a_core_wheel_is_chosen_for_this_machine(index: Index, cache: Path) -> None:
    project = "transformer-engine-cu13"
    for tag, text in ((CORE, b"mine"), ("manylinux_2_28_riscv64", b"other"), ("any", b"none")):
        library = {"transformer_engine/wheel_lib/libtransformer_engine.so": text}
        index.publish(project, f"transformer_engine_cu13-2.20.2-py3-none-{tag}.whl", wheel(library))

    folder = fetch_core_wheel("2.20.2", 13, cache)

    core = folder / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    assert core.read_bytes() == b"mine"


def test_an_unknown_version_names_those_there_are_newest_first(index: Index, cache: Path) -> None:
    for version in ("2.9.0", "2.20.2", "2.10.0"):
        index.publish_sdist(version)

    with pytest.raises(
        RefError, match=r"no release 2\.21 .*; there are 2\.20\.2, 2\.10\.0, 2\.9\.0$"
    ):
        fetch_sdist("2.21", cache)

    assert not cache.exists()


def test_a_ref_is_no_version(index: Index, cache: Path) -> None:
    with pytest.raises(RefError, match="'main' is no version of transformer_engine_jax"):
        fetch_sdist("main", cache)


def test_two_ways_to_write_a_version_are_one_release(index: Index, cache: Path) -> None:
    index.publish_sdist("2.20.0")

    assert fetch_sdist("2.20.0", cache) == fetch_sdist("v2.20.0", cache)


def test_an_index_without_the_project_is_one_sentence(index: Index, cache: Path) -> None:
    with pytest.raises(RefError, match="the package index has no project transformer_engine_cu12"):
        fetch_core_wheel("2.20.2", 12, cache)


def test_a_file_whose_digest_differs_is_refused_and_not_kept(index: Index, cache: Path) -> None:
    index.publish_sdist("2.20.2", digest="0" * 64)

    with pytest.raises(InfrastructureError, match="arrived damaged"):
        fetch_sdist("2.20.2", cache)

    assert left_in(cache) == []


def test_a_file_without_a_digest_is_refused(index: Index, cache: Path) -> None:
    index.publish_sdist("2.20.2", digest="")

    with pytest.raises(InfrastructureError, match="has no digest"):
        fetch_sdist("2.20.2", cache)

    assert left_in(cache) == []


def test_an_archive_that_leads_outside_is_refused_and_not_kept(index: Index, cache: Path) -> None:
    index.publish(
        "transformer-engine-jax",
        "transformer_engine_jax-2.20.2.tar.gz",
        sdist({"top/csrc/a.h": b"", "top/../../../outside": b"x"}),
    )

    with pytest.raises(InfrastructureError, match="cannot be unpacked"):
        fetch_sdist("2.20.2", cache)

    assert left_in(cache.parent / "cache") == []
    assert not list(cache.parent.rglob("outside"))


def test_a_wheel_that_leads_outside_is_refused(index: Index, cache: Path) -> None:
    index.publish(
        "transformer-engine-cu13",
        f"transformer_engine_cu13-2.20.2-py3-none-{CORE}.whl",
        wheel({"../../outside": b"x"}),
    )

    with pytest.raises(InfrastructureError, match=r"'\.\./\.\./outside' leads outside of it"):
        fetch_core_wheel("2.20.2", 13, cache)

    assert left_in(cache) == []


def test_a_file_that_is_no_archive_is_one_sentence(index: Index, cache: Path) -> None:
    index.publish(
        "transformer-engine-jax", "transformer_engine_jax-2.20.2.tar.gz", b"<html>sorry</html>"
    )

    with pytest.raises(InfrastructureError, match=r"transformer_engine_jax-2\.20\.2\.tar\.gz"):
        fetch_sdist("2.20.2", cache)

    assert left_in(cache) == []


def test_an_index_that_does_not_answer_is_one_sentence(index: Index, cache: Path) -> None:
    index.stop()

    with pytest.raises(InfrastructureError, match="check the network and PIP_INDEX_URL"):
        fetch_sdist("2.20.2", cache)


def test_a_cache_that_cannot_be_written_is_one_sentence(index: Index, tmp_path: Path) -> None:
    index.publish_sdist("2.20.2")
    (tmp_path / "occupied").write_text("")

    with pytest.raises(InfrastructureError, match="cannot be kept in"):
        fetch_sdist("2.20.2", tmp_path / "occupied")


def test_fetching_at_once_gives_one_whole_release(index: Index, cache: Path) -> None:
    index.publish_sdist("2.20.2")
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch_sdist("2.20.2", cache)))
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert left_in(cache) == ["ffi.h"]


def test_released_versions_are_listed_newest_first(index: Index) -> None:
    for version in ("2.9.0", "2.20.2", "2.10.0"):
        index.publish_sdist(version)

    assert released_versions("transformer_engine_jax") == ["2.20.2", "2.10.0", "2.9.0"]
