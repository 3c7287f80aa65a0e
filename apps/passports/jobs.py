"""Job kinds, payloads and priorities: what the API and the worker agree on. A job's tenant is `job.tenant`."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeVar
from uuid import UUID

from apps.passports.compiling import Build
from holdfast import Holdfast, Kind, NewJob

Payload = TypeVar("Payload")
State = TypeVar("State")

QUEUE = "passports"


class Priority(IntEnum):
    """The most urgent first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


@dataclass(frozen=True, slots=True)
class ParseFacts:
    document_version_id: UUID


@dataclass(frozen=True, slots=True)
class SignPassport:
    passport_version_id: UUID


@dataclass(frozen=True, slots=True)
class GenerateQr:
    passport_version_id: UUID


@dataclass(frozen=True, slots=True)
class DeliverWebhook:
    webhook_delivery_id: UUID


PARSE_FACTS = Kind("PARSE_FACTS", ParseFacts, queue=QUEUE)
COMPILE_PASSPORT = Kind("COMPILE_PASSPORT", Build, queue=QUEUE)
SIGN_PASSPORT = Kind("SIGN_PASSPORT", SignPassport, queue=QUEUE)
GENERATE_QR = Kind("GENERATE_QR", GenerateQr, queue=QUEUE)
DELIVER_WEBHOOK = Kind("DELIVER_WEBHOOK", DeliverWebhook, queue=QUEUE)

PRIORITIES = {
    PARSE_FACTS.name: Priority.NORMAL,
    COMPILE_PASSPORT.name: Priority.HIGH,
    SIGN_PASSPORT.name: Priority.HIGH,
    GENERATE_QR.name: Priority.NORMAL,
    DELIVER_WEBHOOK.name: Priority.LOW,
}
"""The priority of each kind, unless the producer gives another one."""


def new_job(
    app: Holdfast[State],
    kind: Kind[Payload],
    payload: Payload,
    *,
    tenant: UUID,
    key: str,
    correlation_id: str | None = None,
    priority: int | None = None,
    if_exists: Literal["keep", "keep_live"] = "keep",
) -> NewJob[Any]:
    """A job of the tenant, with the priority of its kind unless another one is given."""
    return app.job(
        kind, payload, tenant=str(tenant), key=key, if_exists=if_exists, correlation_id=correlation_id or "",
        priority=PRIORITIES[kind.name] if priority is None else Priority(priority),
    )  # fmt: skip
