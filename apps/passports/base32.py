"""Base32 without padding, as in QR codes: only characters that survive being typed."""

import base64
import binascii


def to_base32(content: bytes) -> str:
    return base64.b32encode(content).decode().rstrip("=")


def from_base32(text: str) -> bytes:
    """Raise ValueError unless the text is exactly what `to_base32` writes for some bytes."""
    try:
        content = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        content = b""
    if to_base32(content) != text:
        raise ValueError(f"{text[:60]!r} is not Base32 without padding")
    return content
