"""Images of rows: found, and decoded within limits."""

import io
import struct
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

from trainer_core.data.messages import kind
from trainer_core.data.rows import BadRow, Place

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ELSEWHERE = ("http://", "https://", "data:", "s3://", "file:")
# Pillow's decoders raise any of these for broken files.
_BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    struct.error,
    zlib.error,
)


def found_image(given: Any, column: str, place: Place) -> tuple[bytes, str]:
    """The bytes of an image and what people call it; raises BadRow.

    Rows give bytes, an object with `bytes` or `path` (as `datasets` writes images), or the path
    of a file beside them.
    """
    if isinstance(given, Mapping):
        given = given.get("bytes") or given.get("path")
    if isinstance(given, bytes | bytearray):
        return bytes(given), f"`{column}`"
    if not isinstance(given, str) or not given:
        shown = "empty" if given == "" else kind(given)
        raise BadRow(f"`{column}` is {shown}: it must be an image, or the path of one")
    if given.startswith(_ELSEWHERE):
        raise BadRow(
            f"`{column}` is '{given[:80]}', an address, which is not fetched: put the images into "
            "a folder or a zip archive beside the rows, and name their paths"
        )
    if place.beside is None:
        raise BadRow(
            f"`{column}` is the path '{given[:80]}', but nothing stands beside the rows of this "
            "source: give the folder with rows and images, or pack both into a zip archive"
        )
    return place.beside.read(given, column), f"'{given[:200]}'"


def decoded(data: bytes, name: str) -> Any:
    """The first picture of an image file as RGB, upright; raises BadRow that names it.

    An image with very many pixels, as are made to fill a memory, is refused.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415 - the service reads rows without it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                return ImageOps.exif_transpose(image).convert("RGB")
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise BadRow(
                f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels, which is not read: make "
                "it smaller"
            ) from error
        except _BROKEN as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            reason = reason if "BytesIO" not in reason else f"none of {', '.join(_FORMATS)}"
            raise BadRow(f"{name} is no image that can be read ({reason})") from error
