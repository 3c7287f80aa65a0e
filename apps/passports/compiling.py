"""Compiles a passport version: canonical payload, Merkle root of its facts, and the receipt that binds both.

A pure function of its arguments, so compiling again gives the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from uuid import UUID, uuid5

from apps.passports import merkle
from apps.passports.base32 import to_base32
from apps.passports.canonical import Json, canonical, sha256
from apps.passports.facts import Fact, fields_of
from apps.passports.rules import Value, check_fields, check_types, evaluate, parse
from apps.passports.values import Name, Time

FORMAT, RECEIPT_FORMAT = "BPC-PASSPORT-1", "BPC-RECEIPT-1"
_NAMESPACE = UUID("5d1e2c1a-54a1-5f0e-9a53-0d2a7d1a6b10")


@dataclass(frozen=True, slots=True)
class Build:
    """What identifies a passport version within its tenant, and the payload of COMPILE_PASSPORT: its second run finds
    the row of the first."""

    passport_id: UUID
    snapshot_id: UUID
    rules_id: UUID
    build_id: Name
    issued_at: Time

    def version_id(self, tenant: UUID) -> UUID:
        """The same build gets the same ID, however often it is compiled."""
        return uuid5(_NAMESPACE, canonical([str(tenant), *self.as_json().values()]).decode())

    def as_json(self) -> dict[str, Json]:
        return {
            "passport_id": str(self.passport_id),
            "snapshot_id": str(self.snapshot_id),
            "rules_id": str(self.rules_id),
            "build_id": self.build_id,
            "issued_at": self.issued_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }


@dataclass(frozen=True, slots=True)
class Compiled:
    version_id: UUID
    payload: bytes
    payload_hash: bytes
    proof_root_hash: bytes
    receipt: bytes
    receipt_hash: bytes


def compile_version(tenant: UUID, build: Build, facts: Sequence[Fact], rules: str) -> Compiled:
    """`facts` are distinct and sorted. Raise an error of the rule language if they do not follow the rules."""
    package, fields = parse(rules), fields_of(facts)
    check_types(package)
    check_fields(package, fields)
    evaluated = evaluate(package, fields)
    payload: dict[str, Json] = {
        "format": FORMAT,
        **build.as_json(),
        "facts": [fact.as_json() for fact in facts],
        "values": {name: _as_json(value) for name, value in evaluated.values.items()},
        "checks": list(evaluated.checks),
    }
    version_id, content, root = build.version_id(tenant), canonical(payload), proof_root(payload)
    receipt = canonical(receipt_of(version_id, sha256(content), root))
    return Compiled(version_id, content, sha256(content), root, receipt, sha256(receipt))


def proof_root(payload: dict[str, Json]) -> bytes:
    """The root over the facts of a passport, in their order."""
    return merkle.root(leaves(payload))


def leaves(payload: dict[str, Json]) -> list[bytes]:
    facts = payload.get("facts")
    return [canonical(fact) for fact in facts] if isinstance(facts, list) else []


def receipt_of(version_id: UUID, payload_hash: bytes, proof_root_hash: bytes) -> dict[str, Json]:
    return {
        "format": RECEIPT_FORMAT,
        "passport_version_id": str(version_id),
        "payload_hash": to_base32(payload_hash),
        "proof_root_hash": to_base32(proof_root_hash),
    }


def _as_json(value: Value) -> Json:
    return float(value) if isinstance(value, Decimal) else value
