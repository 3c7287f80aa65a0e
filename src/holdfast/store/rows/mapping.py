"""Says which column of an application's table has which role for Holdfast.

`Rows` is a value that describes one queue in one table, and is checked when it is created. sql.py builds the SQL for
it, and check.py finds what the table lacks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import DEFAULT_QUEUE, JobState, check_attempts, check_name
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.parts import Part
from holdfast.store.rows.quoting import check_identifier, check_sql

_PART_OF_COLUMN: Final = {
    "priority": Part.PRIORITIES,
    "tenant": Part.TENANTS,
    "correlation_id": Part.CORRELATION_IDS,
    "headers": Part.HEADERS,
    "max_attempts": Part.ATTEMPT_LIMITS,
    "losses": Part.LOSSES,
    "suspicion": Part.SUSPECTS,
    "crash_limit": Part.SUSPECTS,
    "cancel_requested": Part.CANCEL_REQUESTS,
    "result": Part.RESULTS,
    "error": Part.WHOLE_ERRORS,
    "started_at": Part.STARTS,
    "completed_at": Part.ENDS,
    "kind_column": Part.ANY_KIND,
}
_NEEDED = ("key", "attempt", "locked_by", "locked_until", "claim", "fence")
_WRITTEN = (
    "attempt", "locked_by", "locked_until", "claim", "fence", "locked_at", "started_at", "completed_at", "updated_at",
    "losses", "suspicion", "crash_limit", "result", "cancel_requested", "error", "error_code", "error_message",
)  # fmt: skip
_OPTIONAL = (
    *_PART_OF_COLUMN, "error_code", "error_message", "locked_at", "updated_at", "created_at", "payload",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStates:
    """The state column and its values. Of Holdfast's states, only `succeeded` and `failed` need a value.

    `ready`: the values that can be claimed; a new row has the first. `running`: written by a claim; without it, only
    the lock columns show that a row runs. `retry`: written when an attempt failed and will be repeated; without it, the
    value stays, and a value that is not in `ready` hands the row to another mapping. `codes`: the final value for each
    error code. `incomplete`: final values that do not set `completed_at`, because another mapping continues with them.
    """

    column: str
    ready: str | tuple[str, ...]
    succeeded: str
    failed: str
    running: str | None = None
    retry: str | None = None
    dead: str | None = None
    canceled: str | None = None
    codes: Mapping[str, str] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_identifier("states.column", self.column)
        ready = (self.ready,) if isinstance(self.ready, str) else _several("states.ready", self.ready)
        object.__setattr__(self, "ready", ready)
        object.__setattr__(self, "incomplete", _several("states.incomplete", self.incomplete))
        if not isinstance(self.codes, Mapping):
            raise InvalidInput(
                f"states.codes: {self.codes!r} is not a mapping; give values by code, {{'CODE': 'value'}}"
            )
        object.__setattr__(self, "codes", dict(self.codes))
        if not self.ready:
            raise InvalidInput("states.ready: name at least one value that can be claimed")
        for value in self.values:
            if not isinstance(value, str) or not value or "\0" in value:
                raise InvalidInput(f"states: {value!r} is not a value of a state column; give it as text")
        if self.running in self.claimable:
            raise InvalidInput(
                f"states: {self.running!r} is both ready and running; omit `running` if no value marks it"
            )
        if self.retry is not None and (
            self.retry == self.running or self.retry in set(self.final) - set(self.incomplete)
        ):
            what = "running" if self.retry == self.running else "final"
            raise InvalidInput(f"states: {self.retry!r} is {what}, so a row that will be retried cannot have it")
        for value in self.final:
            if value in self.claimable or value == self.running:
                raise InvalidInput(f"states: {value!r} is final, so it cannot be ready or running as well")
        for value in self.incomplete:
            if value not in self.final:
                raise InvalidInput(f"states.incomplete: {value!r} is not a final value; name final values only")

    @property
    def claimable(self) -> tuple[str, ...]:
        return self.ready if isinstance(self.ready, tuple) else (self.ready,)

    @property
    def values(self) -> tuple[str, ...]:
        """All values that the column may have for this mapping, without duplicates."""
        live = (*self.claimable, self.running, self.retry)
        return tuple(dict.fromkeys(value for value in (*live, *self.final) if value is not None))

    @property
    def live(self) -> tuple[str, ...]:
        """The values of a row that is not final, with or without a lock."""
        return self.claimable if self.running is None else (self.running, *self.claimable)

    @property
    def final(self) -> tuple[str, ...]:
        """All final values, without duplicates."""
        values = (self.succeeded, self.failed, self.dead, self.canceled, *self.codes.values())
        return tuple(dict.fromkeys(value for value in values if value is not None))

    def value_of(self, state: JobState, code: str | None = None) -> str:
        """Return the value to write for a final state. An error code may have its own value."""
        if state.is_dead_letter and code is not None and code in self.codes:
            return self.codes[code]
        by_state = {
            JobState.SUCCEEDED: self.succeeded,
            JobState.FAILED: self.failed,
            JobState.DEAD: self.dead,
            JobState.CANCELED: self.canceled,
        }
        return by_state[state] or self.failed

    def meaning(self) -> Iterator[tuple[JobState, tuple[str, ...]]]:
        """Map final values back to states. If two states share a value, the first of them in this order applies."""
        taken: set[str] = set()
        for state, values in (
            (JobState.SUCCEEDED, (self.succeeded,)),
            (JobState.FAILED, (self.failed, *self.codes.values())),
            (JobState.DEAD, (self.dead,)),
            (JobState.CANCELED, (self.canceled,)),
        ):
            own = tuple(dict.fromkeys(value for value in values if value is not None and value not in taken))
            taken.update(own)
            if own:
                yield state, own


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One queue in an application's own table. All names are columns of that table unless stated otherwise.

    `due` is an SQL condition that a row must meet to be claimed at all; it is a constant of your program.
    `payload_query` is a SELECT whose columns become the payload. Both see the row as `item`. Without a payload setting,
    the payload is the whole row. `order` names columns, with `-column` for highest first; the default is priority,
    run_at, key.

    `run_at` may name several columns: the first that is not null counts, and the first is written. `attempts` limits
    the attempts of every row that does not specify a limit. Without it, the handler's limit applies, which requires a
    `losses` column: otherwise a lost lease counts as an attempt, so the mapping must say how many there may be. Without
    `states`, `completed_at` marks a row as final, and `error_code` tells a failure from a success.

    With `losses`, `suspicion` and `crash_limit`, a row that twice lost its lease while other jobs ran in the same
    worker runs alone, and ends dead only if it then kills its workers.
    """

    name: str
    table: str | tuple[str, ...]
    key: str = "id"
    kind: str | None = None
    """The kind of every row; not a column."""
    kind_column: str | None = None
    states: RowStates | None = None
    due: str = ""
    order: tuple[str, ...] = ()
    payload: str | None = None
    payload_columns: tuple[str, ...] = ()
    payload_query: str = ""
    run_at: str | tuple[str, ...] = "run_at"
    attempt: str = "attempt"
    locked_by: str = "locked_by"
    locked_until: str = "locked_until"
    claim: str = "claim"
    """Together with the key, it identifies one claim forever. `locked_by` is for people."""
    fence: str = "fence"
    locked_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    updated_at: str | None = None
    created_at: str | None = None
    losses: str | None = None
    suspicion: str | None = None
    crash_limit: str | None = None
    priority: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    max_attempts: str | None = None
    headers: str | None = None
    result: str | None = None
    cancel_requested: str | None = None
    error: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    attempts: int | None = None
    """Not a column."""
    queue: str = DEFAULT_QUEUE
    """Not a column: the queue that the worker and `job.queue` see."""

    def __post_init__(self) -> None:
        check_name("rows name", self.name)
        if "," in self.name or self.name != self.name.strip():
            raise InvalidInput(
                f"rows name: {self.name!r} has a comma or a space at an end, so --runners could not name it"
            )
        object.__setattr__(self, "table", _table(self.table))
        object.__setattr__(self, "run_at", (self.run_at,) if isinstance(self.run_at, str) else tuple(self.run_at))
        try:
            for name in ("order", "payload_columns"):
                object.__setattr__(self, name, _several(name, getattr(self, name)))
            self._check()
        except InvalidInput as error:
            raise InvalidInput(f"rows {self.name!r}: {error}") from None

    def _check(self) -> None:
        for name in (*_NEEDED, *_OPTIONAL):
            column = getattr(self, name)
            if column is not None or name in _NEEDED:
                check_identifier(name, column)
        for name, columns in (("run_at", self.run_at_columns), ("payload_columns", self.payload_columns)):
            for column in columns:
                check_identifier(name, column)
        for column in self.order:
            check_identifier("order", column.removeprefix("-") if isinstance(column, str) else column)
        if not self.run_at_columns:
            raise InvalidInput("run_at: name the column with the time before which a row must not be claimed")
        self._check_roles()
        check_sql("due", self.due)
        check_sql("payload_query", self.payload_query)
        check_name("queue", self.queue)
        self._check_choices()

    def _check_roles(self) -> None:
        """Refuse a second role for a column that Holdfast writes."""
        written = {name: getattr(self, name) for name in _WRITTEN if getattr(self, name) is not None}
        written["run_at"] = self.run_at_columns[0]
        if isinstance(self.states, RowStates):
            written["states"] = self.states.column
        read = {name: getattr(self, name) for name in ("key", *_OPTIONAL) if name not in _WRITTEN}
        role_of: dict[str, str] = {}
        for role, column in (*written.items(), *read.items()):
            if column in role_of:
                raise InvalidInput(f"{role}: {column!r} is {role_of[column]} already; give each its own column")
            if role in written:
                role_of[column] = role

    def _check_choices(self) -> None:
        if self.states is not None and not isinstance(self.states, RowStates):
            raise InvalidInput(f"states: {self.states!r} is not RowStates; give RowStates(column=…, ready=…, …)")
        if (self.kind is None) == (self.kind_column is None):
            raise InvalidInput("give the kind of all rows (kind=…) or the column that has it (kind_column=…)")
        if self.kind is not None:
            check_name("kind", self.kind)
        if sum(map(bool, (self.payload, self.payload_columns, self.payload_query))) > 1:
            raise InvalidInput("give one of payload, payload_columns and payload_query")
        if self.attempts is not None:
            check_attempts(self.attempts)
        if self.losses is None and self.attempts is None and self.max_attempts is None:
            raise InvalidInput(
                "without a losses column, a lost lease counts as an attempt, so say how many there may be: attempts=…"
            )
        if len({self.suspicion is None, self.crash_limit is None, self.losses is None or self.suspicion is None}) > 1:
            raise InvalidInput("suspicion and crash_limit belong together and need a losses column; name all of them")
        if self.states is None and (self.completed_at is None or self.error_code is None):
            raise InvalidInput(
                "without states, completed_at ends a row and error_code tells a failure; name both, or give states"
            )

    @property
    def run_at_columns(self) -> tuple[str, ...]:
        return self.run_at if isinstance(self.run_at, tuple) else (self.run_at,)

    @property
    def place(self) -> tuple[str, ...]:
        """Schema and table, or only the table."""
        return self.table if isinstance(self.table, tuple) else (self.table,)

    @property
    def lock_columns(self) -> tuple[str, str, str, str]:
        """The columns that mappings of one table must share, so only one of them holds a row."""
        return self.locked_by, self.locked_until, self.claim, self.fence

    def may_share_table(self, other: "Rows") -> bool:
        """Whether both may use the same table. A name without a schema may be in any schema."""
        schemas = {place[0] for place in (self.place, other.place) if len(place) > 1}
        return self.place[-1] == other.place[-1] and len(schemas) < 2

    def is_told_apart_from(self, other: "Rows") -> bool:
        """Whether the state of a locked row shows which mapping it belongs to. Without states, `due` shows it."""
        if self.states is None or other.states is None:
            return self.states is other.states and bool(self.due and other.due) and self.due != other.due
        return self.states.column == other.states.column and not set(self.states.live) & set(other.states.live)

    @property
    def runner(self) -> str:
        """The name that selects it in `--runners`."""
        return f"rows:{self.name}"

    @property
    def parts(self) -> frozenset[Part]:
        """The optional parts of the store contract that this table supports. Every mapping supports all other parts."""
        kept = {part for name, part in _PART_OF_COLUMN.items() if getattr(self, name) is not None}
        if not self.order:
            kept.add(Part.RUN_ORDER)
        if self.states is not None:
            told_apart = {state for state, _ in self.states.meaning()}
            kept |= {Part.DEAD} if JobState.DEAD in told_apart else set()
            kept |= {Part.CANCELED} if JobState.CANCELED in told_apart else set()
            if self.states.succeeded in self.states.incomplete:
                kept.discard(Part.ENDS)
        return frozenset(kept)

    def migration_sql(self) -> str:
        """Return SQL that adds the columns and indexes that the table may lack. It is harmless if they exist."""
        # Imported here, because that module imports this one.
        from holdfast.store.rows.migration import migration_sql

        return migration_sql(self)

    def value_of(self, transition: Transition) -> str | None:
        """Return what a finish writes into the state column. None: the statement chooses, for a row that goes back."""
        if self.states is None:
            return None
        if transition.state is JobState.READY:
            return self.states.retry if transition.move is Move.RETRY else None
        return self.states.value_of(transition.state, transition.error.code if transition.error else None)

    def completes(self, value: str | None) -> bool:
        return self.states is None or value not in self.states.incomplete


def _several(name: str, given: object) -> tuple[str, ...]:
    """Refuse a plain string, which would be treated as its characters."""
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{name}: {given!r} is not a tuple of names; write a single one as ({str(given)!r},)")
    return tuple(given)


def _table(given: object) -> tuple[str, ...]:
    """Schema and table, or only the table, which PostgreSQL then finds through its search path."""
    if isinstance(given, str):
        parts: tuple[object, ...] = tuple(given.split("."))
        if len(parts) > 2:
            raise InvalidInput(f"table: {given!r} has several dots; give schema and table as a pair of names")
    elif isinstance(given, tuple) and len(given) in (1, 2):
        parts = given
    else:
        raise InvalidInput(f"table: {given!r} is not a table; give 'table', 'schema.table' or a pair of names")
    return tuple(check_identifier("table", part) for part in parts)
