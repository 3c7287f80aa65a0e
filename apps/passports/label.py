"""A label to print: the QR code 2 cm wide at 300 DPI, in its quiet zone, with readable text below it."""

import io
import math
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont

from apps.passports.qr import make_symbol

DPI = 300
SYMBOL_PIXELS = math.ceil(2 / 2.54 * DPI)
_QUIET_MODULES = 4
"""Without a quiet zone, no reader finds the code on a dark background."""
_TEXT_PIXELS, _LINE_PIXELS = 18, 24
_WHITE, _BLACK = 255, 0


def label_png(qr_text: str, *lines: str) -> bytes:
    """`lines` are printed below the code, and cut off where the label ends."""
    matrix = make_symbol(qr_text).matrix
    quiet = math.ceil(_QUIET_MODULES * SYMBOL_PIXELS / len(matrix))
    width = SYMBOL_PIXELS + 2 * quiet
    label = Image.new("L", (width, width + _LINE_PIXELS * len(lines) + (quiet if lines else 0)), _WHITE)
    label.paste(_symbol(matrix), (quiet, quiet))
    draw, font = ImageDraw.Draw(label), ImageFont.load_default(_TEXT_PIXELS)
    for number, line in enumerate(lines):
        draw.text((quiet, width + _LINE_PIXELS * number), line, fill=_BLACK, font=font)
    png = io.BytesIO()
    label.save(png, format="PNG", dpi=(DPI, DPI), optimize=True)
    return png.getvalue()


def _symbol(matrix: tuple[bytearray, ...]) -> Image.Image:
    """Each module covers whole pixels, four or five wide, so its edges stay sharp."""
    edges = [round(number * SYMBOL_PIXELS / len(matrix)) for number in range(len(matrix) + 1)]
    symbol = Image.new("L", (SYMBOL_PIXELS, SYMBOL_PIXELS), _WHITE)
    for (top, bottom), row in zip(pairwise(edges), matrix, strict=True):
        for (left, right), module in zip(pairwise(edges), row, strict=True):
            if module:
                symbol.paste(_BLACK, (left, top, right, bottom))
    return symbol
