"""Reads the QR code in a photo."""

import io

import zxingcpp
from PIL import Image, UnidentifiedImageError

_MOST_PIXELS = 25_000_000
# Others have parsers that start programs (EPS) or fail in ways of their own.
_FORMATS = ("PNG", "JPEG", "WEBP")
_TOO_LARGE = f"the picture has more than {_MOST_PIXELS:,} pixels"


class Unreadable(Exception):
    """There is no QR code in the picture, or it is not a picture. The message is one line."""


def read_qr(picture: bytes) -> str:
    """Return the text of the only QR code in the picture."""
    try:
        with Image.open(io.BytesIO(picture), formats=_FORMATS) as image:
            # Before the pixels are decoded: a small file can hold a huge picture.
            if image.width * image.height > _MOST_PIXELS:
                raise Unreadable(_TOO_LARGE)
            pixels = image.convert("L")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Unreadable(_TOO_LARGE) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise Unreadable("the file is not a picture: send PNG, JPEG or WebP") from error
    found = zxingcpp.read_barcodes(pixels, formats=zxingcpp.BarcodeFormats(zxingcpp.BarcodeFormat.QRCode))
    if len(found) != 1:
        raise Unreadable("there is no QR code in the picture" if not found else "there is more than one QR code")
    return found[0].text
