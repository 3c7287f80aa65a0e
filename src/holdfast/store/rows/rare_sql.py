"""The less frequent statements on an application's table: a person's verbs and the insert."""

from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import CANCEL_REQUESTED
from holdfast.store.rows.quoting import identifier, literal
from holdfast.store.rows.sql import RowSql


def leases_of(sql: RowSql) -> str:
    """The claims of one holder: $1 the lowest, $2 the highest"""
    item, mapping = sql.item, sql.item.mapping
    claim = item.at(mapping.claim)
    return f"""
SELECT {item.id} AS id, {item.at(mapping.fence)} AS fence, {claim} AS claim FROM {item.table} AS item
WHERE {item.at(mapping.locked_until)} IS NOT NULL AND {claim} BETWEEN $1::uuid AND $2::uuid"""


def cancel(sql: RowSql) -> str:
    """If a running row cannot be asked, it loses its lock, and its worker notices at the next renewal.

    $1 ids
    """
    item, mapping = sql.item, sql.item.mapping
    ended = {
        **sql.unlocked,
        **sql.now_in(mapping.updated_at),
        **sql.now_in(mapping.completed_at),
        mapping.claim: "NULL",
        mapping.run_at_columns[0]: item.run_at_when_final,
    }
    if mapping.states is not None:
        ended[mapping.states.column] = item.final_value(JobState.CANCELED)
    elif mapping.error_code is not None:
        ended[mapping.error_code] = item.value(mapping.error_code, literal(CANCEL_REQUESTED.code), cut=True)
    asked = (
        f"UPDATE {item.table} AS item SET {item.set({mapping.cancel_requested: 'true'})} FROM locked "
        f"WHERE {item.is_row('locked.key')} AND locked.state = 'running' RETURNING locked.id"
        if mapping.cancel_requested
        else "SELECT locked.id FROM locked WHERE false"
    )
    at_once = "" if mapping.cancel_requested else ", 'running'"
    return f"""
WITH {sql.moment}, {_looked_up(sql)},
ended AS (
    UPDATE {item.table} AS item SET {item.set(ended)}
    FROM locked, moment
    WHERE {item.is_row("locked.key")} AND locked.state IN ('ready', 'failed', 'dead'{at_once})
    RETURNING locked.id
),
asked AS ({asked})
SELECT given.id,
       CASE WHEN EXISTS (SELECT FROM ended WHERE ended.id = given.id) THEN 'canceled'
            WHEN EXISTS (SELECT FROM asked WHERE asked.id = given.id) THEN 'requested'
            WHEN EXISTS (SELECT FROM locked WHERE locked.id = given.id) THEN 'final'
            WHEN {_exists(sql)} THEN 'locked'
            ELSE 'unknown' END AS answer
FROM given"""


def run_alone(sql: RowSql) -> str:
    """$1 id, $2 claim, $3 limit of crashes"""
    item, column = sql.item, sql.item.mapping.crash_limit
    return f"""
WITH given AS MATERIALIZED (SELECT $1::uuid AS id, $2::uuid AS claim),
locked AS MATERIALIZED (
    SELECT {item.key} AS key FROM {item.table} AS item, given
    WHERE {item.has_id("given.id")} AND {item.is_held("given")} AND {item.is_live}
    FOR NO KEY UPDATE OF item SKIP LOCKED
)
UPDATE {item.table} AS item SET {item.set({column: "$3::integer"})}
FROM locked WHERE {item.is_row("locked.key")} RETURNING 1"""


def absolve(sql: RowSql) -> str:
    """The last error identifies the lost lease. If a later error replaced it, the loss stays counted.

    $1 ids, $2 claims
    """
    item, mapping = sql.item, sql.item.mapping
    whole = item.text(mapping.error)
    mark = """'%"lost": "' || given.claim || '"%'"""
    assigned = {
        mapping.suspicion: f"greatest({item.suspicion} - 1, 0)",
        mapping.error: item.value(mapping.error or "", f"({whole}::jsonb - 'lost')::text"),
    }
    return f"""
WITH locked AS MATERIALIZED (
    SELECT found.key FROM unnest($1::uuid[], $2::uuid[]) AS given (id, claim)
    CROSS JOIN LATERAL (
        SELECT {item.key} AS key FROM {item.table} AS item
        WHERE {item.has_id("given.id")} AND {item.is_live} AND {whole} LIKE {mark}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
)
UPDATE {item.table} AS item SET {item.set(assigned)}
FROM locked WHERE {item.is_row("locked.key")}"""


def retry(sql: RowSql) -> str:
    """$1 ids"""
    item, mapping = sql.item, sql.item.mapping
    reset = {
        **sql.unlocked,
        **sql.now_in(mapping.updated_at),
        mapping.claim: "NULL",
        mapping.attempt: "0",
        mapping.losses: "0",
        mapping.suspicion: "0",
        mapping.run_at_columns[0]: item.value(mapping.run_at_columns[0], "moment.now"),
        mapping.completed_at: "NULL",
        mapping.started_at: "NULL",
        mapping.result: "NULL",
    }
    if mapping.states is not None:
        reset[mapping.states.column] = item.state_value(literal(mapping.states.claimable[0]))
    return f"""
WITH {sql.moment}, {_looked_up(sql)},
revived AS (
    UPDATE {item.table} AS item SET {item.set(reset)}
    FROM locked, moment
    WHERE {item.is_row("locked.key")} AND locked.state NOT IN ('ready', 'running')
    RETURNING locked.id
)
SELECT given.id,
       CASE WHEN EXISTS (SELECT FROM revived WHERE revived.id = given.id) THEN 'ready'
            WHEN EXISTS (SELECT FROM locked WHERE locked.id = given.id) THEN 'live'
            WHEN {_exists(sql)} THEN 'locked'
            ELSE 'unknown' END AS answer
FROM given"""


def _looked_up(sql: RowSql) -> str:
    """The rows with the given ids, locked, with their states.

    A row that another mapping runs counts as locked: no other mapping may take its lock before its end.
    """
    item = sql.item
    until = item.at(item.mapping.locked_until)
    is_free = f"({until} IS NULL OR {item.running} OR {item.time(item.mapping.locked_until)} <= {item.now})"
    return f"""
given AS MATERIALIZED (SELECT DISTINCT id FROM unnest($1::uuid[]) AS given (id)),
locked AS MATERIALIZED (
    SELECT given.id, found.* FROM given
    CROSS JOIN LATERAL (
        SELECT {item.key} AS key, {item.state} AS state FROM {item.table} AS item
        WHERE {item.has_id("given.id")} AND {item.state} IS NOT NULL AND {is_free}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
)"""


def _exists(sql: RowSql) -> str:
    item = sql.item
    known = f"{item.has_id('given.id')} AND {item.state} IS NOT NULL"
    return f"EXISTS (SELECT FROM {item.table} AS item WHERE {known})"


def insert(sql: RowSql, columns: dict[str, str]) -> str:
    """`columns` maps names to expressions over `given`.

    Per job: $1 ids, $2 kinds, $3 priorities, $4 delays, $5 times, $6 tenants, $7 correlation ids,
    $8 limits of attempts, $9 payloads, $10 headers
    """
    names = ", ".join(map(identifier, columns))
    return f"""
WITH {sql.moment}
INSERT INTO {sql.item.table} ({names})
SELECT {", ".join(columns.values())}
FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::interval[], $5::timestamptz[], $6::text[], $7::text[],
            $8::integer[], $9::text[], $10::text[])
     AS given (id, kind, priority, delay, run_at, tenant, correlation_id, max_attempts, payload, headers), moment"""
