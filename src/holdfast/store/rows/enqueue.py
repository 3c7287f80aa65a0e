"""Inserts rows through a mapping, for tables with a place for everything that a job has.

Applications normally insert their rows in their own transactions. This is for tests, and for applications whose rows
hold nothing more than a job does.
"""

from collections.abc import Sequence

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import DEFAULT_PRIORITY, NewJob
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.quoting import literal
from holdfast.store.rows.rare_sql import insert
from holdfast.store.rows.sql import RowSql

_LATER = "greatest(coalesce(given.run_at, moment.now + coalesce(given.delay, interval '0')), moment.now)"


def insert_statement(sql: RowSql) -> str:
    """Raise InvalidInput if the application must insert its rows itself."""
    item, mapping = sql.item, sql.item.mapping
    if mapping.payload is None or item.key_type != "uuid":
        raise InvalidInput(
            f"rows {mapping.name!r}: jobs cannot be inserted here, because that takes a uuid key and a payload column; "
            f"insert the row in your own transaction"
        )
    expressions = {
        mapping.key: "given.id",
        mapping.payload: "given.payload",
        mapping.run_at_columns[0]: _LATER,
        mapping.attempt: "0",
        mapping.kind_column: "given.kind",
        mapping.created_at: "moment.now",
        mapping.updated_at: "moment.now",
        mapping.losses: "0",
        mapping.suspicion: "0",
        mapping.crash_limit: "0",
        mapping.priority: "given.priority",
        mapping.tenant: "given.tenant",
        mapping.correlation_id: "given.correlation_id",
        mapping.max_attempts: "given.max_attempts",
        mapping.headers: "given.headers",
        mapping.cancel_requested: "false",
        item.state_key: literal(mapping.states.claimable[0]) if mapping.states else "",
    }
    return insert(sql, {name: item.value(name, expression) for name, expression in expressions.items() if name})


def check_jobs(mapping: Rows, jobs: Sequence[NewJob]) -> None:
    """Refuse values that the table has no place for, rather than lose them."""
    for job in jobs:
        said = {
            "key": job.key is not None,
            "queue": job.queue != mapping.queue,
            "kind": mapping.kind not in (None, job.kind),
            "priority": mapping.priority is None and job.priority != DEFAULT_PRIORITY,
            "tenant": mapping.tenant is None and bool(job.tenant),
            "correlation_id": mapping.correlation_id is None and job.correlation_id != str(job.id),
            "max_attempts": mapping.max_attempts is None and job.max_attempts is not None,
            "headers": mapping.headers is None and job.headers is not None,
        }
        if refused := [name for name, is_said in said.items() if is_said]:
            raise InvalidInput(f"rows {mapping.name!r}: has no place for the {refused[0]} of a job; leave it out")


def columns_of(jobs: Sequence[NewJob]) -> tuple[list[object], ...]:
    return (
        [job.id for job in jobs],
        [job.kind for job in jobs],
        [job.priority for job in jobs],
        [job.delay for job in jobs],
        [job.run_at for job in jobs],
        [job.tenant for job in jobs],
        [job.correlation_id for job in jobs],
        [job.max_attempts for job in jobs],
        [job.payload for job in jobs],
        [job.headers for job in jobs],
    )
