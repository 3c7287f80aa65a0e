"""The QR code and the label, read back by zxing-cpp and by zbar where it is installed."""

import io
from uuid import UUID

import pytest
import segno
from PIL import Image, ImageFilter

from apps.passports.label import DPI, SYMBOL_PIXELS, label_png
from apps.passports.qr import QrEncodeFailed, QrText, make_symbol, qr_png
from apps.passports.reading import Unreadable, read_qr

VERSION = UUID("550e8400-e29b-41d4-a716-446655440000")
TEXT = str(QrText(VERSION, bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))))
MODULES, QUIET = 57, 17


def read_by_zbar(picture: Image.Image) -> list[str]:
    pyzbar = pytest.importorskip("pyzbar.pyzbar", reason="needs the library zbar", exc_type=ImportError)
    return [each.data.decode() for each in pyzbar.decode(picture, symbols=[pyzbar.ZBarSymbol.QRCODE])]


def read_by_zxing(picture: Image.Image) -> list[str]:
    png = io.BytesIO()
    picture.save(png, "PNG")
    return [read_qr(png.getvalue())]


READERS = pytest.mark.parametrize("read", [read_by_zbar, read_by_zxing])


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("L")


def on_a_page(label: Image.Image, color: int) -> Image.Image:
    page = Image.new("L", (label.width + 200, label.height + 200), color)
    page.paste(label, (100, 100))
    return page


def test_the_text_has_the_form_of_bpc_qr_1() -> None:
    hashes = [
        "AAAQEAYEAUDAOCAJBIFQYDIOB4IBCEQTCQKRMFYYDENBWHA5DYPQ",
        "EAQSEIZEEUTCOKBJFIVSYLJOF4YDCMRTGQ2TMNZYHE5DWPB5HY7Q",
        "IBAUEQ2EIVDEOSCJJJFUYTKOJ5IFCUSTKRKVMV2YLFNFWXC5LZPQ",
    ]
    assert "BPC1|pv=550e8400-e29b-41d4-a716-446655440000|ph={}|pr={}|rh={}".format(*hashes) == TEXT
    assert len(TEXT) == 212
    assert QrText.parse(TEXT) == QrText(VERSION, bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://example.com",
        TEXT.replace("BPC1", "BPC2"),
        TEXT.replace("550e8400", "550E8400"),
        TEXT.replace("550e8400-e29b-41d4-a716-446655440000", "550e8400"),
        TEXT + "|",
        TEXT[:-1] + "R",
        TEXT.replace("|pr=", "|pr=A"),
    ],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        QrText.parse(text)


def test_the_code_is_version_10_of_level_m_without_an_upgrade() -> None:
    symbol = make_symbol(TEXT)
    assert (symbol.version, symbol.error, len(symbol.matrix), symbol.is_micro) == (10, "M", MODULES, False)
    # A short text would be upgraded, or become a micro QR code, by default.
    short = make_symbol("BPC1")
    assert (short.version, short.error, short.is_micro) == (1, "M", False)
    assert segno.make("BPC1").is_micro


def test_the_image_has_ten_pixels_per_module_and_no_border() -> None:
    image = opened(qr_png(TEXT))
    assert image.size == (MODULES * 10, MODULES * 10)
    # The finder pattern begins in the corner: seven dark modules, then a light one.
    assert [image.getpixel((x, 0)) for x in (0, 69, 70)] == [0, 0, 255]
    assert qr_png(TEXT) == qr_png(TEXT)


def test_a_text_that_does_not_fit_is_refused() -> None:
    make_symbol("x" * 2331)
    with pytest.raises(QrEncodeFailed, match="2332 characters do not fit"):
        qr_png("x" * 2332)


def test_the_label_is_two_centimeters_wide_in_a_quiet_zone_of_four_modules() -> None:
    with Image.open(io.BytesIO(label_png(TEXT))) as label:
        assert [round(dots) for dots in label.info["dpi"]] == [DPI, DPI]
        assert 2 <= SYMBOL_PIXELS / DPI * 2.54 < 2.01
        assert label.size == (SYMBOL_PIXELS + 2 * QUIET, SYMBOL_PIXELS + 2 * QUIET)
        assert QUIET >= 4 * SYMBOL_PIXELS / MODULES
        pixels = label.convert("L")
        dark = pixels.point(lambda value: 255 - value).getbbox()
        assert dark == (QUIET, QUIET, QUIET + SYMBOL_PIXELS, QUIET + SYMBOL_PIXELS)


@READERS
@pytest.mark.parametrize("color", [255, 0], ids=["white", "black"])
@pytest.mark.parametrize("angle", [0, 90, 180, 7])
@pytest.mark.parametrize("blur", [0, 1])
def test_a_reader_decodes_the_label(read, color: int, angle: int, blur: int) -> None:  # type: ignore[no-untyped-def]
    page = on_a_page(opened(label_png(TEXT, "550e8400-e29b-", "2026-11-20")), color)
    turned = page.rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor=color)
    assert read(turned.filter(ImageFilter.GaussianBlur(blur))) == [TEXT]


def saved(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("P", (8, 8)).save(file, kind)
    return file.getvalue()


# Pillow would start Ghostscript for the first one, and raises other errors than its own for some.
OTHER_KINDS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n",
    b"%PDF-1.7",
    b"BLP2" + bytes(200),
    b"\x00\x00\x00\x1cftypavif" + bytes(200),
    saved("GIF"),
    saved("BMP"),
)


@pytest.mark.parametrize(
    ("picture", "message"),
    [(content, "the file is not a picture: send PNG, JPEG or WebP") for content in (b"", *OTHER_KINDS)],
)
def test_a_file_of_another_kind_is_refused(picture: bytes, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        read_qr(picture)


def test_a_picture_must_show_one_code() -> None:
    label = opened(label_png(TEXT))
    two = Image.new("L", (label.width * 2, label.height), 255)
    two.paste(label, (0, 0))
    two.paste(opened(label_png(TEXT.replace("550e", "660e"))), (label.width, 0))
    with pytest.raises(Unreadable, match="more than one QR code"):
        read_by_zxing(two)
    with pytest.raises(Unreadable, match="no QR code"):
        read_by_zxing(Image.new("L", (300, 300), 255))


def test_a_huge_picture_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(Unreadable, match=r"more than 25,000,000 pixels|not a picture"):
        read_by_zxing(Image.new("1", (10_000, 6_000)))
