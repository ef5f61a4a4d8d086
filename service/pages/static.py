"""Style sheet, scripts and pictures, named by their content: browsers keep them for good."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Response

import dashboards
from service.api.errors import missing

router = APIRouter(include_in_schema=False)
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml; charset=utf-8",
}
_FOR_GOOD = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file that pages load. digest: of its content."""

    content: bytes
    digest: str
    media_type: str


def _read() -> Mapping[str, Asset]:
    found = {}
    for file in (resources.files(dashboards) / "static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[file.name] = Asset(content, digest, media_type)
    return found


ASSETS = _read()


def address(name: str) -> str:
    """Where a file is served; another content has another address."""
    return f"/static/{ASSETS[name].digest}/{name}"


@router.get("/static/{digest}/{name}")
def asset(digest: str, name: str) -> Response:
    """One file. A page of another version asks by another digest and gets what there is."""
    found = ASSETS.get(name)
    if found is None:
        raise missing("file", name)
    kept = _FOR_GOOD if digest == found.digest else "no-cache"
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": kept})
