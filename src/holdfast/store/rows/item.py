"""A row of an application's table as SQL expressions: its columns, states and times.

Every statement calls the row `item`. Names and constants are quoted here and nowhere else. Only `due` and
`payload_query` are the developer's own SQL.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import md5

from holdfast.domain.job import DEFAULT_PRIORITY, JobState
from holdfast.domain.lifecycle import MOST_LOSSES, MOST_LOSSES_IN_COMPANY, SUSPECT
from holdfast.store.postgres.sql_files import quoted
from holdfast.store.rows.columns import INTEGERS, LOCAL_TIME, TEXTS, Column, Columns, table_name
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.quoting import identifier, literal

_ALIAS = re.compile(r"\bitem\s*\.\s*")
_CALLED = re.compile(r"(\w+)\s*\(")
_NO_CALLS = frozenset({"in", "and", "or", "not", "any", "all", "coalesce", "nullif", "lower", "upper", "length", "abs"})
_CHANGING = re.compile(r"\b(?:select|current_\w+|localtime\w*|session_user|user)\b|::", re.IGNORECASE)
_UNKNOWN = Column("text", "text")


def readable(time: str) -> str:
    """Clamp a time to the years that Python supports. An infinite or distant time would make the whole answer
    unreadable, or a computation with it fail."""
    first, last = "timestamptz '0001-01-02Z'", "timestamptz '9999-12-30Z'"
    return f"CASE WHEN {time} < {first} THEN {first} WHEN {time} > {last} THEN {last} ELSE {time} END"


@dataclass(frozen=True)
class Item:
    mapping: Rows
    columns: Columns
    schema: str
    prefix: str = "item."
    """Empty in the definition of an index, which has no alias."""

    @property
    def table(self) -> str:
        return table_name(self.mapping)

    @property
    def now(self) -> str:
        return f"{quoted(self.schema)}.now()"

    @property
    def next_fence(self) -> str:
        """Higher than the row's last fence, whatever the clock does; see schema/functions/claim.sql."""
        now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        return f"greatest({now}, {self.at(self.mapping.fence)} + 1)"

    def type_of(self, column: str) -> str:
        return self.columns.get(column, _UNKNOWN).type

    def at(self, column: str) -> str:
        return f"{self.prefix}{identifier(column)}"

    def value(self, column: str, expression: str, *, cut: bool = False) -> str:
        """An expression as this column stores it. A column without a time zone is treated as UTC, as ORMs do.

        A value too long for its column makes the statement fail, unless `cut` is set.
        """
        kept = self.columns.get(column, _UNKNOWN)
        if kept.type in TEXTS and not cut:
            return f"({expression})::{kept.type}"
        if kept.type == LOCAL_TIME:
            return f"(({expression}) AT TIME ZONE 'UTC')::{kept.whole_type}"
        return f"({expression})::{kept.whole_type}"

    def time(self, column: str) -> str:
        """A column's time, with its time zone."""
        return f"({self.at(column)} AT TIME ZONE 'UTC')" if self.type_of(column) == LOCAL_TIME else self.at(column)

    def readable_time(self, column: str) -> str:
        return readable(self.time(column))

    def text(self, column: str | None, otherwise: str = "NULL::text") -> str:
        return otherwise if column is None else f"{self.at(column)}::text"

    def set(self, values: Mapping[str | None, str]) -> str:
        """Assignments for the columns that the mapping has."""
        return ", ".join(f"{identifier(name)} = {expression}" for name, expression in values.items() if name)

    # The row and its identity

    @property
    def key(self) -> str:
        return self.at(self.mapping.key)

    @property
    def key_type(self) -> str:
        return self.type_of(self.mapping.key)

    def is_row(self, key: str) -> str:
        """`= ANY (ARRAY[…])` keeps the planner from reversing a join; see schema/tables.sql."""
        return f"{self.key} = ANY (ARRAY[{key}])"

    @cached_property
    def id(self) -> str:
        """The job id: a UUID key itself; a hash of the mapping's name, then the number; else a hash of name and key."""
        if self.key_type == "uuid":
            return self.key
        if self.key_type in INTEGERS:
            first_half = md5(self.mapping.name.encode(), usedforsecurity=False).hexdigest()[:16]
            return f"({literal(first_half)} || lpad(to_hex({self.key}::bigint), 16, '0'))::uuid"
        return f"md5({literal(self.mapping.name + ':')} || {self.key}::text)::uuid"

    def has_id(self, id: str) -> str:
        """A condition that can use an index: on the key, or for text keys on the hash."""
        if self.key_type == "uuid":
            return self.is_row(id)
        if self.key_type in INTEGERS:
            # Not cast to the key's type: another mapping's id may contain a number outside its range.
            number = f"('x' || right(replace({id}::text, '-', ''), 16))::bit(64)::bigint"
            return f"{self.is_row(number)} AND {self.id} = {id}"
        return f"{self.id} = ANY (ARRAY[{id}])"

    def is_held(self, lease: str) -> str:
        """Whether `lease` still has the lock, judged by its claim."""
        claim, locked_until = self.at(self.mapping.claim), self.at(self.mapping.locked_until)
        return f"{claim} = {lease}.claim AND {locked_until} IS NOT NULL"

    # States

    @property
    def completed_at(self) -> str:
        """For tables without states, which must have this column."""
        return self.at(self.mapping.completed_at or "")

    @property
    def state_column(self) -> str:
        return "" if self.mapping.states is None else self.at(self.mapping.states.column)

    def _is_one_of(self, values: Iterable[str]) -> str:
        return f"{self.state_column} IN ({', '.join(map(literal, values))})"

    @property
    def due(self) -> str:
        """The mapping's condition. For an index, only if it certainly means the same at any time and in any session."""
        if self.prefix:
            return self.mapping.due
        calls = {name.lower() for name in _CALLED.findall(self.mapping.due)} - _NO_CALLS
        return "" if calls or _CHANGING.search(self.mapping.due) else _ALIAS.sub("", self.mapping.due)

    @cached_property
    def ready(self) -> str:
        """Also the predicate of the claim's index, so it contains only constants."""
        states = self.mapping.states
        conditions = [
            self._is_one_of(states.claimable) if states else f"{self.completed_at} IS NULL",
            f"{self.at(self.mapping.locked_until)} IS NULL",
        ]
        if self.due:
            conditions.append(f"({self.due})")
        return " AND ".join(conditions)

    @cached_property
    def is_live(self) -> str:
        """A row of this mapping that is not final. A claimable value under a lock was set back by hand."""
        states = self.mapping.states
        return self._is_one_of(states.live) if states else f"{self.completed_at} IS NULL"

    @cached_property
    def running(self) -> str:
        """Whether this mapping has the lock, when several mappings share the lock columns of a table."""
        own = self.is_live
        if self.mapping.states is None and self.mapping.due:
            own += f" AND ({self.due})"
        return f"{self.at(self.mapping.locked_until)} IS NOT NULL AND {own}"

    @cached_property
    def state(self) -> str:
        """The row's state in Holdfast's words, or null if the row does not belong to this mapping."""
        states = self.mapping.states
        if states is None:
            done = f"{self.completed_at} IS NOT NULL"
            failed = f"{done} AND {self.at(self.mapping.error_code or '')} IS NOT NULL"
            return (
                f"CASE WHEN {self.running} THEN 'running' WHEN {failed} THEN 'failed' WHEN {done} THEN 'succeeded' "
                f"WHEN {self.ready} THEN 'ready' END"
            )
        live = f"WHEN {self.state_column} = {literal(states.running)} THEN 'running' " if states.running else ""
        final = " ".join(f"WHEN {self._is_one_of(values)} THEN '{state}'" for state, values in states.meaning())
        ready = f"WHEN {self._is_one_of(states.claimable)} THEN 'ready'"
        return f"CASE WHEN {self.running} THEN 'running' {live}{ready} {final} END"

    def state_value(self, expression: str) -> str:
        states = self.mapping.states
        return "" if states is None else self.value(states.column, expression)

    def value_back(self, attempt: str) -> str:
        """The value that a row had before its claim. A claim that does not change the value needs no memory."""
        states = self.mapping.states
        if states is None or states.running is None:
            return self.state_column
        first = states.claimable[0]
        again = states.retry if states.retry in states.claimable else first
        if again == first:
            return self.state_value(literal(first))
        return self.state_value(f"CASE WHEN {attempt} > 0 THEN {literal(again or first)} ELSE {literal(first)} END")

    def final_value(self, state: JobState) -> str:
        states = self.mapping.states
        return "" if states is None else self.state_value(literal(states.value_of(state)))

    @property
    def state_key(self) -> str | None:
        return self.mapping.states.column if self.mapping.states else None

    # Times and order

    @cached_property
    def run_at(self) -> str:
        columns = [self.at(column) for column in self.mapping.run_at_columns]
        return columns[0] if len(columns) == 1 else f"COALESCE({', '.join(columns)})"

    @property
    def run_at_time(self) -> str:
        return f"({self.run_at} AT TIME ZONE 'UTC')" if self._run_at_is_local else self.run_at

    @property
    def _run_at_is_local(self) -> bool:
        return self.type_of(self.mapping.run_at_columns[0]) == LOCAL_TIME

    def moment(self, now: str) -> str:
        """The store's time in the type of run_at, so a comparison can use an index."""
        return f"({now}) AT TIME ZONE 'UTC'" if self._run_at_is_local else now

    @property
    def run_at_when_final(self) -> str:
        """Null, which means that nothing is planned, if another column takes over then."""
        first = self.mapping.run_at_columns[0]
        return "NULL" if len(self.mapping.run_at_columns) > 1 else self.at(first)

    @cached_property
    def order(self) -> list[tuple[str, str]]:
        """The expressions that the claim sorts by, each with its direction."""
        if self.mapping.order:
            return [
                (self.at(column.removeprefix("-")), " DESC" if column.startswith("-") else "")
                for column in self.mapping.order
            ]
        urgency = [(self.at(self.mapping.priority), "")] if self.mapping.priority else []
        return [*urgency, (self.run_at, ""), (self.key, "")]

    # Counters and limits

    @property
    def attempt(self) -> str:
        return f"coalesce({self.at(self.mapping.attempt)}, 0)"

    @property
    def losses(self) -> str:
        return "0" if self.mapping.losses is None else f"coalesce({self.at(self.mapping.losses)}, 0)"

    @property
    def limit_of_attempts(self) -> str:
        fixed = "NULL" if self.mapping.attempts is None else str(self.mapping.attempts)
        column = self.mapping.max_attempts
        return f"{fixed}::integer" if column is None else f"coalesce({self.at(column)}, {fixed})::integer"

    @property
    def is_last_loss(self) -> str:
        """Whether a lost lease ends the row: the last crash; without suspects, the last loss; without losses, the last
        attempt."""
        if self.mapping.suspicion is not None:
            return f"({self.runs_alone} AND {self.suspicion_after_loss} - {SUSPECT} >= {self.crash_limit})"
        if self.mapping.losses is not None:
            return f"{self.losses} + 1 >= {MOST_LOSSES_IN_COMPANY}"
        return f"{self.attempt} >= coalesce({self.limit_of_attempts}, {MOST_LOSSES_IN_COMPANY})"

    def after_loss(self) -> dict[str | None, str]:
        """Assignments for the counters. At the limit, both stay as they are, and so do the remaining attempts."""
        losses = self.mapping.losses
        return {
            losses: f"least({self.losses} + 1, {MOST_LOSSES})",
            self.mapping.attempt if losses else None: f"{self.attempt} - ({self.losses} >= {MOST_LOSSES})::integer",
            self.mapping.suspicion: self.suspicion_after_loss,
        }

    @property
    def suspicion(self) -> str:
        return "0" if self.mapping.suspicion is None else f"coalesce({self.at(self.mapping.suspicion)}, 0)"

    @property
    def crash_limit(self) -> str:
        return "0" if self.mapping.crash_limit is None else f"coalesce({self.at(self.mapping.crash_limit)}, 0)"

    @property
    def runs_alone(self) -> str:
        return f"{self.crash_limit} > 0"

    @property
    def suspicion_after_loss(self) -> str:
        """The same as lifecycle.suspicion_after_loss."""
        more = f"{self.suspicion} + 1"
        return f"""CASE WHEN {self.runs_alone} THEN least({more}, {MOST_LOSSES})
                 ELSE greatest({self.suspicion}, least({more}, {SUSPECT})) END"""

    @property
    def rest_after_loss(self) -> str:
        """The same as lifecycle.rest_after_crash."""
        if self.mapping.suspicion is None:
            return "interval '0'"
        seconds = f"least(2 ^ least({self.suspicion} - {SUSPECT}, 6), 60)"
        return f"""CASE WHEN {self.runs_alone} AND {self.suspicion} >= {SUSPECT}
                 THEN {seconds} * interval '1 second' ELSE interval '0' END"""

    def suspects(self, *, wanted: bool) -> str:
        if self.mapping.suspicion is None:
            return "true"
        column = self.at(self.mapping.suspicion)
        return f"{column} >= {SUSPECT}" if wanted else f"({column} < {SUSPECT} OR {column} IS NULL)"

    @property
    def cancel_requested(self) -> str:
        column = self.mapping.cancel_requested
        return "false" if column is None else f"coalesce({self.at(column)}, false)"

    # The job

    @property
    def kind(self) -> str:
        column = self.mapping.kind_column
        return f"{literal(self.mapping.kind or '')}::text" if column is None else f"{self.at(column)}::text"

    @property
    def kind_is_enum(self) -> bool:
        return self.columns.get(self.mapping.kind_column or "", _UNKNOWN).is_enum

    def wanted(self, source: str, columns: str = "") -> str:
        """The kinds of `source` in the column's type, so an index can be used; no row can have any other kind."""
        if not self.kind_is_enum:
            return f"SELECT wanted.kind{columns} FROM {source}"
        labels = f"unnest(enum_range(NULL::{self.type_of(self.mapping.kind_column or '')})) AS label (kind)"
        return f"SELECT label.kind{columns} FROM {source} JOIN {labels} ON label.kind::text = wanted.kind"

    def is_kind(self, kind: str) -> str:
        column = self.mapping.kind_column
        if column is None:
            return "true"
        if self.kind_is_enum:
            return f"{self.at(column)} = {kind}"
        return f"{self.at(column)}{'' if self.type_of(column) in TEXTS else '::text'} = {kind}"

    @property
    def payload(self) -> str:
        mapping = self.mapping
        if mapping.payload is not None:
            return f"coalesce({self.text(mapping.payload)}, 'null')"
        if mapping.payload_query:
            return (
                f"coalesce((SELECT to_json(payload)::text FROM ({mapping.payload_query}) AS payload LIMIT 1), 'null')"
            )
        if mapping.payload_columns:
            chosen = ", ".join(f"{self.at(column)} AS {identifier(column)}" for column in mapping.payload_columns)
            return f"(SELECT to_json(payload)::text FROM (SELECT {chosen}) AS payload)"
        return "to_json(item)::text"

    def job(self, *, payload: str) -> str:
        """The columns that claims and readers share."""
        mapping = self.mapping
        given = "NULL" if mapping.priority is None else self.at(mapping.priority)
        priority = f"coalesce({given}, {DEFAULT_PRIORITY})"
        created = self.now if mapping.created_at is None else self.readable_time(mapping.created_at)
        return f"""{self.id} AS id, {self.kind} AS kind, {priority}::integer AS priority, {payload} AS payload,
               {self.text(mapping.headers)} AS headers, coalesce({self.text(mapping.tenant)}, '') AS tenant,
               coalesce({self.text(mapping.correlation_id)}, {self.id}::text) AS correlation_id,
               {self.attempt}::integer AS attempt, {self.losses}::integer AS losses,
               {self.limit_of_attempts} AS max_attempts, {created} AS created_at"""

    def note_error(self, code: str, message: str, whole: str) -> dict[str | None, str]:
        """Assignments for the last error. A null error keeps the previous one."""
        mapping, assigned = self.mapping, dict[str | None, str]()
        for column, expression in ((mapping.error_code, code), (mapping.error_message, message)):
            if column is not None:
                assigned[column] = f"coalesce({self.value(column, expression, cut=True)}, {self.at(column)})"
        if mapping.error is not None:
            moment = "to_char(moment.now AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
            noted = f"(({whole})::jsonb || jsonb_build_object('attempt', {self.attempt}, 'at', {moment}))::text"
            assigned[mapping.error] = f"coalesce({self.value(mapping.error, noted)}, {self.at(mapping.error)})"
        return assigned
