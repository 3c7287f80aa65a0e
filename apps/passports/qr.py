"""BPC-QR-1: the text of a passport's QR code, and the code as an image."""

import io
import re
from dataclasses import dataclass
from uuid import UUID

import segno

from apps.passports.base32 import from_base32, to_base32

_TEXT = re.compile(r"BPC1\|pv=(?P<pv>[^|]*)\|ph=(?P<ph>[^|]*)\|pr=(?P<pr>[^|]*)\|rh=(?P<rh>[^|]*)")
_PIXELS_PER_MODULE = 10
_HASH_BYTES = 32


class QrEncodeFailed(Exception):
    """The text does not fit into a QR code."""


@dataclass(frozen=True, slots=True)
class QrText:
    version_id: UUID
    payload_hash: bytes
    proof_root_hash: bytes
    receipt_hash: bytes

    def __str__(self) -> str:
        hashes = map(to_base32, (self.payload_hash, self.proof_root_hash, self.receipt_hash))
        return "BPC1|pv={}|ph={}|pr={}|rh={}".format(self.version_id, *hashes)

    @classmethod
    def parse(cls, text: str) -> "QrText":
        """Raise ValueError unless the text is exactly what `str` writes."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError("the text is not of the form BPC1|pv=…|ph=…|pr=…|rh=…")
        parsed = cls(UUID(found["pv"]), *(from_base32(found[name]) for name in ("ph", "pr", "rh")))
        if str(parsed) != text:
            raise ValueError("the UUID is not in its usual form")
        if any(len(each) != _HASH_BYTES for each in (parsed.payload_hash, parsed.proof_root_hash, parsed.receipt_hash)):
            raise ValueError("a hash is not of SHA-256")
        return parsed


def make_symbol(text: str) -> segno.QRCode:
    """Level M exactly: by default, segno would raise the level as far as the version allows."""
    try:
        return segno.make_qr(text, error="m", boost_error=False)
    except segno.DataOverflowError as error:
        raise QrEncodeFailed(f"{len(text)} characters do not fit into a QR code of level M") from error


def qr_png(text: str) -> bytes:
    """The code without a quiet zone."""
    png = io.BytesIO()
    make_symbol(text).save(png, kind="png", scale=_PIXELS_PER_MODULE, border=0)
    return png.getvalue()
