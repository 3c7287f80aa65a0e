"""Replaces the few names through which the engine reaches the real world while a schedule runs.

These are its clock, randomness, log, tracebacks, and the thread of its lease keeper. Everything else is unchanged.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID

from holdfast.domain import budget, claim, failures
from holdfast.domain.tracebacks import Traced
from holdfast.runtime import background, queue_runner, queue_runs, tick
from holdfast.scheduling import board, due, job_schedules
from holdfast.worker import (
    attempt_log,
    blocked,
    claimer,
    executor,
    finisher,
    held,
    lease_keeper,
    looking,
    loop,
    losses,
    not_stopped,
    renewing,
    starts,
    store_time,
    suspects,
    unheard,
    worker,
)
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast_lab.faults.simulation.loop import Machine

_MODULES: tuple[ModuleType, ...] = (
    *(budget, claim, failures),
    *(attempt_log, blocked, claimer, executor, finisher, held, lease_keeper, looking, loop, losses, not_stopped),
    *(renewing, starts, store_time, suspects, unheard, worker),
    *(background, queue_runner, queue_runs, tick),
    *(board, due, job_schedules),
)
_FAILED_SECONDS = 0.5


@contextmanager
def replaced_names(machine: Machine, random: Random, tell: Callable[[str], None]) -> Iterator[None]:
    """`tell` gets the unforeseen errors: those that the engine caught and logged with a traceback."""
    replacements: dict[str, object] = {
        "time": SimpleNamespace(monotonic=machine.monotonic),
        "lease_now": machine.monotonic,
        "Random": lambda: random,
        "uuid4": lambda: UUID(int=random.getrandbits(128)),
        "log": _Log(tell),
        # Tracebacks are never read here, and would take a twentieth of the time.
        "traced": lambda _raised: Traced("", ""),
        "stack_of": lambda _frame: Traced("", ""),
        "LeaseKeeper": _KeeperInLoop,
        # Half as often as usual, because looking at the clock makes up most of what happens in a schedule.
        "_WATCH_SECONDS": 0.1,
        # Leases are short here, and so are the times for which handlers block the loop.
        "_BLOCKED_SECONDS": 0.1,
    }
    changed: list[tuple[ModuleType, str, object]] = []
    for module in _MODULES:
        names = vars(module)
        changed += [(module, name, names[name]) for name in replacements if name in names]
    for module, name, _ in changed:
        setattr(module, name, replacements[name])
    try:
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


class _KeeperInLoop(LeaseKeeper):
    """Runs on a second event loop instead of a thread: it pauses and dies with its process, but nothing blocks it."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop().owner.keeper_loop  # type: ignore[attr-defined]
        self._task = asyncio.Task(self._keep_on(), loop=loop)

    @property
    def is_alive(self) -> bool:
        return self._task is None or not self._task.done()

    def join(self, timeout: float) -> None:
        """Return at once: the keeper already knows that it must stop."""

    async def _pause(self, seconds: float) -> None:
        """Sleep twice as long, which its margins allow, because its looks are most of what happens in a schedule."""
        await asyncio.sleep(2 * seconds if self._held_jobs() else max(2 * seconds, self._default_lease / 8))

    async def _keep_on(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._keep()
            except Exception:  # noqa: BLE001 - logged below
                lease_keeper.log.exception("lease keeper failed, starting again")
                await asyncio.sleep(_FAILED_SECONDS)


class _Log:
    """Logs nothing, but passes on messages with a traceback, because those errors were not foreseen."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def info(self, message: str, **values: object) -> None:
        """Ignore it."""

    def failure(self, level: int, message: str, traceback: str, **values: object) -> None:
        """Ignore it."""

    def is_enabled_for(self, level: int) -> bool:  # noqa: ARG002
        return False

    def warning(self, message: str, *, exc_info: Any = None, **_values: object) -> None:  # noqa: ANN401
        if exc_info:
            error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
            self._tell(f"{message}: {type(error).__name__}: {error}")

    error = warning

    def exception(self, message: str, **_values: object) -> None:
        self.warning(message, exc_info=True)
