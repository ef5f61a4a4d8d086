"""Writes a picture of each page, of the tests' showcase: `make screenshots`.

python -m tests.dashboards.screenshots docs/screenshots
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from service import schema
from service.database import Database
from service.postgres import EmbeddedPostgres
from tests.dashboards.conftest import browser
from tests.dashboards.palette import smaller
from tests.service.pages.served import served
from tests.service.reading import bisected, showcase
from tests.service.reading.showcase import Showcase

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDE, PHONE = {"width": 1200, "height": 720}, {"width": 390, "height": 844}
TALL = {"width": 1200, "height": 1120}
PLAIN = ("--disable-lcd-text",)
"""Letters with no coloured edges: pictures are half the size."""
_QUICK = {"fsync": "off"}


@dataclass(frozen=True)
class Picture:
    """A page to take a picture of. hover: what the pointer is on. tall: in a higher window."""

    path: str
    scheme: str = "light"
    phone: bool = False
    hover: str = ""
    tall: bool = False


def pictures(made: Showcase) -> Mapping[str, Picture]:
    """Of everything but bisections."""
    stock = made.cells["stock, background"]
    held = made.cells["softmax ffi13, background, hold 20 ms"]
    before, race = made.shas["before"], made.shas["race"]
    variants = f"/compare?subject=te&a={race}&b={race}&base=stock&head=owned-stream"
    signature = "/signature?subject=te&queue=sm90&outcome=crash&signature=SIGSEGV+in+cuEventRecord"
    return {
        "grid": Picture("/?subject=te", hover="#c4 td:nth-of-type(1) a", tall=True),
        "grid-filtered": Picture("/?subject=te&outcome=failed&text=jax", "dark"),
        "grid-phone": Picture("/?subject=te", phone=True),
        "grid-emulated": Picture("/?subject=demo"),
        "trend": Picture(f"/trend?subject=te&cell={stock}"),
        "trend-swallow": Picture(f"/trend?subject=te&cell={held}&rate=swallow", "dark"),
        "run": Picture(f"/runs/{made.runs['race']}"),
        "run-phone": Picture(f"/runs/{made.runs['race']}", "dark", phone=True),
        "run-under-way": Picture(f"/runs/{made.runs['running']}", "dark"),
        "trial": Picture(f"/trials/{made.failed_trial}"),
        "trial-swallow": Picture(f"/trials/{made.swallowing_pass}#swallow", "dark"),
        "measurement": Picture(f"/measurements/{made.measurement}"),
        "commit": Picture(f"/commits/te/{race}", "dark"),
        "compare": Picture(f"/compare?subject=te&a={before}&b={race}"),
        "compare-variants": Picture(variants, "dark"),
        "signatures": Picture("/signatures"),
        "signature": Picture(signature),
        "order": Picture(f"/order/{made.commits['head']}/{stock}?queue=sm90"),
        "runs": Picture("/runs"),
        "pulls": Picture("/pulls"),
        "workers": Picture("/workers", "dark"),
        "build": Picture(f"/builds/{made.failed_build}/log"),
    }


def main() -> None:
    """Make the showcase, serve it, and take the pictures."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    with browser(_needed, *PLAIN) as chromium, _databases() as (one, other):
        made = showcase.make(one)
        take(chromium, one, pictures(made), folder)
        found = bisected.make(other).ids["found"]
        bisections = {
            "bisection": Picture(f"/bisections/{found}", tall=True),
            "bisections": Picture("/bisections", "dark"),
        }
        take(chromium, other, bisections, folder)
    for file in sorted(folder.glob("*.png")):
        print(f"{file.stat().st_size / 1000:6.0f} kB  {file}")


def _needed(found: object, what: str) -> None:
    if not found:
        sys.exit(f"screenshots: no {what} here: install it first")


@contextmanager
def _databases() -> Iterator[tuple[Database, Database]]:
    """Two on a server of their own."""
    with tempfile.TemporaryDirectory(prefix="racewatch-screenshots-") as scratch:
        home = Path(scratch)
        home.chmod(0o755)
        with (
            EmbeddedPostgres(home / "one", _QUICK) as first,
            EmbeddedPostgres(home / "other", _QUICK) as second,
        ):
            schema.upgrade(first.url)
            schema.upgrade(second.url)
            one, other = Database(first.url), Database(second.url)
            yield one, other
            one.close()
            other.close()


def take(
    chromium: Browser, database: Database, wanted: Mapping[str, Picture], folder: Path
) -> None:
    """The pictures of a database's pages."""
    with tempfile.TemporaryDirectory() as home, served(database, Path(home)) as site:
        for name, picture in wanted.items():
            context = chromium.new_context(
                viewport=PHONE if picture.phone else TALL if picture.tall else WIDE,  # type: ignore[arg-type]
                color_scheme="dark" if picture.scheme == "dark" else "light",
            )
            page = context.new_page()
            page.goto(site.address + picture.path)
            if page.locator("[data-live]").count():
                page.locator("#live.on").wait_for()
            if picture.hover:
                page.locator(picture.hover).hover()
                page.locator(".card:popover-open").wait_for()
            picture_of = page.screenshot()
            page.goto("about:blank")
            (folder / f"{name}.png").write_bytes(smaller(page, picture_of))
            context.close()


if __name__ == "__main__":
    main()
