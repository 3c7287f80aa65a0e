"""The few names through which the engine reaches the real world, replaced while a schedule runs.

Its clock, its randomness, its log and tracebacks, and the thread of its lease keeper; everything else is as it is.
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
from holdfast.runtime import background, queue_runner, queue_runs, tick
from holdfast.scheduling import board, due, job_schedules
from holdfast.worker import (
    claimer,
    executor,
    finisher,
    held,
    lease_keeper,
    looking,
    loop,
    losses,
    store_time,
    suspects,
    unheard,
    worker,
)
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast_lab.faults.simulation.loop import Machine

_MODULES: tuple[ModuleType, ...] = (
    *(budget, claim, failures),
    *(claimer, executor, finisher, held, lease_keeper, looking, loop, losses, store_time, suspects, unheard, worker),
    *(background, queue_runner, queue_runs, tick),
    *(board, due, job_schedules),
)
_FAILED_SECONDS = 0.5


@contextmanager
def replaced_names(machine: Machine, random: Random, tell: Callable[[str], None]) -> Iterator[None]:
    """`tell` hears of errors that the engine has caught, logged with their traceback, and did not foresee."""
    replacements: dict[str, object] = {
        "time": SimpleNamespace(monotonic=machine.monotonic),
        "lease_now": machine.monotonic,
        "Random": lambda: random,
        "uuid4": lambda: UUID(int=random.getrandbits(128)),
        "log": _Log(tell),
        # Nobody reads them, and they would take a twentieth of the time.
        "traceback": SimpleNamespace(format_exception=_no_lines),
        "LeaseKeeper": _KeeperInLoop,
        # Half as often: in a second of a schedule little more happens than that somebody looks at the clock.
        "_WATCH_SECONDS": 0.1,
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


def _no_lines(*_error: object, **_how: object) -> list[str]:
    return []


class _KeeperInLoop(LeaseKeeper):
    """Its thread is the second event loop of its process: it is paused and dies with it, but nothing blocks it."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop().owner.keeper_loop  # type: ignore[attr-defined]
        self._task = asyncio.Task(self._keep_on(), loop=loop)

    @property
    def is_alive(self) -> bool:
        return self._task is None or not self._task.done()

    def join(self, timeout: float) -> None:
        """Nothing to wait for: it has heard that it is to stop."""

    async def _pause(self, seconds: float) -> None:
        """Twice as long, which its margins allow: its looks are most of what happens in a schedule."""
        await asyncio.sleep(2 * seconds if self._held_jobs() else max(2 * seconds, self._default_lease / 8))

    async def _keep_on(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._keep()
            except Exception:  # noqa: BLE001 - logged below
                lease_keeper.log.exception("lease keeper failed, starting again")
                await asyncio.sleep(_FAILED_SECONDS)


class _Log:
    """Says nothing, but passes on what comes with a traceback: that is what nobody foresaw."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def info(self, message: str, **values: object) -> None:
        """Nobody reads it."""

    def warning(self, message: str, *, exc_info: Any = None, **_values: object) -> None:  # noqa: ANN401
        if exc_info:
            error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
            self._tell(f"{message}: {type(error).__name__}: {error}")

    error = warning

    def exception(self, message: str, **_values: object) -> None:
        self.warning(message, exc_info=True)
