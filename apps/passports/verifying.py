"""Checks a passport against its QR code: hashes, signature and proof. Pure functions, without a database.

A passport file is canonical JSON, so every byte of it counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from apps.passports.base32 import from_base32, to_base32
from apps.passports.canonical import Json, canonical, read_json, sha256
from apps.passports.compiling import FORMAT, proof_root, receipt_of
from apps.passports.qr import QrText
from apps.passports.signing import is_signed
from holdfast.webhooks import InvalidSignature, Secrets, verify

PREFIX = "X-BPC"
_FIELDS = frozenset({"passport_version_id", "payload", "signature", "key_id"})
_ACCEPTED = "The passport is genuine and belongs to this QR code."


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. `check` is file, qr, payload, proof, receipt or signature."""

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class PassportFile:
    version_id: UUID
    payload: dict[str, Json]
    signature: bytes
    key_id: str

    def as_bytes(self) -> bytes:
        return file_bytes(self.version_id, canonical(self.payload), self.signature, self.key_id)

    @classmethod
    def parse(cls, content: bytes) -> "PassportFile":
        """Raise ValueError, in one line, unless the file is exactly as `as_bytes` writes it."""
        try:
            value = read_json(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("the file is not JSON") from error
        if not isinstance(value, dict) or value.keys() != _FIELDS:
            raise ValueError("the file is not a passport")
        version_id, payload, signature, key_id = (
            value["passport_version_id"],
            value["payload"],
            value["signature"],
            value["key_id"],
        )
        if not (
            isinstance(version_id, str)
            and isinstance(payload, dict)
            and isinstance(signature, str)
            and isinstance(key_id, str)
            and payload.get("format") == FORMAT
        ):
            raise ValueError("the file is not a passport")
        try:
            parsed = cls(UUID(version_id), payload, from_base32(signature), key_id)
        except ValueError as error:
            raise ValueError("the file is not a passport") from error
        if parsed.as_bytes() != content:
            raise ValueError("the file was changed: it is not in canonical form")
        return parsed


def file_bytes(version_id: UUID, payload: bytes, signature: bytes, key_id: str) -> bytes:
    """Canonical JSON around a payload that is canonical already."""
    before = canonical({"key_id": key_id, "passport_version_id": str(version_id)})
    after = canonical({"signature": to_base32(signature)})
    return before[:-1] + b',"payload":' + payload + b"," + after[1:]


def verify_passport(content: bytes, qr_text: str, trusted: Mapping[str, bytes]) -> list[Finding]:
    """Return everything that is wrong; an empty list means that the passport is genuine and belongs to the code.

    `trusted` has the public key of each key ID.
    """
    try:
        passport = PassportFile.parse(content)
    except ValueError as error:
        return [Finding("file", str(error))]
    try:
        code = QrText.parse(qr_text)
    except ValueError as error:
        return [Finding("qr", f"the QR code is not that of a passport: {error}")]
    payload_hash, root = sha256(canonical(passport.payload)), proof_root(passport.payload)
    receipt_hash = sha256(canonical(receipt_of(passport.version_id, payload_hash, root)))
    found = [
        finding
        for is_wrong, finding in (
            (code.version_id != passport.version_id, Finding("qr", "the QR code is that of another passport")),
            (code.payload_hash != payload_hash, Finding("payload", "the payload is not the one in the QR code")),
            (code.proof_root_hash != root, Finding("proof", "the facts are not those in the QR code")),
            (code.receipt_hash != receipt_hash, Finding("receipt", "the receipt is not the one in the QR code")),
        )
        if is_wrong
    ]
    return [*found, *_signature_findings(passport, receipt_hash, trusted)]


def _signature_findings(passport: PassportFile, receipt_hash: bytes, trusted: Mapping[str, bytes]) -> Sequence[Finding]:
    public = trusted.get(passport.key_id)
    if public is None:
        return [Finding("signature", f"the key {passport.key_id[:64]!r} is not trusted: BPC_TRUSTED_KEYS lacks it")]
    if not is_signed(receipt_hash, passport.signature, public):
        return [Finding("signature", f"the signature is not that of the key {passport.key_id}")]
    return []


def verdict(findings: Sequence[Finding]) -> str:
    """One line: that all is well, or the first thing that is wrong."""
    if not findings:
        return _ACCEPTED
    first = findings[0].message
    more = f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"{first[0].upper()}{first[1:]}{more}."


def verify_webhook(body: bytes, headers: Mapping[str, str], secret: str) -> list[Finding]:
    """Check the signature of a received webhook, also during a rotation."""
    try:
        verify(body, headers, Secrets(secret), prefix=PREFIX)
    except InvalidSignature as error:
        return [Finding("signature", str(error))]
    return []
