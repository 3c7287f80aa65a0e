"""The statements on an application's table, one method each.

These are the only statements that are built in code rather than read from files, because the table belongs to the
application. Every statement locks rows by key with SKIP LOCKED before it changes them, so it never waits for a handler
that finishes its row in its own transaction, or for the application; `RowTable.change` limits what triggers wait. The
lock is NO KEY UPDATE, because a foreign key that points to the row is no reason to skip it.
"""

from dataclasses import dataclass
from functools import cached_property

from holdfast.domain.job import JobState
from holdfast.domain.json_text import encode
from holdfast.domain.lifecycle import CANCEL_REQUESTED, LEASE_LOST
from holdfast.store.postgres.sql_files import quoted
from holdfast.store.rows.columns import Columns
from holdfast.store.rows.item import Item, readable
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.quoting import literal

_ENDING = ("move", "goes_back", "delay", "at", "value", "completes", "code", "message", "error", "result")
_SMALL_PAYLOAD = "CASE WHEN octet_length(whole_payload.text) < 65536 THEN whole_payload.text END"
_MOMENT = "moment AS MATERIALIZED (SELECT {now} AS now)"


@dataclass(frozen=True)
class RowSql:
    item: Item

    @classmethod
    def of(cls, mapping: Rows, columns: Columns, schema: str) -> "RowSql":
        return cls(Item(mapping, columns, schema))

    @property
    def moment(self) -> str:
        return _MOMENT.format(now=self.item.now)

    @cached_property
    def unlocked(self) -> dict[str | None, str]:
        """How every end of a claim clears the lock. The claim stays where it shows which claim finished the row."""
        mapping = self.item.mapping
        cleared: dict[str | None, str] = {
            mapping.locked_by: "NULL",
            mapping.locked_until: "NULL",
            mapping.locked_at: "NULL",
        }
        if mapping.crash_limit is not None:
            cleared[mapping.crash_limit] = "0"
        if mapping.cancel_requested is not None:
            cleared[mapping.cancel_requested] = "false"
        return cleared

    def now_in(self, column: str | None) -> dict[str | None, str]:
        return {} if column is None else {column: self.item.value(column, "moment.now")}

    def claim(self, *, suspects: bool, past: bool = False) -> str:
        """Read one range of the index per kind, up to the number wanted. Large payloads are left out, and so are those
        from the application's own query.

        $1 kinds, $2 how many of each, $3 how long each is leased, $4 how many in all, $5 claim, $6 holder, $7 shard,
        $8 number of shards; to get `past` some rows: $9 keys to leave alone, $10 the only keys to consider, or
        null
        """
        item, mapping = self.item, self.item.mapping
        taken = {
            mapping.locked_by: item.value(mapping.locked_by, "$6::text"),
            mapping.locked_until: item.value(mapping.locked_until, "moment.now + chosen.lease"),
            mapping.claim: "$5::uuid",
            mapping.fence: item.next_fence,
            mapping.attempt: f"{item.attempt} + 1",
            **self.now_in(mapping.locked_at),
            **self.now_in(mapping.started_at),
            **self.now_in(mapping.updated_at),
        }
        if mapping.states is not None and mapping.states.running is not None:
            taken[mapping.states.column] = item.state_value(literal(mapping.states.running))
        return f"""
WITH {self._found(suspects=suspects, past=past)},
chosen AS MATERIALIZED (SELECT found.key, found.lease, row_number() OVER () AS place FROM found),
claimed AS (
    UPDATE {item.table} AS item SET {item.set(taken)}
    FROM chosen, moment
    WHERE {item.is_row("chosen.key")} AND {item.at(mapping.locked_until)} IS NULL
    RETURNING item AS whole, chosen.place
)
SELECT {item.job(payload="NULL::text" if mapping.payload_query else _SMALL_PAYLOAD)},
       {item.key}::text AS key, {item.at(mapping.fence)} AS fence, {item.time(mapping.locked_until)} AS until
FROM claimed CROSS JOIN LATERAL (SELECT (claimed.whole).*) AS item
CROSS JOIN LATERAL (SELECT {"NULL" if mapping.payload_query else item.payload} AS text OFFSET 0) AS whole_payload
ORDER BY claimed.place"""

    def claimable_keys(self, *, suspects: bool) -> str:
        """The keys that a claim `past` some rows would take. The parameters are those of the claim."""
        found = self._found(suspects=suspects, past=True)
        return (
            f"WITH {found} SELECT found.key::text AS key FROM found WHERE $5::uuid IS NOT NULL AND $6::text IS NOT NULL"
        )

    def _found(self, *, suspects: bool, past: bool) -> str:
        item = self.item
        sorted_by = [f"{expression} AS order_{number}" for number, (expression, _) in enumerate(item.order)]
        inner = ", ".join(f"{expression}{direction}" for expression, direction in item.order)
        outer = ", ".join(f"found.order_{number}{direction}" for number, (_, direction) in enumerate(item.order))
        source = "unnest($1::text[], $2::integer[], $3::interval[]) AS wanted (kind, at_most, lease)"
        return f"""{self.moment},
wanted AS MATERIALIZED ({item.wanted(source, ", wanted.at_most, wanted.lease")}),
found AS MATERIALIZED (
    SELECT found.*, wanted.lease
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT {item.key} AS key, {", ".join(sorted_by)}
        FROM {item.table} AS item
        WHERE {item.ready} AND {item.is_kind("wanted.kind")}
          AND {item.run_at} <= (SELECT {item.moment("moment.now")} FROM moment)
          AND {item.suspects(wanted=suspects)} AND {self._is_in_shard(7)}{self._is_past(9) if past else ""}
        ORDER BY {inner}
        LIMIT wanted.at_most
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS found
    ORDER BY {outer}
    LIMIT $4
)"""

    def _is_past(self, parameter: int) -> str:
        key, keys = self.item.key, f"::text[]::{self.item.key_type}[]"
        only = parameter + 1
        return f" AND NOT {key} = ANY (${parameter}{keys}) AND (${only}::text[] IS NULL OR {key} = ANY (${only}{keys}))"

    @property
    def payloads(self) -> str:
        """Separate from the claim, because the application's own query may fail on one row, and must be planned the way
        its author expects.

        $1 keys
        """
        item = self.item
        return f"""
SELECT {item.key}::text AS key, {item.payload} AS payload
FROM {item.table} AS item WHERE {item.key} = ANY ($1::text[]::{item.key_type}[])"""

    def _is_in_shard(self, parameter: int) -> str:
        shard_of = f"{quoted(self.item.schema)}.shard_of"
        index, count = f"${parameter}::integer", f"${parameter + 1}::integer"
        return f"({count} IS NULL OR {shard_of}({self.item.id}, {count}) = {index})"

    def _held(self, columns: str, source: str) -> str:
        """Lock the rows that these leases still hold, skipping rows that a transaction has locked."""
        item = self.item
        return f"""
held AS MATERIALIZED (
    SELECT locked.*, given.number, given.claim{columns}
    FROM {source}
    CROSS JOIN LATERAL (
        SELECT {item.key} AS key, {item.cancel_requested} AS cancel_requested, ({item.is_live}) IS TRUE AS is_live
        FROM {item.table} AS item
        WHERE {item.has_id("given.id")} AND {item.is_held("given")}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
)"""

    @cached_property
    def renew(self) -> str:
        """A row that the application took out of the queue is lost to its holder.

        $1 ids, $2 claims, $3 extensions
        """
        item, until = self.item, self.item.mapping.locked_until
        source = (
            "unnest($1::uuid[], $2::uuid[], $3::interval[]) WITH ORDINALITY AS given (id, claim, extension, number)"
        )
        return f"""
WITH {self.moment}, {self._held(", given.extension", source)}
UPDATE {item.table} AS item SET {item.set({until: item.value(until, "moment.now + held.extension")})}
FROM held, moment
WHERE {item.is_row("held.key")} AND {item.at(item.mapping.claim)} = held.claim AND held.is_live
RETURNING held.number, held.cancel_requested"""

    @cached_property
    def finish(self) -> str:
        """A row that a person asked to cancel does not become ready again, however its attempt ended. A row that the
        application has since taken out of the queue does not return to it either: it only loses its lock.

        $1 ids, $2 claims, $3 moves, $4 whether the row goes back to ready, $5 delays, $6 times, $7 values of the state
        column, $8 whether the row is complete, $9 error codes, $10 their messages, $11 whole errors, $12 results
        """
        item, mapping = self.item, self.item.mapping
        source = (
            "unnest($1::uuid[], $2::uuid[], $3::text[], $4::boolean[], $5::interval[], $6::timestamptz[], $7::text[], "
            "$8::boolean[], $9::text[], $10::text[], $11::text[], $12::text[]) "
            f"WITH ORDINALITY AS given (id, claim, {', '.join(_ENDING)}, number)"
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
    UPDATE {item.table} AS item SET {item.set({**self.unlocked, mapping.claim: "NULL"})}
    FROM held
    WHERE {item.is_row("held.key")} AND {item.at(mapping.claim)} = held.claim AND held.goes_back AND NOT held.is_live
)
UPDATE {item.table} AS item SET {item.set(self._finished())}
FROM ended, moment
WHERE {item.is_row("ended.key")} AND {item.at(mapping.claim)} = ended.claim
RETURNING ended.number"""

    def _finished(self) -> dict[str | None, str]:
        item, mapping = self.item, self.item.mapping
        gives_back = "ended.is_ready AND ended.move IN ('release', 'snooze', 'interrupt')"
        attempt = f"{item.attempt} - CASE WHEN {gives_back} THEN 1 ELSE 0 END"
        first_run_at = mapping.run_at_columns[0]
        next_time = item.value(first_run_at, "greatest(coalesce(ended.at, moment.now + ended.delay), moment.now)")
        request = (CANCEL_REQUESTED.code, CANCEL_REQUESTED.message, encode(CANCEL_REQUESTED.as_dict()))
        noted = [
            f"CASE WHEN ended.is_canceled THEN coalesce(ended.{name}, {literal(said)}) ELSE ended.{name} END"
            for name, said in zip(("code", "message", "error"), request, strict=True)
        ]
        assigned = {
            **self.unlocked,
            **self.now_in(mapping.updated_at),
            mapping.claim: f"CASE WHEN ended.is_ready THEN NULL ELSE {item.at(mapping.claim)} END",
            mapping.attempt: attempt,
            first_run_at: f"""CASE WHEN ended.is_ready AND ended.move = 'release' THEN {item.at(first_run_at)}
                 WHEN ended.is_ready THEN {next_time} ELSE {item.run_at_when_final} END""",
            **item.note_error(*noted),
        }
        if mapping.states is not None:
            assigned[mapping.states.column] = f"""CASE
                 WHEN ended.is_canceled THEN {item.final_value(JobState.CANCELED)}
                 WHEN ended.value IS NOT NULL THEN {item.state_value("ended.value")}
                 ELSE {item.value_back(attempt)} END"""
        elif mapping.error_code is not None:
            # Without states, the code of the last error tells a failure from a success.
            failed = assigned[mapping.error_code]
            assigned[mapping.error_code] = f"CASE WHEN ended.move = 'succeed' THEN NULL ELSE {failed} END"
        if mapping.completed_at is not None:
            assigned[mapping.completed_at] = f"""CASE
                 WHEN NOT ended.is_ready AND (ended.completes OR ended.is_canceled)
                 THEN {item.value(mapping.completed_at, "moment.now")} ELSE {item.at(mapping.completed_at)} END"""
        if mapping.started_at is not None:
            assigned[mapping.started_at] = f"CASE WHEN ended.is_ready THEN NULL ELSE {item.at(mapping.started_at)} END"
        if mapping.result is not None:
            assigned[mapping.result] = item.value(mapping.result, "CASE WHEN NOT ended.goes_back THEN ended.result END")
        return assigned

    @cached_property
    def why_not_held(self) -> str:
        """Runs in a separate snapshot after the change, so it sees a commit in between. A claim stays only on a row
        that it finished.

        $1 ids, $2 claims
        """
        item = self.item
        claim, until = item.at(item.mapping.claim), item.at(item.mapping.locked_until)
        return f"""
SELECT CASE WHEN {item.is_held("given")} AND {item.is_live} THEN 'locked'
            WHEN {claim} = given.claim AND {until} IS NULL THEN 'already'
            ELSE 'stale' END AS fenced
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS given (id, claim, number)
LEFT JOIN {item.table} AS item ON {item.has_id("given.id")}
ORDER BY given.number"""

    @cached_property
    def rescue(self) -> str:
        """Reads the index on the locks. The end of each lease is checked on the newest version of the row.

        $1 at most, $2 keys to leave alone, $3 the only keys to consider, or null, $4 the time by which their leases
        expired, or null, $5 how long these leases are at most, or null
        """
        item, mapping = self.item, self.item.mapping
        first_run_at = mapping.run_at_columns[0]
        error = LEASE_LOST
        whole = literal(encode(error.as_dict()))
        if mapping.suspicion is not None:
            # This identifies the loss when it is absolved.
            is_counted = f"{item.suspicion_after_loss} > {item.suspicion}"
            whole = f"""({whole}::jsonb || CASE WHEN {is_counted}
                 THEN jsonb_build_object('lost', {item.at(mapping.claim)}) ELSE '{{}}' END)"""
        again = item.value(first_run_at, f"moment.now + {item.rest_after_loss}")
        assigned = {
            **self.unlocked,
            **self.now_in(mapping.updated_at),
            mapping.claim: "NULL",
            **item.after_loss(),
            first_run_at: f"CASE WHEN lost.then = 'ready' THEN {again} ELSE {item.run_at_when_final} END",
            **item.note_error(literal(error.code), literal(error.message), whole),
        }
        if mapping.states is not None:
            assigned[mapping.states.column] = (
                f"CASE lost.then WHEN 'dead' THEN {item.final_value(JobState.DEAD)} "
                f"WHEN 'canceled' THEN {item.final_value(JobState.CANCELED)} "
                f"ELSE {item.value_back(item.attempt)} END"
            )
        if mapping.completed_at is not None:
            assigned[mapping.completed_at] = (
                f"CASE WHEN lost.then <> 'ready' THEN {item.value(mapping.completed_at, 'moment.now')} "
                f"ELSE {item.at(mapping.completed_at)} END"
            )
        if mapping.started_at is not None:
            assigned[mapping.started_at] = (
                f"CASE WHEN lost.then = 'ready' THEN NULL ELSE {item.at(mapping.started_at)} END"
            )
        return f"""
WITH {self.moment},
lost AS MATERIALIZED (
    SELECT {item.key} AS key, {item.at(mapping.locked_until)} AS until, {item.id} AS id,
           CASE WHEN {item.cancel_requested} THEN 'canceled' WHEN {item.is_last_loss} THEN 'dead'
                ELSE 'ready' END AS then
    {self._expired_rows}
    FOR NO KEY UPDATE SKIP LOCKED
),
rescued AS (
    UPDATE {item.table} AS item SET {item.set(assigned)}
    FROM lost, moment
    WHERE {item.is_row("lost.key")} AND {item.running} AND {self._is_expired}
    RETURNING lost.id, lost.then AS state, lost.until
)
SELECT rescued.id, rescued.state FROM rescued ORDER BY rescued.until, rescued.id"""

    @property
    def _is_expired(self) -> str:
        until = self.item.mapping.locked_until
        ended_by = self.item.value(until, "least(moment.now, $4::timestamptz)")
        length = f"{quoted(self.item.schema)}.lease_length({self.item.at(self.item.mapping.claim)})"
        return f"{self.item.at(until)} <= (SELECT {ended_by} FROM moment) AND ({length} <= $5::interval) IS NOT FALSE"

    @property
    def _expired_rows(self) -> str:
        item = self.item
        return f"""FROM {item.table} AS item
    WHERE {item.running} AND {self._is_expired} AND NOT {item.key} = ANY ($2::text[]::{item.key_type}[])
      AND ($3::text[] IS NULL OR {item.key} = ANY ($3::text[]::{item.key_type}[]))
    ORDER BY {item.at(item.mapping.locked_until)}, {item.key}
    LIMIT $1"""

    @property
    def expired_keys(self) -> str:
        """The parameters are those of the rescue."""
        return f"WITH {self.moment} SELECT {self.item.key}::text AS key {self._expired_rows}"

    @property
    def has_leased_suspects(self) -> str:
        """Whether another claim has any. Runs after taking the lock for claims of suspects."""
        item, until = self.item, self.item.mapping.locked_until
        return f"""
WITH {self.moment}
SELECT EXISTS (SELECT FROM {item.table} AS item
               WHERE {item.running} AND {item.suspects(wanted=True)}
                 AND {item.at(until)} > (SELECT {item.value(until, "moment.now")} FROM moment)) AS is_so"""

    def look(self, *, past: bool = False) -> str:
        """When the first row may run, and the first suspect if losses are counted; one index probe per kind.

        $1 kinds, $2 shard, $3 number of shards; to get `past` some rows: $4 and $5 as $9 and $10 of the claim
        """
        item = self.item
        first = f"SELECT {item.run_at_time} AS run_at {self._waiting(suspects=False, past=past)}"
        suspect_due_in = "NULL::interval"
        if item.mapping.suspicion is not None:
            # All of them, because there are few, and with a LIMIT the planner may walk over all other rows first.
            suspects = f"SELECT min({item.run_at_time}) AS run_at {self._waiting(suspects=True, past=past)}"
            suspect_due_in = self._first_due(suspects)
        return f"""
SELECT {self._first_due(f"{first} ORDER BY {item.run_at} LIMIT 1")} AS due_in,
       {suspect_due_in} AS suspect_due_in"""

    def _first_due(self, of_kind: str) -> str:
        wanted = self.item.wanted("unnest($1::text[]) AS wanted (kind)")
        return f"""(SELECT {readable("min(first.run_at)")} - {self.item.now} FROM ({wanted}) AS wanted
    CROSS JOIN LATERAL ({of_kind}) AS first)"""

    def _waiting(self, *, suspects: bool, past: bool) -> str:
        item = self.item
        return f"""FROM {item.table} AS item
        WHERE {item.ready} AND {item.is_kind("wanted.kind")} AND {item.suspects(wanted=suspects)}
          AND {self._is_in_shard(2)}{self._is_past(4) if past else ""}"""

    @cached_property
    def finish_in(self) -> str:
        """For a handler's own transaction, which fails if the lock was lost. Each parameter is used once, in order.

        $1 id, $2 claim, $3 result
        """
        item, mapping = self.item, self.item.mapping
        first_run_at = mapping.run_at_columns[0]
        assigned = {
            **self.unlocked,
            **self.now_in(mapping.updated_at),
            first_run_at: item.run_at_when_final,
        }
        if mapping.states is not None:
            assigned[mapping.states.column] = item.final_value(JobState.SUCCEEDED)
        elif mapping.error_code is not None:
            assigned[mapping.error_code] = "NULL"
        if mapping.completed_at is not None and (mapping.states is None or mapping.completes(mapping.states.succeeded)):
            assigned[mapping.completed_at] = item.value(mapping.completed_at, "moment.now")
        if mapping.result is not None:
            assigned[mapping.result] = item.value(mapping.result, "given.result")
        return f"""
WITH {self.moment},
given AS MATERIALIZED (SELECT $1::uuid AS id, $2::uuid AS claim, $3::text AS result),
done AS (
    UPDATE {item.table} AS item SET {item.set(assigned)}
    FROM given, moment
    WHERE {item.has_id("given.id")} AND {item.is_held("given")}
    RETURNING 1
)
SELECT {quoted(item.schema)}.held_or_raise(count(*) = 1, {literal(mapping.name)}) FROM done"""
