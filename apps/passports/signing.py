"""Signatures of receipt hashes: Ed25519, which is deterministic, so signing again gives the same bytes."""

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """`private` and `public` are the 32 bytes of RFC 8032."""

    id: str
    private: Ed25519PrivateKey

    @classmethod
    def from_bytes(cls, id: str, private: bytes) -> "SigningKey":
        return cls(id, Ed25519PrivateKey.from_private_bytes(private))

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    def sign(self, receipt_hash: bytes) -> bytes:
        return self.private.sign(receipt_hash)


def is_signed(receipt_hash: bytes, signature: bytes, public: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, receipt_hash)
    except (InvalidSignature, ValueError):
        return False
    return True
