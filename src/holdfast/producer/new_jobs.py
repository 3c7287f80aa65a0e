"""Builds jobs from the arguments of a producer."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import CURRENT_JOB, Handlers
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, IfExists, NewJob
from holdfast.domain.kinds import Kind, encode_payload, kind_name
from holdfast.domain.options import options_of
from holdfast.domain.versions import FIRST_VERSION, check_version
from holdfast.producer.arguments import encoded_headers


@options_of("a job")
def new_job(
    handlers: Handlers,
    kind: Kind[Any, Any] | str,
    payload: object = None,
    *,
    queue: str | None = None,
    priority: int = DEFAULT_PRIORITY,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    tenant: str | None = None,
    key: str | None = None,
    if_exists: str = IfExists.KEEP,
    window: Duration | None = None,
    correlation_id: str | None = None,
    attempts: int | None = None,
    headers: Mapping[str, object] | None = None,
    version: int | None = None,
    id: UUID | None = None,
) -> NewJob:
    """Build and check a job. Inside a handler it inherits the tenant and correlation ID of the running job."""
    if isinstance(kind, Kind) and version is not None:
        raise InvalidInput(f"version: set this in Kind({kind.name!r}, …), which workers use too")
    typed = kind if isinstance(kind, Kind) else handlers.kind_of(kind) if isinstance(kind, str) else None
    typed_version = FIRST_VERSION if typed is None else typed.version
    given_version = typed_version if version is None else check_version(version)
    parent = CURRENT_JOB.get()
    # Without names, because every enqueue gets here and they would take a tenth of the time.
    return NewJob(
        kind_name(kind),
        encode_payload(typed if given_version == typed_version else None, payload),
        uuid7() if id is None else id,
        queue if queue is not None else DEFAULT_QUEUE if typed is None else typed.queue,
        priority,
        None if delay is None else to_timedelta(delay, "delay"),
        run_at,
        tenant if tenant is not None else parent.tenant if parent else "",
        correlation_id if correlation_id not in (None, "") else parent.correlation_id if parent else "",
        attempts,
        key,
        IfExists.of(if_exists),
        None if window is None else to_timedelta(window, "window"),
        encoded_headers(headers, given_version),
        typed,
    )
