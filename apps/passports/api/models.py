"""The bodies of requests and responses. A passport's hashes are in Base32, as in its QR code; all others are in hex."""

import json
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from apps.passports.audit import ANNOUNCED
from apps.passports.base32 import to_base32
from apps.passports.jobs_view import STATUSES, LastError
from apps.passports.values import Name, Time, printable

Item = TypeVar("Item")


def _storable(text: str) -> str:
    printable(text.replace("\n", "").replace("\r", "").replace("\t", ""))
    return text


Source = Annotated[str, StringConstraints(min_length=1, max_length=100_000), AfterValidator(_storable)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2_000), AfterValidator(printable)]
Priority = Annotated[int, Field(strict=True, ge=0, le=3)]
EventType = Literal[
    "DOCUMENT_UPLOADED", "FACTS_PARSED", "SNAPSHOT_SEALED", "RULES_PUBLISHED", "PASSPORT_COMPILED", "PASSPORT_SIGNED",
    "QR_GENERATED",
]  # fmt: skip
JobStatus = Literal["QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "DEAD_LETTER", "CANCELED"]
DeliveryStatus = Literal["PENDING", "DELIVERED", "FAILED"]
Hex = Annotated[str, BeforeValidator(lambda value: value.hex() if isinstance(value, bytes) else value)]
Base32 = Annotated[str, BeforeValidator(lambda value: to_base32(value) if isinstance(value, bytes) else value)]
Json = Annotated[Any, BeforeValidator(lambda value: json.loads(value) if isinstance(value, str | bytes) else value)]
Text = Annotated[
    str, BeforeValidator(lambda value: value.decode(errors="replace") if isinstance(value, bytes) else value)
]

assert frozenset(EventType.__args__) == ANNOUNCED  # type: ignore[attr-defined] # noqa: S101
assert set(JobStatus.__args__) == set(STATUSES.values())  # type: ignore[attr-defined] # noqa: S101


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class Page(Body, Generic[Item]):
    items: list[Item]
    next: UUID | int | None = Field(None, description="Ask for the next page with `after` set to this.")


class Problem(Body):
    """Every unsuccessful response."""

    type: str = "about:blank"
    title: str
    status: int
    code: str = Field(description="For programs.")
    detail: str = Field(description="One line for people.")


class Named(Body):
    name: Name


class Document(Body):
    document_id: UUID
    name: str
    created_at: datetime


class DocumentVersion(Body):
    document_version_id: UUID
    document_id: UUID
    version: int
    media_type: str
    content_hash: Hex
    status: Literal["UPLOADED", "PARSED", "FAILED"]
    created_at: datetime
    job_id: UUID | None = Field(None, description="The job that parses it, until it is parsed.")
    last_error: LastError | None = Field(None, description="Why its last attempt did not succeed.")


class Fact(Body):
    fact_id: UUID
    fact_type: str
    fact_key: str
    schema_version: int
    payload: Json
    payload_hash: Hex


class SnapshotSummary(Body):
    snapshot_id: UUID
    status: Literal["OPEN", "SEALED"]
    created_at: datetime
    sealed_at: datetime | None


class Snapshot(SnapshotSummary):
    document_version_ids: list[UUID]


class SnapshotDocuments(Body):
    document_version_ids: Annotated[list[UUID], Field(min_length=1, max_length=100)]


class Sealing(Body):
    """What identifies the passport version to compile."""

    passport_id: UUID
    rules_id: UUID
    build_id: Name
    issued_at: Time
    priority: Priority | None = None


class Compiling(Sealing):
    snapshot_id: UUID


class EnqueuedVersion(Body):
    passport_version_id: UUID
    job_id: UUID


class NewRules(Body):
    name: Name
    source: Source


class ChangedRules(Body):
    source: Source


class RulesSummary(Body):
    rules_id: UUID
    name: str
    status: Literal["DRAFT", "PUBLISHED"]
    created_at: datetime
    published_at: datetime | None


class Rules(RulesSummary):
    source: str


class Passport(Body):
    passport_id: UUID
    name: str
    created_at: datetime


class PassportVersionSummary(Body):
    passport_version_id: UUID
    passport_id: UUID
    snapshot_id: UUID
    rules_id: UUID
    build_id: str
    issued_at: datetime
    status: Literal["COMPILED", "SIGNED", "LABELED"]
    key_id: str | None
    created_at: datetime


class Proof(Body):
    """The Merkle tree of RFC 6962 over the canonical facts, in their order."""

    root_hash: Base32
    leaf_hashes: list[Base32]


class PassportVersion(PassportVersionSummary):
    payload: Json
    payload_hash: Base32
    proof: Proof
    receipt: Json
    receipt_hash: Base32
    signature: Base32 | None
    qr_payload: str | None


class EnqueuedJob(Body):
    job_id: UUID


class NewEndpoint(Body):
    url: Url
    event_types: Annotated[list[EventType], Field(max_length=20)] = []


class Endpoint(Body):
    webhook_endpoint_id: UUID
    url: str
    event_types: list[str]
    is_rotating: bool
    created_at: datetime
    disabled_at: datetime | None


class AddedEndpoint(Endpoint):
    secret: str = Field(description="Shown only now.")


class NextSecret(Body):
    secret: str = Field(description="Shown only now. Signs X-BPC-Signature-Next until the rotation is finished.")


class DeliverySummary(Body):
    webhook_delivery_id: UUID
    webhook_endpoint_id: UUID
    event_id: UUID
    status: DeliveryStatus
    http_status: int | None
    delivered_at: datetime | None
    error_message: str | None
    created_at: datetime


class Delivery(DeliverySummary):
    response_headers: Json | None
    response_body: Text | None


class AuditEvent(Body):
    number: int
    event_id: UUID
    event_type: str
    aggregate_type: str
    aggregate_id: UUID
    occurred_at: datetime
    payload: Json


class Healthy(Body):
    status: Literal["ok"] = "ok"
