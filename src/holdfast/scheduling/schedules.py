"""Schedules from the application's side: what its code declares, and `app.schedules` for those made at run time.

Neighbours: app.py offers the decorators, cron.py finds the occurrences, job_schedules.py and inline.py act at them,
store/schedules.py keeps schedules.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.domain.cron import DEFAULT_MISSED_LIMIT, Missed, Timetable, parse_timetable
from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import DEFAULT_PRIORITY, check_name
from holdfast.store.schedules import JobTemplate, NewSchedule, Origin, Schedule, ScheduleStore

RESERVED_NAMES = ("queue", "schedules", "maintenance")
MISSED_LIMITS = range(1, 10_001)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What an inline runner's function is called with. `at` is None for an extra run that was asked for."""

    name: str
    at: datetime | None
    run: int
    replica: str


InlineFunction = Callable[[Occurrence], Awaitable[object]] | Callable[[Occurrence], object]
"""`async def`, or plain `def`, which runs in a thread. Returns None, or a dict of counts that is kept with the run."""


@dataclass(frozen=True, slots=True)
class Inline:
    """The function of an inline runner. `lock` is None for the lock that is named after schema and runner."""

    function: InlineFunction
    lock: str | None

    def lock_of(self, schema: str, name: str) -> str:
        """The text of the lock under which one replica at a time runs it."""
        return f"{schema}:runner:{name}" if self.lock is None else self.lock


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule runs, and what becomes of occurrences that were missed. Checked."""

    timetable: Timetable
    missed: Missed
    missed_limit: int


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule in the application's code. Either `job` is there or `inline`."""

    name: str
    timing: Timing
    job: JobTemplate | None = None
    inline: Inline | None = None

    @property
    def timetable(self) -> Timetable:
        return self.timing.timetable

    @property
    def missed(self) -> Missed:
        return self.timing.missed

    @property
    def missed_limit(self) -> int:
        return self.timing.missed_limit

    def as_new(self, now: datetime) -> NewSchedule:
        """As the store takes it, where `now` is the store's clock."""
        return _new_schedule(self.name, self.timing, self.job, Origin.CODE, now)


class Declarations:
    """Everything that the application's code declares, by name, in its order."""

    def __init__(self) -> None:
        self._by_name: dict[str, Declared] = {}

    def add_job(self, name: str, timing: Timing, job: JobTemplate) -> None:
        self._add(Declared(self._new_name(name), timing, job=job))

    def add_inline(self, name: str, timing: Timing, function: Callable[..., Any], lock: str | None) -> None:
        """Several may name the same lock; they then never run at the same time."""
        # A tick's runners are chosen by a list of names with commas between them.
        if "," in self._new_name(name):
            raise InvalidInput(f"runner: {name!r} has a comma, which separates names in --runners")
        if lock is not None:
            check_name("lock", lock)
        self._add(Declared(name, timing, inline=Inline(_taking_an_occurrence(name, function), lock)))

    def _new_name(self, name: str) -> str:
        if check_schedule_name(name) in self._by_name:
            raise InvalidInput(f"schedule {name!r} is declared already; give each one a name of its own")
        return name

    def _add(self, declared: Declared) -> None:
        self._by_name[declared.name] = declared

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Declared]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class Schedules:
    """Schedules as they are in the store: the code's, which a process of the app puts there when it starts, and others.

    A name that is not known is InvalidInput.
    """

    def __init__(self, store: ScheduleStore, declarations: Declarations, handlers: Handlers) -> None:
        self._store = store
        self._declarations = declarations
        self._handlers = handlers

    async def save(
        self,
        name: str,
        timetable: str,
        *,
        kind: str,
        payload: object = None,
        tz: str = "UTC",
        missed: str = Missed.ONCE,
        missed_limit: int = DEFAULT_MISSED_LIMIT,
        queue: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        tenant: str | None = None,
        attempts: int | None = None,
    ) -> None:
        """Add a job schedule, or change the one of that name. With the same timetable it goes on where it was."""
        self._check_not_declared(check_schedule_name(name), "change")
        job = job_template(
            self._handlers, kind, payload, queue=queue, priority=priority, tenant=tenant, attempts=attempts
        )
        timing = to_timing(timetable, tz, missed, missed_limit)
        now = await self._store.now()
        await self._store.save(_new_schedule(name, timing, job, Origin.STORED, now))

    async def remove(self, name: str) -> None:
        """Its jobs stay. One that code declares comes back with the next process that does."""
        self._check_not_declared(name, "remove")
        _check_known(name, await self._store.remove(name))

    async def pause(self, name: str) -> None:
        """No more occurrences until `resume`; `run_now` still works."""
        _check_known(name, await self._store.pause(name))

    async def resume(self, name: str) -> None:
        """Go on with the next occurrence from now: what passed during the pause was not missed."""
        is_resumed = False
        while not is_resumed:
            found = [schedule for schedule in await self._store.list() if schedule.name == name]
            _check_known(name, bool(found))
            occurrence = parse_timetable(found[0].timetable, found[0].zone).next_after(await self._store.now())
            # Not if its timetable was changed since: the occurrence would be one of the old timetable.
            is_resumed = await self._store.resume(found[0], occurrence)

    async def run_now(self, name: str) -> None:
        """Ask for one extra run, as soon as a process looks; also while it is paused.

        Requests that are made before a process looks are answered by one run.
        """
        _check_known(name, await self._store.run_now(name))

    async def list(self) -> "list[Schedule]":
        """All in the store, by name."""
        return await self._store.list()

    def _check_not_declared(self, name: str, verb: str) -> None:
        if name in self._declarations:
            raise InvalidInput(f"schedule {name!r} is declared in the app's code; {verb} it there")


def to_timing(timetable: str, tz: str, missed: str, missed_limit: int) -> Timing:
    try:
        policy = Missed(missed)
    except ValueError:
        raise InvalidInput(f"missed: {missed!r} is not known; use {', '.join(Missed)}") from None
    if not isinstance(missed_limit, int) or isinstance(missed_limit, bool) or missed_limit not in MISSED_LIMITS:
        raise InvalidInput(f"missed_limit: {missed_limit!r} is not a number from 1 to {MISSED_LIMITS[-1]:,}")
    return Timing(parse_timetable(timetable, tz), policy, missed_limit)


def job_template(
    handlers: Handlers,
    kind: str,
    payload: object = None,
    *,
    queue: str | None = None,
    priority: int = DEFAULT_PRIORITY,
    tenant: str | None = None,
    attempts: int | None = None,
) -> JobTemplate:
    """What each occurrence enqueues, checked now rather than at the first occurrence."""
    template = JobTemplate(
        kind=check_name("kind", kind),
        payload=handlers.encode_payload(kind, payload),
        queue=handlers.queue_of(kind) if queue is None else queue,
        priority=priority,
        tenant="" if tenant is None else tenant,
        max_attempts=attempts,
    )
    template.job(template.headers)
    return template


def check_schedule_name(name: str) -> str:
    check_name("schedule", name)
    if name in RESERVED_NAMES:
        raise InvalidInput(f"schedule: {name!r} is the name of one of Holdfast's own runners; choose another")
    return name


def _new_schedule(name: str, timing: Timing, job: JobTemplate | None, origin: Origin, now: datetime) -> NewSchedule:
    timetable = timing.timetable
    return NewSchedule(
        name=name,
        timetable=timetable.text,
        zone=timetable.zone,
        missed=timing.missed,
        missed_limit=timing.missed_limit,
        job=job,
        origin=origin,
        first_occurrence=timetable.next_after(now),
    )


def _check_known(name: str, is_known: bool) -> None:
    if not is_known:
        raise InvalidInput(f"schedule {name!r} is not known; `holdfast schedules list` shows those in the store")


def _taking_an_occurrence(name: str, function: Callable[..., Any]) -> InlineFunction:
    """The function as one that takes the occurrence, also if its author wanted no argument."""
    try:
        signature = inspect.signature(function)
        is_async = inspect.iscoroutinefunction(function)
    except (TypeError, ValueError):
        raise InvalidInput(f"runner {name!r}: {function!r} is not a function") from None
    if _fits(signature, 1):
        return function
    if not _fits(signature, 0):
        raise InvalidInput(f"runner {name!r}: its function must take the occurrence as its one argument, or nothing")
    if is_async:

        async def awaited(_occurrence: Occurrence) -> object:
            return await function()

        return awaited

    def called(_occurrence: Occurrence) -> object:
        return function()

    return called


def _fits(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True
