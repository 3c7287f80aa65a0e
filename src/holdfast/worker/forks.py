"""Handlers may fork. A fork that neither exits nor becomes another program must not continue as a second worker.

It has a copy of everything: the sockets, the jobs, the call stack back into the engine. So it exits where its handler's
code ends, without touching any of that.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Value = TypeVar("Value")
SignalHandler = Callable[[int, FrameType | None], None]

_generation = 0
"""How many forks lie between the program and this process. It names the process, and is cheaper than a process ID."""
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""The event loops that run handlers, and the thread ID of each."""
_signal_handlers: dict[int, SignalHandler] = {}
_signal_masks = threading.local()


def this_process() -> int:
    """Return what `end_fork` needs to recognize a fork of this process."""
    return _generation


def end_fork(home: int) -> None:
    """Exit if this process is a fork. Call this where a handler's code ends, with `this_process()` from its start."""
    if _generation != home:
        os._exit(_exit_code(sys.exc_info()[1]))


async def ended_in_forks(work: Awaitable[Value]) -> Value:
    home = this_process()
    try:
        return await work
    finally:
        end_fork(home)


def end_forks_in_loop() -> None:
    """Make forks of this thread exit when they return to the event loop, which they would otherwise serve too."""
    _loops[asyncio.get_running_loop()] = threading.get_ident()


def handle_signal(number: int, handler: SignalHandler) -> Any:  # noqa: ANN401 - as in `signal`
    """Like `signal.signal`, but forks get the default effect, because they have nothing to shut down.

    Without this, `terminate()` of multiprocessing would have no effect.
    """
    _signal_handlers[number] = handler
    return signal.signal(number, handler)


def _exit_code(raised: BaseException | None) -> int:
    """The exit code that Python would give, for a handler that waits for its fork."""
    code = raised.code if isinstance(raised, SystemExit) else int(raised is not None)
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def _hold_signals() -> None:
    """A signal that a fork receives before it has the default handlers has to wait for them.

    A handler in Python could not replace them: it runs after the current call, which may be a long sleep.
    """
    _signal_masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _signal_handlers)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _signal_masks.before)


def _begin_fork() -> None:
    global _generation
    _generation += 1
    for number, handler in _signal_handlers.items():
        if signal.getsignal(number) == handler:
            signal.signal(number, signal.SIG_DFL)
    _release_signals()
    _end_in_loop()


def _end_in_loop() -> None:
    for loop, thread in _loops.items():
        if thread == threading.get_ident() and loop.is_running():
            _cut_off(loop)
            loop.call_soon(os._exit, 1)


def _cut_off(loop: asyncio.AbstractEventLoop) -> None:
    """Before the fork exits, its loop may still run ready callbacks and poll for more.

    The sockets are shared with the worker: a reply that the fork reads, or a request that it sends a second time, would
    break the worker's conversation with PostgreSQL. So replace all of them with a socket whose other end is closed.
    """
    ours, other = socket.socketpair()
    other.close()
    with ours:
        for number in _watched(loop):
            os.dup2(ours.fileno(), number, inheritable=False)


def _watched(loop: Any) -> Iterable[int]:  # noqa: ANN401 - neither kind of loop publishes this
    """The file descriptors that the loop watches."""
    if hasattr(loop, "_selector"):
        return list(loop._selector.get_map())
    # uvloop. Linux lists them; elsewhere a fork inherits no kqueue, so it cannot take replies.
    listed = Path(f"/proc/self/fdinfo/{loop._get_backend_id()}")
    lines = listed.read_text().splitlines() if listed.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_begin_fork)
