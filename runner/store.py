"""The artifact store: one archive for each build key, in a folder or behind any fsspec URL."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from runner.archive import unpack
from runner.errors import StoreError

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 20
_COMPRESSION_LEVEL = 6


def build_key(parts: Mapping[str, str]) -> str:
    """The content key of a build: a digest over everything that enters it, by name."""
    canonical = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """What makes an artifact exist: which archive it is, and what the build says of itself."""

    key: str
    archive: str
    digest: str
    size: int
    facts: Mapping[str, Any]


class Store:
    """Artifacts by key. An artifact exists once its manifest does, and that is written last.

    An archive's name holds its digest, so builders of one key on many hosts do not disturb each
    other: the manifest that is written last names a whole archive, whichever it is.
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise StoreError(f"store {self.url}: {error}") from error
        self._root = str(root).rstrip("/")

    def has(self, key: str) -> bool:
        """Whether there is an artifact of this key."""
        return self.manifest(key) is not None

    def manifest(self, key: str) -> Manifest | None:
        """What is known of an artifact; None where there is none, or its manifest is damaged."""
        path = self._manifest_path(key)
        with self._speaking(f"{key[:12]} cannot be looked up"):
            try:
                text = self._files.cat_file(path)
            except FileNotFoundError:
                return None
        try:
            stored = json.loads(text)
            return Manifest(
                key=key,
                archive=stored["archive"],
                digest=stored["digest"],
                size=stored["size"],
                facts=stored["facts"],
            )
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("store %s: manifest of %s is damaged (%r), it is built anew",
                         self.url, key[:12], error)  # fmt: skip
            return None

    def get(self, key: str, target: Path) -> Manifest | None:
        """Unpack an artifact into the new folder `target`; None where there is none.

        An archive that is not what its manifest says counts as absent, with a warning.
        """
        manifest = self.manifest(key)
        if manifest is None:
            return None
        with self._speaking(f"{key[:12]} cannot be read into {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{target.name}-", dir=target.parent
            ) as scratch:
                archive = Path(scratch) / "archive"
                damage = self._download(manifest, archive)
                if damage:
                    _LOG.warning("store %s: archive of %s is damaged (%s), it is built anew",
                                 self.url, key[:12], damage)  # fmt: skip
                    return None
                unpacked = Path(scratch) / "unpacked"
                unpack(archive, unpacked)
                _move_into_place(unpacked, target)
        return manifest

    def put(self, key: str, source: Path, facts: Mapping[str, Any]) -> Manifest:
        """Store the folder `source` under a key, with what the build says of itself."""
        with (
            self._speaking(f"{key[:12]} cannot be written"),
            tempfile.TemporaryDirectory(prefix="racewatch-store-") as scratch,
        ):
            packed = Path(scratch) / "archive"
            _pack(source, packed)
            digest = _digest(packed)
            name = f"{key}-{digest[:16]}.tar.gz"
            manifest = Manifest(key, name, digest, packed.stat().st_size, dict(facts))
            self._upload(packed.open("rb"), self._path("archives", name))
            try:
                self._write(_document(manifest), self._manifest_path(key))
            except BaseException:
                self._remove(self._path("archives", name))
                raise
        return manifest

    def put_log(self, key: str, text: str) -> str:
        """Keep a build's log, also one of a build that failed; the path to read it at."""
        path = self._path("logs", f"{key}.log")
        with self._speaking(f"log of {key[:12]} cannot be written"):
            self._write(text, path)
        return path

    def log(self, key: str) -> str | None:
        """A kept log, None where there is none."""
        with self._speaking(f"log of {key[:12]} cannot be read"):
            try:
                text: bytes = self._files.cat_file(self._path("logs", f"{key}.log"))
            except FileNotFoundError:
                return None
        return text.decode("utf-8", "replace")

    def _path(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    def _manifest_path(self, key: str) -> str:
        return self._path("manifests", f"{key}.json")

    def _download(self, manifest: Manifest, archive: Path) -> str:
        """Fetch an archive; what is wrong with it, empty when it is whole."""
        try:
            with (
                self._files.open(self._path("archives", manifest.archive), "rb") as stored,
                archive.open("wb") as local,
            ):
                shutil.copyfileobj(stored, local, _CHUNK)
        except FileNotFoundError:
            return "it is missing"
        digest = _digest(archive)
        return "" if digest == manifest.digest else f"its SHA-256 is {digest[:12]}"

    def _write(self, text: str, path: str) -> None:
        with tempfile.TemporaryFile() as stream:
            stream.write(text.encode())
            stream.seek(0)
            self._upload(stream, path)

    def _upload(self, stream: IO[bytes], path: str) -> None:
        """Write an object so that it is whole or not there.

        In a folder: under another name, then renamed. An object store publishes an object when its
        stream is closed well.
        """
        local = isinstance(self._files, LocalFileSystem)
        place = f"{path}.{uuid.uuid4().hex[:8]}.tmp" if local else path
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with stream, self._files.open(place, "wb") as stored:
                shutil.copyfileobj(stream, stored, _CHUNK)
            if local:
                os.replace(place, path)
        except BaseException:
            self._remove(place)
            raise

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.rm_file(path)

    @contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        """Turn what a file system may raise into one sentence."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"store {self.url}: {what}: {error.strerror or error}; free some space, correct "
                "its permissions, or choose another store (RACEWATCH_STORE)"
            ) from error
        except tarfile.TarError as error:
            raise StoreError(f"store {self.url}: {what}: {error}") from error


def _document(manifest: Manifest) -> str:
    fields = {name: value for name, value in vars(manifest).items() if name != "key"}
    return json.dumps(fields, indent=1, sort_keys=True)


def _move_into_place(unpacked: Path, target: Path) -> None:
    """A target that is there already was put there whole by another process."""
    try:
        os.replace(unpacked, target)
    except OSError:
        if not target.is_dir():
            raise


def _pack(source: Path, archive: Path) -> None:
    """A folder's files as a tar whose bytes depend on names, modes and contents alone."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, raw, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as opened,
    ):
        for path in sorted(source.rglob("*")):
            opened.add(path, path.relative_to(source).as_posix(), False, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
