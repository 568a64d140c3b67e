"""Compact numbers for a page: binary arrays as text, and a map of shades as an image."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Bytes of text for each byte of an array.
BASE64 = 4 / 3


def pack_integers(values: ArrayLike) -> dict[str, Any]:
    """Return numbers from 0 to 65535 as base64 of little-endian uint16.

    Raises:
        ValueError: If one is out of range.
    """
    array = np.asarray(values)
    if array.size and (array.min() < 0 or array.max() > 0xFFFF):
        raise ValueError(f"numbers from 0 to 65535 were expected, not {array.min()} to {array.max()}")
    return {"kind": "integer", "data": _text(array.astype("<u2"))}


def pack_floats(values: ArrayLike) -> dict[str, Any]:
    """Return numbers as base64 of little-endian float32 (seven digits); infinities become not-a-number."""
    return {"kind": "single", "data": _text(_finite(values).astype("<f4"))}


def pack_halves(values: ArrayLike) -> dict[str, Any]:
    """Return numbers as base64 of little-endian float16 (three digits), with the factor to multiply them by.

    The factor is a power of two. Division by it brings the largest magnitude to between 1/2 and 1, so that no number
    overflows; numbers below 6e-8 of the largest become 0. Infinities become not-a-number.
    """
    array = _finite(values)
    largest = float(np.nanmax(np.abs(array), initial=0.0))
    scale = 2.0 ** int(np.frexp(largest)[1]) if largest else 1.0
    return {"kind": "half", "scale": scale, "data": _text((array / scale).astype("<f2"))}


def unpack(packed: Mapping[str, Any]) -> NDArray[np.float64]:
    """Unpack numbers to a flat array, as the page's script does."""
    kind = {"integer": "<u2", "single": "<f4", "half": "<f2"}[packed["kind"]]
    return np.frombuffer(base64.b64decode(packed["data"]), kind).astype(np.float64) * packed.get("scale", 1)


def shades(values: ArrayLike) -> str:
    """Return values from 0 to 1, shape (height, width), as a data URL of a PNG whose opacity they are."""
    alpha = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64)), 0, 1)
    pixels = np.zeros((*alpha.shape, 2), dtype=np.uint8)
    pixels[..., 1] = np.round(alpha * 255)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    height, width = alpha.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0)  # 8 bits of grey and 8 of opacity
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def _text(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
