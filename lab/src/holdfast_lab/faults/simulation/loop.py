"""Event loops under one virtual clock: several threads of several processes take turns in one real thread.

A seeded random source chooses the next loop and, in some schedules, the order of ready callbacks within a loop, so a
seed determines the schedule. Time passes only when all loops are idle, plus a little with every callback.
"""

import asyncio
import contextvars
import heapq
import math
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Generic, TypeVar

STEP_SECONDS = 0.00001
"""The duration of a callback. Without it, a loop that never rests would stop the clock and go unnoticed."""

Owner = TypeVar("Owner")


class Call:
    """A callback that waits for its turn or its time. asyncio calls this a handle."""

    __slots__ = ("_when", "args", "call", "context", "is_canceled")

    def __init__(
        self, when: float, call: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self._when = when
        self.call = call
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.is_canceled = False

    def cancel(self) -> None:
        self.is_canceled = True

    def cancelled(self) -> bool:
        return self.is_canceled

    def when(self) -> float:
        return self._when


class Machine:
    """The clock, all timers, and the choice of the next loop."""

    def __init__(self, random: Random, *, is_orderly: bool) -> None:
        """`is_orderly`: each loop runs its callbacks in the order of their arrival, as real loops do."""
        self.now = 1000.0
        self.steps = 0
        self.jolt_in = math.inf
        """After this many callbacks, `on_jolt` is called with the running loop, between two callbacks."""
        self.on_jolt: Callable[[VirtualLoop[Any]], None] = lambda _loop: None
        self.on_failure: Callable[[str], None] = lambda _what: None
        self.random = random
        self.is_orderly = is_orderly
        self._loops: list[VirtualLoop[Any]] = []
        self._timers: list[tuple[float, int, VirtualLoop[Any] | None, Call]] = []
        self._timers_made = 0
        self._running: VirtualLoop[Any] | None = None
        # A timer that is never due, so that the heap is never empty.
        self.add_timer(None, Call(math.inf, nothing, (), _NO_CONTEXT))

    def monotonic(self) -> float:
        return self.now

    def open(self, owner: Owner) -> "VirtualLoop[Owner]":
        loop = VirtualLoop(self, owner)  # type: ignore[abstract]
        self._loops.append(loop)
        return loop

    def close(self, loop: "VirtualLoop[Any]") -> None:
        """Close the loop so that nothing runs on it anymore, not even cleanup."""
        loop.end()
        self._loops.remove(loop)

    def after(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Schedule an event in the world outside all processes."""
        self.add_timer(None, Call(self.now + seconds, call, args, _NO_CONTEXT))

    def add_timer(self, loop: "VirtualLoop[Any] | None", call: Call) -> None:
        self._timers_made += 1
        heapq.heappush(self._timers, (call.when(), self._timers_made, loop, call))

    def run(self, is_over: Callable[[], bool], until: float) -> None:
        """Run until `is_over` or the time `until`. `is_over` is asked after each event outside the loops."""
        self.after(until - self.now, nothing)
        running = asyncio._get_running_loop()
        timers, loops, random = self._timers, self._loops, self.random.random
        try:
            while not is_over() and self.now < until:
                has_happened = False
                while not has_happened:
                    able, soonest = [], timers[0][0]
                    for loop in loops:
                        if loop.ready:
                            if loop.held_until <= self.now:
                                able.append(loop)
                            elif loop.held_until < soonest:
                                soonest = loop.held_until
                    if able:
                        loop = able[0] if len(able) == 1 else able[int(random() * len(able))]
                        if loop is not self._running:
                            # Only on a change, because this asks the system for the process id, which takes time.
                            asyncio._set_running_loop(loop)
                            self._running = loop
                        loop.turn()
                    else:
                        self.now = soonest
                    while timers[0][0] <= self.now:
                        has_happened |= self._ring(*heapq.heappop(timers))
        finally:
            asyncio._set_running_loop(running)
            self._running = None

    def _ring(self, _when: float, _number: int, loop: "VirtualLoop[Any] | None", call: Call) -> bool:
        """Make a loop's due callback ready, or run an event in the outside world. Returns whether it was the latter."""
        if loop is None:
            call.call(*call.args)
            return True
        if not call.is_canceled and not loop.is_ended:
            if call.call is _WAKE:
                # The end of a sleep: the task that it wakes gets its own turn.
                call.call(*call.args)
            else:
                loop.ready.append(call)
        return False


def nothing() -> None:
    """An event that does nothing, but makes the machine ask whether it is over."""


_NO_CONTEXT = contextvars.Context()
_WAKE = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]


class VirtualLoop(asyncio.AbstractEventLoop, Generic[Owner]):
    """One thread's event loop, with only those methods that the engine needs."""

    def __init__(self, machine: Machine, owner: Owner) -> None:
        self.owner = owner
        self.held_until = -math.inf
        """It does not turn before this time, because its process is paused or a handler blocks it."""
        self.ready: list[Call] = []
        self.is_ended = False
        self._machine = machine

    def turn(self) -> None:
        """Run the callbacks that are ready now. Those that become ready in the meantime run in the next turn."""
        machine = self._machine
        batch, self.ready = self.ready, []
        if not machine.is_orderly and len(batch) > 1:
            machine.random.shuffle(batch)
        for number, call in enumerate(batch):
            if call.is_canceled:
                continue
            machine.steps += 1
            machine.now += STEP_SECONDS
            machine.jolt_in -= 1
            try:
                call.context.run(call.call, *call.args)
            except Exception as error:  # noqa: BLE001 - reported to the oracle
                machine.on_failure(f"{type(error).__name__} in a callback: {error}")
            if machine.jolt_in <= 0:
                machine.on_jolt(self)
            if self.is_ended:
                return
            if self.held_until > machine.now:
                self.ready[:0] = batch[number + 1 :]
                return

    def end(self) -> None:
        self.is_ended = True
        self.ready = []

    def time(self) -> float:
        return self._machine.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Call:
        call = Call(0.0, callback, args, context)
        if not self.is_ended:
            self.ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Call:
        call = Call(when, callback, args, context)
        if not self.is_ended:
            self._machine.add_timer(self, call)
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Call:
        return self.call_at(self._machine.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name or "-", context=context)

    def run_in_executor(
        self,
        executor: object,  # noqa: ARG002 - there is only this thread
        func: Callable[..., Any],
        *args: object,
    ) -> asyncio.Future[Any]:
        """Run it at once: the engine only uses this to wait for the end of a thread, which does not exist here."""
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_ended

    def is_closed(self) -> bool:
        return self.is_ended

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report a task's error that was never retrieved, unless its process has died, which leaves such errors."""
        if not self.is_ended:
            self._machine.on_failure(f"{context.get('message')}: {context.get('exception')!r}")
