"""Tracebacks and stacks without Holdfast's own frames, so that they show the application's code."""

import asyncio
import logging
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import FrameType
from typing import NamedTuple

_MOST_FRAMES = 30
_HOLDFAST = f"{Path(__file__).parents[1]}{os.sep}"
_CALLERS = tuple(f"{_HOLDFAST}{name}" for name in ("worker/", "runtime/", "hosting/", "scheduling/inline"))
"""The code that calls handlers and runner functions. Its frames say nothing about the application."""
_EVENT_LOOP = f"{Path(asyncio.__file__).parent}{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_COMPILED = (".pyx", ".pxd")
"""Sources of compiled packages, which tracebacks name by a relative path."""
_TURN_OF_LOOP = tuple(f"{_EVENT_LOOP}{name}.py" for name in ("runners", "base_events", "events"))


class Traced(NamedTuple):
    text: str
    place: str
    """File, line and function, in the application's own code if any of it ran. Contains no values, so it is safe in any
    log."""


def traced(raised: BaseException) -> Traced:
    """The traceback of an error, empty if it was never raised. At log level DEBUG it includes every frame."""
    if raised.__traceback__ is None:
        return Traced("", "")
    shown = TracebackException(type(raised), raised, raised.__traceback__, limit=-_MOST_FRAMES)
    place = _place(_of_application(shown.stack))
    if not is_debugging():
        for each in _with_causes(shown):
            each.stack = StackSummary.from_list(_of_application(each.stack))
    return Traced("".join(shown.format()), place)


def stack_of(frame: FrameType) -> Traced:
    """The current stack of a thread."""
    frames = list(traceback.extract_stack(frame))
    # Unlike in a traceback, the event loop's frames are always at the bottom here, so they are cut off too.
    known = _of_application(frames, (*_CALLERS, *_TURN_OF_LOOP))
    return Traced("".join(traceback.format_list(frames if is_debugging() else known)), _place(known))


def is_debugging() -> bool:
    return logging.getLogger("holdfast").isEnabledFor(logging.DEBUG)


def _place(frames: Sequence[FrameSummary]) -> str:
    frame = next((each for each in reversed(frames) if not _is_of_library(each.filename)), frames[-1])
    return f"{frame.filename.removeprefix(f'{Path.cwd()}{os.sep}')}:{frame.lineno} in {frame.name}"


def _is_of_library(file: str) -> bool:
    return (
        file.startswith((_STANDARD_LIBRARY, "<frozen "))
        or file.endswith(_COMPILED)
        or any(packages in file for packages in _PACKAGES)
    )


def _with_causes(shown: TracebackException) -> Iterator[TracebackException]:
    left, seen = [shown], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left += filter(None, [each.__cause__, each.__context__, *(each.exceptions or ())])


def _of_application(frames: Iterable[FrameSummary], callers: tuple[str, ...] = _CALLERS) -> list[FrameSummary]:
    """The frames from the handler on, or all frames if only Holdfast's code was running."""
    known = _written(list(frames))
    last_caller = max((number for number, each in enumerate(known) if each.filename.startswith(callers)), default=-1)
    called = dropwhile(lambda each: each.filename.startswith(_EVENT_LOOP), known[last_caller + 1 :])
    return [each for each in called if not each.filename.startswith(_HOLDFAST)] or known


def _written(frames: list[FrameSummary]) -> list[FrameSummary]:
    """Without the constructors of Holdfast's dataclasses, which have no file."""
    callers = ["", *(each.filename for each in frames)]
    return [
        each
        for each, caller in zip(frames, callers, strict=False)
        if each.filename != "<string>" or not caller.startswith(_HOLDFAST)
    ]
