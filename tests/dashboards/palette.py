"""PNG with a palette: a picture of a page in a third of the bytes that a browser makes of it.

The browser counts the colours and gives each pixel the nearest of the most frequent ones, which is
quick there; here they are written as a PNG. Source: https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

_QUANTIZE = """
async png => {
  const fetched = await fetch("data:image/png;base64," + png);
  const picture = await createImageBitmap(await fetched.blob());
  const {width, height} = picture;
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const parts = pixel => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  // The most frequent colours, but none that is nearly another: 255 shades of one grey help nobody.
  const palette = [];
  const far = (one, other) => Math.hypot(...one.map((part, n) => part - other[n]));
  for (const apart of [12, 0]) {
    for (const [pixel] of [...counts].sort((one, other) => other[1] - one[1])) {
      if (palette.length === 256) break;
      const colour = parts(pixel);
      if (palette.every(other => far(colour, other) > apart)) palette.push(colour);
    }
  }
  const nearest = new Map();
  for (const pixel of counts.keys()) {
    const colour = parts(pixel);
    let best = 0;
    for (let n = 1; n < palette.length; n++) {
      if (far(colour, palette[n]) < far(colour, palette[best])) best = n;
    }
    nearest.set(pixel, best);
  }
  const indices = Uint8Array.from(pixels, pixel => nearest.get(pixel));
  let text = "";
  for (let at = 0; at < indices.length; at += 32768) {
    text += String.fromCharCode(...indices.subarray(at, at + 32768));
  }
  return {width, height, palette: palette.flat(), indices: btoa(text)};
}
"""


def smaller(blank: Page, png: bytes) -> bytes:
    """The same picture with at most 256 colours. blank: any page whose policy lets data in."""
    found: dict[str, Any] = blank.evaluate(_QUANTIZE, base64.b64encode(png).decode())
    width, height = found["width"], found["height"]
    indices = base64.b64decode(found["indices"])
    # Each line without a filter, which suits a palette.
    lines = b"".join(b"\0" + indices[y * width : (y + 1) * width] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", header),
        (b"PLTE", bytes(found["palette"])),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
