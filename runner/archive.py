"""Unpacks a tar archive of which nothing is known."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

_CHUNK = 1 << 20


def unpack(archive: Path, target: Path) -> None:
    """Unpack files, folders and links that stay inside, into the new folder `target`.

    Raises tarfile.TarError for anything else: who wrote the archive may not be trusted. Not by
    tarfile's own filter, which early releases of Python 3.11 lack and which links could get around
    until 3.13.4 (CVE-2025-4517): here nothing is written once a link is.
    """
    target.mkdir()
    links: list[tarfile.TarInfo] = []
    with tarfile.open(archive) as opened:
        for entry in opened:
            if entry.name.startswith("/") or ".." in entry.name.split("/"):
                raise tarfile.TarError(f"its entry {entry.name!r} would lie outside of it")
            place = target / entry.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.isdir():
                place.mkdir(exist_ok=True)
            elif entry.issym():
                links.append(entry)
            elif entry.isreg():
                stored = opened.extractfile(entry)
                assert stored is not None
                with stored, place.open("xb") as file:
                    shutil.copyfileobj(stored, file, _CHUNK)
                place.chmod(0o755 if entry.mode & 0o100 else 0o644)
            else:
                raise tarfile.TarError(f"its entry {entry.name!r} is no file, folder or link")
    for entry in links:
        (target / entry.name).symlink_to(entry.linkname)
    for entry in links:
        if not Path(os.path.realpath(target / entry.name)).is_relative_to(target.resolve()):
            raise tarfile.TarError(f"its link {entry.name!r} leads outside of it")
