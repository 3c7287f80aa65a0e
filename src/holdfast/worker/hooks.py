"""What an app can put around its handlers: a lifespan for each process, and functions that wrap each attempt."""

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from holdfast.domain.errors import InvalidInput, shown
from holdfast.domain.framework import Framework, TransactionLeftOpen
from holdfast.domain.handlers import Handlers, Isolation, RunningJob
from holdfast.worker.forks import end_fork, this_process
from holdfast.worker.lifespan import Lifespan

Call = Callable[[], Awaitable[Any]]
Around = Callable[[RunningJob[Any], Call], Awaitable[Any]]
OpenState = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Takes the app and returns the context manager in which its handlers run."""


class App(Protocol):
    """What a child process needs from the app."""

    @property
    def handlers(self) -> Handlers: ...

    @property
    def lifespan(self) -> OpenState | None: ...

    @property
    def _framework(self) -> Framework | None: ...


_apps: WeakSet[App] = WeakSet()
"""The apps with a lifespan that were created in this process."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """`lifespan` is for the worker's process; `open_state` opens one in a child."""

    lifespan: Lifespan = field(default_factory=Lifespan)
    open_state: OpenState | None = None
    around: Sequence[Around] = ()
    framework: Framework | None = None

    @classmethod
    def of(cls, app: App, around: Sequence[Around]) -> "Hooks":
        if app.lifespan is not None:
            _check_children(app)
        return replace(cls.without_children(app, around), open_state=app.lifespan)

    @classmethod
    def without_children(cls, app: App, around: Sequence[Around]) -> "Hooks":
        lifespan = Lifespan() if app.lifespan is None else Lifespan(partial(app.lifespan, app))
        return cls(lifespan, None, around, app._framework)

    def wrapped(self, job: RunningJob[Any], call: Call) -> Awaitable[Any]:
        """Wrap the call in all functions. The function that was declared first is the outermost."""
        for around in reversed(self.around):
            call = partial(around, job, call)
        return call()


def tidied(framework: Framework | None, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of a handler or runner, with the framework's connections tidy before and after it.

    A fork of the handler ends here without tidying: the connections are the worker's.
    """
    if framework is None:
        return function

    async def awaited(argument: object) -> object:
        home = this_process()
        framework.tidy()
        try:
            value = await function(argument)
        except BaseException:
            end_fork(home)
            framework.tidy()
            raise
        end_fork(home)
        # Shielded, because the connections must be tidied even if the attempt is canceled now.
        if await asyncio.shield(asyncio.wrap_future(framework.tidy())):
            raise TransactionLeftOpen
        return value

    def called(argument: object) -> object:
        home = this_process()
        framework.tidy()
        try:
            value = function(argument)
        except BaseException:
            end_fork(home)
            framework.tidy()
            raise
        end_fork(home)
        if framework.tidy().result():
            raise TransactionLeftOpen
        return value

    return awaited if inspect.iscoroutinefunction(function) else called


def check_around(function: Around) -> Around:
    if not inspect.iscoroutinefunction(function):
        raise InvalidInput("around: give an async def that awaits the attempt: return await call()")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise InvalidInput(f"around: must take the job and the call ({error})") from None
    return function


def check_lifespan(open_state: object) -> None:
    if open_state is not None and not callable(open_state):
        raise InvalidInput(f"lifespan: {shown(open_state)} is not a function; give one that takes the app")


def remember(app: App) -> None:
    """Register the app, so that a child process finds it after importing the handler."""
    _apps.add(app)


def lifespan_of(open_state: OpenState, kind: str) -> Lifespan:
    """In a child process: the lifespan of the app that has this `open_state` and a handler of this kind."""
    for app in _apps:
        if app.lifespan is open_state and app.handlers.get(kind) is not None:
            return Lifespan(partial(open_state, app))
    raise InvalidInput(
        f"lifespan: the process of {kind!r} finds no app with it; create the app when its module is imported"
    )


def _check_children(app: App) -> None:
    kind = next((handler.kind for handler in app.handlers if handler.isolation is Isolation.PROCESS), None)
    if kind is None:
        return
    try:
        pickle.dumps(app.lifespan)
    except Exception as error:
        raise InvalidInput(
            f"lifespan: {shown(app.lifespan)} cannot be imported by the process of {kind!r}; define it in a module, "
            "not inside a function"
        ) from error
