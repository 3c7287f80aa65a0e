"""Schedules from the application's side: those its code declares, and `app.schedules` for those made at run time.

Neighbors: app.py offers the decorators, cron.py computes the occurrences, job_schedules.py and inline.py act at them,
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
from holdfast.domain.versions import headers_of_version
from holdfast.store.schedules import JobTemplate, NewSchedule, Origin, Schedule, ScheduleStore

RESERVED_NAMES = ("queue", "schedules", "maintenance")
MISSED_LIMITS = range(1, 10_001)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The argument of an inline runner's function. `at` is None for an extra run that was requested.

    `state` is the value that the app's lifespan yielded in this process.
    """

    name: str
    at: datetime | None
    run: int
    replica: str
    state: Any = None


InlineFunction = Callable[[Occurrence], Awaitable[object]] | Callable[[Occurrence], object]
"""An `async def`, or a plain `def`, which runs in a thread. Returns None or a dict of counts to keep with the run."""


@dataclass(frozen=True, slots=True)
class Inline:
    """The function of an inline runner. If `lock` is None, the lock is named after the schema and the runner."""

    function: InlineFunction
    lock: str | None

    def lock_of(self, schema: str, name: str) -> str:
        """The text of the lock that lets one replica at a time run the function."""
        return f"{schema}:runner:{name}" if self.lock is None else self.lock


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule runs, and what happens to missed occurrences. Already validated."""

    timetable: Timetable
    missed: Missed
    missed_limit: int


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule in the application's code. It has either `job` or `inline`."""

    name: str
    timing: Timing
    job: JobTemplate | None = None
    inline: Inline | None = None
    is_every_tick: bool = False
    """If true, `timing` is a placeholder that every_tick.py replaces."""

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
        """The form that the store takes; `now` is the store's clock."""
        return _new_schedule(self.name, self.timing, self.job, Origin.CODE, now)


class Declarations:
    """All schedules in the application's code, by name, in the order of declaration."""

    def __init__(self) -> None:
        self._by_name: dict[str, Declared] = {}

    def add_job(self, name: str, timing: Timing, job: JobTemplate) -> None:
        self._add(Declared(self._new_name(name), timing, job=job))

    def add_inline(
        self,
        name: str,
        timing: Timing,
        function: Callable[..., Any],
        lock: str | None,
        *,
        is_every_tick: bool = False,
    ) -> None:
        """Add an inline runner. Runners with the same lock never run at the same time."""
        # A tick's runners are selected by a comma-separated list of names.
        if "," in self._new_name(name):
            raise InvalidInput(f"runner: {name!r} contains a comma, which separates names in --runners")
        if lock is not None:
            check_name("lock", lock)
        inline = Inline(_taking_an_occurrence(name, function), lock)
        self._add(Declared(name, timing, inline=inline, is_every_tick=is_every_tick))

    def _new_name(self, name: str) -> str:
        if check_schedule_name(name) in self._by_name:
            raise InvalidInput(f"schedule {name!r} is already declared; give each one its own name")
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
    """The schedules in the store, declared or not. Each process of the app saves those in its code on startup.

    An unknown name raises InvalidInput.
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
        """Add a job schedule or change the one of that name. If the timetable stays the same, so does its position."""
        self._check_not_declared(check_schedule_name(name), "change")
        job = job_template(
            self._handlers, kind, payload, queue=queue, priority=priority, tenant=tenant, attempts=attempts
        )
        timing = to_timing(timetable, tz, missed, missed_limit)
        now = await self._store.now()
        await self._store.save(_new_schedule(name, timing, job, Origin.STORED, now))

    async def remove(self, name: str) -> None:
        """Remove a schedule; its jobs stay. If other code declares it, the next process to do so restores it."""
        self._check_not_declared(name, "remove")
        _check_known(name, await self._store.remove(name))

    async def pause(self, name: str) -> None:
        """Stop all occurrences until `resume`; `run_now` still works."""
        _check_known(name, await self._store.pause(name))

    async def resume(self, name: str) -> None:
        """Continue with the next occurrence from now. Occurrences during the pause do not count as missed."""
        is_resumed = False
        while not is_resumed:
            found = [schedule for schedule in await self._store.list() if schedule.name == name]
            _check_known(name, bool(found))
            occurrence = parse_timetable(found[0].timetable, found[0].zone).next_after(await self._store.now())
            # Fails if the timetable has changed in the meantime, because the occurrence is one of the old timetable.
            is_resumed = await self._store.resume(found[0], occurrence)

    async def run_now(self, name: str) -> None:
        """Request one extra run as soon as a process looks, even while the schedule is paused.

        One run satisfies all requests that were made before a process looked.
        """
        _check_known(name, await self._store.run_now(name))

    async def list(self) -> "list[Schedule]":
        """All schedules in the store, ordered by name."""
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
    """The job that each occurrence enqueues, checked now instead of at the first occurrence."""
    template = JobTemplate(
        kind=check_name("kind", kind),
        payload=handlers.encode_payload(kind, payload),
        queue=handlers.queue_of(kind) if queue is None else queue,
        priority=priority,
        tenant="" if tenant is None else tenant,
        headers=headers_of_version(handlers.version_of(kind)),
        max_attempts=attempts,
    )
    template.job(template.headers)
    return template


def check_schedule_name(name: str) -> str:
    check_name("schedule", name)
    if name in RESERVED_NAMES:
        raise InvalidInput(f"schedule: {name!r} is the name of one of Holdfast's own runners; choose another name")
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
    """Wrap the function so that it takes the occurrence, even if it was written without parameters."""
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
