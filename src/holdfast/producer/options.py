"""The keyword options of jobs and events."""

from datetime import datetime
from typing import TypedDict
from uuid import UUID

from holdfast.domain.duration import Duration


class EnqueueOptions(TypedDict, total=False):
    queue: str | None
    priority: int
    delay: Duration | None
    run_at: datetime | None
    tenant: str | None
    key: str | None
    if_exists: str
    window: Duration | None
    correlation_id: str | None
    attempts: int | None
    headers: dict[str, object] | None
    version: int | None
    id: UUID | None


class PublishOptions(TypedDict, total=False):
    tenant: str | None
    key: str | None
    correlation_id: str | None
    headers: dict[str, object] | None
    id: UUID | None
