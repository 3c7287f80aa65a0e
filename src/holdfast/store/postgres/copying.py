"""Enqueues many jobs without keys by COPY: the server writes whole pages of rows while the next ones are packed.

enqueuing.py uses it, and has statements that write the same rows for a few jobs and on a caller's connection.
"""

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import NewJob
from holdfast.domain.limits import RING_AHEAD
from holdfast.store.postgres import driver
from holdfast.store.postgres.driver import copy_refusals, read_committed, while_connected
from holdfast.store.postgres.sql_files import statement

if TYPE_CHECKING:
    import asyncpg

# The columns that the jobs of a call usually share come first, so they are packed once.
_JOB = (
    "created_at",
    "queue",
    "kind",
    "tenant",
    "priority",
    "max_attempts",
    "id",
    "correlation_id",
    "headers",
    "payload",
)
_READY = ("queue", "kind", "priority", "run_at", "id")

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SOON = RING_AHEAD // _MICROSECOND
# The server writes a part of this size while the next one is packed.
_PART_BYTES = 64 * 1024
# The number of row prefixes to keep. If each job had a different tenant or time, there would be as many as jobs.
_KEPT_BEGINNINGS = 1000

_BEGIN = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END = struct.pack("!h", -1)
_NULL = struct.pack("!i", -1)
_UUID = struct.pack("!i", 16)
_size = struct.Struct("!i").pack
_short = struct.Struct("!ih").pack
_long = struct.Struct("!iq").pack


async def copy_jobs(connection: "asyncpg.Connection[asyncpg.Record]", schema: str, jobs: Sequence[NewJob]) -> None:
    """Write both rows of each job in one transaction, the same rows as sql/enqueue_many.sql."""
    # Read committed, so the ring sees processes that went to sleep while the rows were written.
    async with while_connected(connection), read_committed(connection):
        packing = Packing(jobs, await connection.fetchval(statement("enqueue_moment", schema)))
        for table, columns, rows in (
            ("job", _JOB, packing.job_rows()),
            ("ready", _READY, packing.ready_rows()),
        ):
            with copy_refusals():
                await connection.copy_to_table(
                    table,
                    source=_parts(rows),
                    columns=columns,
                    schema_name=schema,
                    format="binary",
                    # The driver's own limit must not fire first: while a COPY waits, it raises AttributeError.
                    timeout=2 * driver.COMMAND_SECONDS,
                )
        await connection.fetch(statement("ring", schema, 1), list(packing.queues))
        reach("copy.before_commit")


class Packing:
    """Jobs as rows in PostgreSQL's binary format. `moment` is the store's clock, in microseconds since 2000."""

    def __init__(self, jobs: Sequence[NewJob], moment: int) -> None:
        self._jobs = jobs
        self._moment = moment
        self.queues: set[str] = set()
        """Queues with a job that is due soon. Complete once all rows of `ready` are packed."""

    def job_rows(self) -> Iterator[bytes]:
        begins: dict[tuple[object, ...], bytes] = {}
        for job in self._jobs:
            common = (job.queue, job.kind, job.tenant, job.priority, job.max_attempts)
            begin = begins.get(common)
            if begin is None:
                begin = self._job_begin(job)
                _keep(begins, common, begin)
            correlation_id, payload = job.correlation_id.encode(), job.payload.encode()
            headers = _NULL if job.headers is None else _text(job.headers)
            yield b"".join(
                (begin, job.id.bytes, _size(len(correlation_id)), correlation_id, headers, _size(len(payload)), payload)
            )

    def ready_rows(self) -> Iterator[bytes]:
        begins: dict[tuple[object, ...], bytes] = {}
        for job in self._jobs:
            common = (job.queue, job.kind, job.priority, job.delay, job.run_at)
            begin = begins.get(common)
            if begin is None:
                begin = self._ready_begin(job)
                _keep(begins, common, begin)
            yield begin + job.id.bytes

    def _job_begin(self, job: NewJob) -> bytes:
        columns = (
            _long(8, self._moment),
            _text(job.queue),
            _text(job.kind),
            _text(job.tenant),
            _short(2, job.priority),
            _NULL if job.max_attempts is None else _short(2, job.max_attempts),
        )
        return b"".join((_count(_JOB), *columns, _UUID))

    def _ready_begin(self, job: NewJob) -> bytes:
        run_at = self._run_at(job)
        if run_at <= self._moment + _SOON:
            self.queues.add(job.queue)
        columns = (_text(job.queue), _text(job.kind), _short(2, job.priority), _long(8, run_at))
        return b"".join((_count(_READY), *columns, _UUID))

    def _run_at(self, job: NewJob) -> int:
        """Computed with integers, because the store's clock may be beyond the last year that Python supports."""
        if job.run_at is not None:
            return max(self._moment, (job.run_at - _EPOCH) // _MICROSECOND)
        return self._moment if job.delay is None else self._moment + job.delay // _MICROSECOND


async def _parts(rows: Iterator[bytes]) -> AsyncIterator[bytes]:
    part, size = [_BEGIN], 0
    try:
        for row in rows:
            part.append(row)
            size += len(row)
            if size >= _PART_BYTES:
                yield b"".join(part)
                part, size = [], 0
    except UnicodeEncodeError as error:
        raise InvalidInput("a job contains a lone surrogate, which is not a character") from error
    yield b"".join((*part, _END))


def _keep(begins: dict[tuple[object, ...], bytes], common: tuple[object, ...], begin: bytes) -> None:
    if len(begins) >= _KEPT_BEGINNINGS:
        begins.clear()
    begins[common] = begin


def _count(columns: Sequence[str]) -> bytes:
    return struct.pack("!h", len(columns))


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _size(len(encoded)) + encoded
