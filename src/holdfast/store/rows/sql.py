"""The statements on an application's table, one method each.

They are built and not read from files because the table is the application's; that is the one exception. Every
statement locks with SKIP LOCKED before it changes a row, by its key, and so never waits for anybody: neither for a
handler that finishes its row in a transaction of its own, nor for the application. NO KEY UPDATE, because a foreign key
that points to the row is no reason to skip it.
"""

from dataclasses import dataclass
from functools import cached_property

from holdfast.domain.job import JobState
from holdfast.domain.json_text import encode
from holdfast.domain.lifecycle import CANCEL_REQUESTED, LEASE_LOST
from holdfast.store.postgres.sql_files import quoted
from holdfast.store.rows.columns import Columns
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.quoting import literal
from holdfast.store.rows.terms import Terms

_ENDING = ("event", "goes_back", "delay", "at", "value", "completes", "code", "message", "error", "result")
_MOMENT = "moment AS MATERIALIZED (SELECT {now} AS now)"


@dataclass(frozen=True)
class RowSql:
    terms: Terms

    @classmethod
    def of(cls, rows: Rows, columns: Columns, schema: str) -> "RowSql":
        return cls(Terms(rows, columns, schema))

    @property
    def moment(self) -> str:
        return _MOMENT.format(now=self.terms.now)

    @cached_property
    def unlocked(self) -> dict[str | None, str]:
        """What every end of a claim does to the lock; the fence stays where it tells who finished the row."""
        rows = self.terms.rows
        cleared: dict[str | None, str] = {rows.locked_by: "NULL", rows.locked_until: "NULL", rows.locked_at: "NULL"}
        if rows.cancel_requested is not None:
            cleared[rows.cancel_requested] = "false"
        return cleared

    def now_in(self, column: str | None) -> dict[str | None, str]:
        return {} if column is None else {column: self.terms.value(column, "moment.now")}

    def claim(self, *, suspects: bool, past: bool = False) -> str:
        """One range of the index for each kind, read up to what is wanted of it; the fences rise in claim order.

        $1 kinds, $2 how many of each, $3 how long each is leased, $4 how many in all, $5 holder, $6 shard, $7 number of
        shards; to get `past` some rows: $8 keys to leave alone, $9 keys of which alone to look at, or null
        """
        terms, rows = self.terms, self.terms.rows
        taken = {
            rows.locked_by: terms.value(rows.locked_by, "$5::text"),
            rows.locked_until: terms.value(rows.locked_until, "moment.now + chosen.lease"),
            rows.fence: "chosen.fence",
            rows.attempt: f"{terms.attempt} + 1",
            **self.now_in(rows.locked_at),
            **self.now_in(rows.started_at),
            **self.now_in(rows.updated_at),
        }
        if rows.states is not None and rows.states.running is not None:
            taken[rows.states.column] = terms.state_value(literal(rows.states.running))
        return f"""
WITH {self._found(suspects=suspects, past=past)},
chosen AS MATERIALIZED (SELECT found.key, found.lease, {terms.next_fence} AS fence FROM found),
claimed AS (
    UPDATE {terms.table} AS item SET {terms.set(taken)}
    FROM chosen, moment
    WHERE {terms.is_row("chosen.key")} AND {terms.at(rows.locked_until)} IS NULL
    RETURNING item.*
)
SELECT {terms.job(payload="NULL::text" if rows.payload_query else terms.payload)},
       {terms.key}::text AS key, {terms.at(rows.fence)} AS fence, {terms.time(rows.locked_until)} AS until
FROM claimed AS item
ORDER BY {terms.at(rows.fence)}"""

    def claimable_keys(self, *, suspects: bool) -> str:
        """What a claim `past` some rows would take. The parameters are those of the claim."""
        found = self._found(suspects=suspects, past=True)
        return f"WITH {found} SELECT found.key::text AS key FROM found WHERE $5::text IS NOT NULL"

    def _found(self, *, suspects: bool, past: bool) -> str:
        terms = self.terms
        sorted_by = [f"{expression} AS order_{number}" for number, (expression, _) in enumerate(terms.order)]
        inner = ", ".join(f"{expression}{direction}" for expression, direction in terms.order)
        outer = ", ".join(f"found.order_{number}{direction}" for number, (_, direction) in enumerate(terms.order))
        source = "unnest($1::text[], $2::integer[], $3::interval[]) AS wanted (kind, at_most, lease)"
        return f"""{self.moment},
wanted AS MATERIALIZED ({terms.wanted(source, ", wanted.at_most, wanted.lease")}),
found AS MATERIALIZED (
    SELECT found.*, wanted.lease
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT {terms.key} AS key, {", ".join(sorted_by)}
        FROM {terms.table} AS item
        WHERE {terms.ready} AND {terms.is_kind("wanted.kind")}
          AND {terms.run_at} <= (SELECT {terms.moment("moment.now")} FROM moment)
          AND {terms.suspects(wanted=suspects)} AND {self._is_in_shard(6)}{self._is_past(8) if past else ""}
        ORDER BY {inner}
        LIMIT wanted.at_most
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
    ORDER BY {outer}
    LIMIT $4
)"""

    def _is_past(self, parameter: int) -> str:
        key, keys = self.terms.key, f"::text[]::{self.terms.key_type}[]"
        only = parameter + 1
        return f" AND NOT {key} = ANY (${parameter}{keys}) AND (${only}::text[] IS NULL OR {key} = ANY (${only}{keys}))"

    @property
    def payloads(self) -> str:
        """Apart from the claim, because a query of the application's own may fail on one row, and is planned as
        its author expects it.

        $1 keys
        """
        terms = self.terms
        return f"""
SELECT {terms.key}::text AS key, {terms.payload} AS payload
FROM {terms.table} AS item WHERE {terms.key} = ANY ($1::text[]::{terms.key_type}[])"""

    def _is_in_shard(self, parameter: int) -> str:
        shard_of = f"{quoted(self.terms.schema)}.shard_of"
        index, count = f"${parameter}::integer", f"${parameter + 1}::integer"
        return f"({count} IS NULL OR {shard_of}({self.terms.id}, {count}) = {index})"

    def _held(self, columns: str, source: str) -> str:
        """Lock the rows that are still under these leases, skipping those that a transaction holds."""
        terms = self.terms
        return f"""
held AS MATERIALIZED (
    SELECT locked.*, given.number, given.fence{columns}
    FROM {source}
    CROSS JOIN LATERAL (
        SELECT {terms.key} AS key, {terms.cancel_requested} AS cancel_requested, ({terms.is_live}) IS TRUE AS is_live
        FROM {terms.table} AS item
        WHERE {terms.has_id("given.id")} AND {terms.is_held("given")}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
)"""

    @cached_property
    def renew(self) -> str:
        """A row that the application took out of the queue is lost to its holder.

        $1 ids, $2 fences, $3 holders, $4 extensions
        """
        terms, until = self.terms, self.terms.rows.locked_until
        source = (
            "unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::interval[]) WITH ORDINALITY "
            "AS given (id, fence, holder, extension, number)"
        )
        return f"""
WITH {self.moment}, {self._held(", given.extension", source)}
UPDATE {terms.table} AS item SET {terms.set({until: terms.value(until, "moment.now + held.extension")})}
FROM held, moment
WHERE {terms.is_row("held.key")} AND {terms.at(terms.rows.fence)} = held.fence AND held.is_live
RETURNING held.number, held.cancel_requested"""

    @cached_property
    def finish(self) -> str:
        """A row that a person asked to cancel is not made ready again, whatever ended its attempt. One that the
        application took out of the queue meanwhile does not go back to it either: it only loses its lock.

        $1 ids, $2 fences, $3 holders, $4 events, $5 whether the row goes back to ready, $6 delays, $7 times,
        $8 values of the state column, $9 whether the row is complete, $10 error codes, $11 their messages,
        $12 whole errors, $13 results
        """
        terms, rows = self.terms, self.terms.rows
        source = (
            "unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::boolean[], $6::interval[], "
            "$7::timestamptz[], $8::text[], $9::boolean[], $10::text[], $11::text[], $12::text[], $13::text[]) "
            f"WITH ORDINALITY AS given (id, fence, holder, {', '.join(_ENDING)}, number)"
        )
        columns = "".join(f", given.{name}" for name in _ENDING)
        return f"""
WITH {self.moment}, {self._held(columns, source)},
ended AS MATERIALIZED (
    SELECT held.*, held.goes_back AND NOT held.cancel_requested AS is_ready,
           held.goes_back AND held.cancel_requested AS is_canceled
    FROM held WHERE held.is_live OR NOT held.goes_back
),
left_alone AS (
    UPDATE {terms.table} AS item SET {terms.set({**self.unlocked, rows.fence: "NULL"})}
    FROM held
    WHERE {terms.is_row("held.key")} AND {terms.at(rows.fence)} = held.fence AND held.goes_back AND NOT held.is_live
)
UPDATE {terms.table} AS item SET {terms.set(self._finished())}
FROM ended, moment
WHERE {terms.is_row("ended.key")} AND {terms.at(rows.fence)} = ended.fence
RETURNING ended.number"""

    def _finished(self) -> dict[str | None, str]:
        terms, rows = self.terms, self.terms.rows
        gives_back = "ended.is_ready AND ended.event IN ('release', 'snooze')"
        attempt = f"{terms.attempt} - CASE WHEN {gives_back} THEN 1 ELSE 0 END"
        first_run_at = rows.run_at_columns[0]
        next_time = terms.value(first_run_at, "greatest(coalesce(ended.at, moment.now + ended.delay), moment.now)")
        request = (CANCEL_REQUESTED.code, CANCEL_REQUESTED.message, encode(CANCEL_REQUESTED.as_dict()))
        noted = [
            f"CASE WHEN ended.is_canceled THEN coalesce(ended.{name}, {literal(said)}) ELSE ended.{name} END"
            for name, said in zip(("code", "message", "error"), request, strict=True)
        ]
        assigned = {
            **self.unlocked,
            **self.now_in(rows.updated_at),
            rows.fence: f"CASE WHEN ended.is_ready THEN NULL ELSE {terms.at(rows.fence)} END",
            rows.attempt: attempt,
            first_run_at: f"""CASE WHEN ended.is_ready AND ended.event = 'release' THEN {terms.at(first_run_at)}
                 WHEN ended.is_ready THEN {next_time} ELSE {terms.run_at_when_final} END""",
            **terms.note_error(*noted),
        }
        if rows.states is not None:
            assigned[rows.states.column] = f"""CASE
                 WHEN ended.is_canceled THEN {terms.final_value(JobState.CANCELED)}
                 WHEN ended.value IS NOT NULL THEN {terms.state_value("ended.value")}
                 ELSE {terms.value_back(attempt)} END"""
        elif rows.error_code is not None:
            # Without states the code of the last error tells a failure from a success.
            failed = assigned[rows.error_code]
            assigned[rows.error_code] = f"CASE WHEN ended.event = 'succeed' THEN NULL ELSE {failed} END"
        if rows.completed_at is not None:
            assigned[rows.completed_at] = f"""CASE
                 WHEN NOT ended.is_ready AND (ended.completes OR ended.is_canceled)
                 THEN {terms.value(rows.completed_at, "moment.now")} ELSE {terms.at(rows.completed_at)} END"""
        if rows.started_at is not None:
            assigned[rows.started_at] = f"CASE WHEN ended.is_ready THEN NULL ELSE {terms.at(rows.started_at)} END"
        if rows.result is not None:
            assigned[rows.result] = terms.value(rows.result, "CASE WHEN NOT ended.goes_back THEN ended.result END")
        return assigned

    @cached_property
    def why_not_held(self) -> str:
        """In a snapshot of its own, after the change, so that a commit in between is seen. A fence stays on a row only
        where it finished it.

        $1 ids, $2 fences, $3 holders
        """
        terms = self.terms
        fence, until = terms.at(terms.rows.fence), terms.at(terms.rows.locked_until)
        return f"""
SELECT CASE WHEN {terms.is_held("given")} AND {terms.is_live} THEN 'locked'
            WHEN {fence} = given.fence AND {until} IS NULL THEN 'already'
            ELSE 'stale' END AS fenced
FROM unnest($1::uuid[], $2::bigint[], $3::uuid[]) WITH ORDINALITY AS given (id, fence, holder, number)
LEFT JOIN {terms.table} AS item ON {terms.has_id("given.id")}
ORDER BY given.number"""

    @cached_property
    def rescue(self) -> str:
        """Reads the index of the locks. The end of each lease is checked on the newest version of the row.

        $1 at most, $2 keys to leave alone, $3 keys of which alone to look at, or null
        """
        terms, rows = self.terms, self.terms.rows
        first_run_at = rows.run_at_columns[0]
        error = LEASE_LOST
        assigned = {
            **self.unlocked,
            **self.now_in(rows.updated_at),
            rows.fence: "NULL",
            rows.losses: f"{terms.losses} + 1",
            first_run_at: f"CASE WHEN lost.then = 'ready' THEN {terms.value(first_run_at, 'moment.now')} "
            f"ELSE {terms.run_at_when_final} END",
            **terms.note_error(literal(error.code), literal(error.message), literal(encode(error.as_dict()))),
        }
        if rows.states is not None:
            assigned[rows.states.column] = (
                f"CASE lost.then WHEN 'dead' THEN {terms.final_value(JobState.DEAD)} "
                f"WHEN 'canceled' THEN {terms.final_value(JobState.CANCELED)} "
                f"ELSE {terms.value_back(terms.attempt)} END"
            )
        if rows.completed_at is not None:
            assigned[rows.completed_at] = (
                f"CASE WHEN lost.then <> 'ready' THEN {terms.value(rows.completed_at, 'moment.now')} "
                f"ELSE {terms.at(rows.completed_at)} END"
            )
        if rows.started_at is not None:
            assigned[rows.started_at] = f"CASE WHEN lost.then = 'ready' THEN NULL ELSE {terms.at(rows.started_at)} END"
        return f"""
WITH {self.moment},
lost AS MATERIALIZED (
    SELECT {terms.key} AS key, {terms.at(rows.locked_until)} AS until, {terms.id} AS id,
           CASE WHEN {terms.is_last_loss} THEN 'dead' WHEN {terms.cancel_requested} THEN 'canceled'
                ELSE 'ready' END AS then
    {self._expired_rows}
    FOR NO KEY UPDATE SKIP LOCKED
),
rescued AS (
    UPDATE {terms.table} AS item SET {terms.set(assigned)}
    FROM lost, moment
    WHERE {terms.is_row("lost.key")} AND {terms.running} AND {self._is_expired}
    RETURNING lost.id, lost.then AS state, lost.until
)
SELECT rescued.id, rescued.state FROM rescued ORDER BY rescued.until, rescued.id"""

    @property
    def _is_expired(self) -> str:
        until = self.terms.rows.locked_until
        return f"{self.terms.at(until)} <= (SELECT {self.terms.value(until, 'moment.now')} FROM moment)"

    @property
    def _expired_rows(self) -> str:
        terms = self.terms
        return f"""FROM {terms.table} AS item
    WHERE {terms.running} AND {self._is_expired} AND NOT {terms.key} = ANY ($2::text[]::{terms.key_type}[])
      AND ($3::text[] IS NULL OR {terms.key} = ANY ($3::text[]::{terms.key_type}[]))
    ORDER BY {terms.at(terms.rows.locked_until)}, {terms.key}
    LIMIT $1"""

    @property
    def expired_keys(self) -> str:
        """The parameters are those of the rescue."""
        return f"WITH {self.moment} SELECT {self.terms.key}::text AS key {self._expired_rows}"

    def look(self, *, past: bool = False) -> str:
        """When the first row may run, and the first suspect where losses are counted; one index probe a kind.

        $1 kinds, $2 shard, $3 number of shards; to get `past` some rows: $4 and $5 as the claim's
        """
        terms = self.terms
        first = f"SELECT {terms.run_at_time} AS run_at {self._waiting(suspects=False, past=past)}"
        suspect_due_in = "NULL::interval"
        if terms.rows.losses is not None:
            # All of them: they are few, and with a LIMIT the planner may walk over all other rows to the first one.
            suspects = f"SELECT min({terms.run_at_time}) AS run_at {self._waiting(suspects=True, past=past)}"
            suspect_due_in = self._first_due(suspects)
        return f"""
SELECT {self._first_due(f"{first} ORDER BY {terms.run_at} LIMIT 1")} AS due_in,
       {suspect_due_in} AS suspect_due_in"""

    def _first_due(self, of_kind: str) -> str:
        wanted = self.terms.wanted("unnest($1::text[]) AS wanted (kind)")
        return f"""(SELECT min(first.run_at) - {self.terms.now} FROM ({wanted}) AS wanted
    CROSS JOIN LATERAL ({of_kind}) AS first)"""

    def _waiting(self, *, suspects: bool, past: bool) -> str:
        terms = self.terms
        return f"""FROM {terms.table} AS item
        WHERE {terms.ready} AND {terms.is_kind("wanted.kind")} AND {terms.suspects(wanted=suspects)}
          AND {self._is_in_shard(2)}{self._is_past(4) if past else ""}"""

    @cached_property
    def finish_in(self) -> str:
        """For a handler's own transaction; a lock that is lost makes it fail. Each parameter is used once, in order.

        $1 id, $2 fence, $3 holder, $4 result
        """
        terms, rows = self.terms, self.terms.rows
        first_run_at = rows.run_at_columns[0]
        assigned = {
            **self.unlocked,
            **self.now_in(rows.updated_at),
            first_run_at: terms.run_at_when_final,
        }
        if rows.states is not None:
            assigned[rows.states.column] = terms.final_value(JobState.SUCCEEDED)
        elif rows.error_code is not None:
            assigned[rows.error_code] = "NULL"
        if rows.completed_at is not None and (rows.states is None or rows.completes(rows.states.succeeded)):
            assigned[rows.completed_at] = terms.value(rows.completed_at, "moment.now")
        if rows.result is not None:
            assigned[rows.result] = terms.value(rows.result, "given.result")
        return f"""
WITH {self.moment},
given AS MATERIALIZED (SELECT $1::uuid AS id, $2::bigint AS fence, $3::uuid AS holder, $4::text AS result),
done AS (
    UPDATE {terms.table} AS item SET {terms.set(assigned)}
    FROM given, moment
    WHERE {terms.has_id("given.id")} AND {terms.is_held("given")}
    RETURNING 1
)
SELECT {quoted(terms.schema)}.held_or_raise(count(*) = 1, {literal(rows.name)}) FROM done"""
