"""All the ways a handler can end that an engine might not expect."""

import asyncio
from collections.abc import Callable
from typing import Any, Never

from holdfast import RunningJob

FINE = ""


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot even say what is wrong")


def _raising(error: BaseException) -> Callable[[], Never]:
    def end() -> Never:
        raise error

    return end


def _recursing() -> int:
    return _recursing() + 1


def _canceling() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()


def _nested() -> object:
    value: object = 0
    for _ in range(5_000):
        value = [value]
    return value


BAD_ENDS: dict[str, Callable[[], object]] = {
    "error": _raising(RuntimeError("bad")),
    "error that cannot be shown": _raising(_Speechless()),
    "error with NUL and a lone surrogate": _raising(RuntimeError("\x00 \udc80")),
    "error of 10 MB": _raising(RuntimeError("long" * 2_500_000)),
    "error group": _raising(BaseExceptionGroup("both", [KeyboardInterrupt(), RuntimeError("bad")])),
    "recursion": _recursing,
    "sys.exit": _raising(SystemExit(1)),
    "Ctrl-C": _raising(KeyboardInterrupt()),
    "GeneratorExit": _raising(GeneratorExit()),
    "StopIteration": _raising(StopIteration()),
    "CancelledError": _raising(asyncio.CancelledError()),
    "cancels its task": _canceling,
    "result that is no JSON": object,
    "result that is not a number": lambda: float("nan"),
    "result with NUL": lambda: {"\x00": "\x00"},
    "result with a lone surrogate": lambda: "\udc80",
    "result of 10 MB": lambda: "long" * 2_500_000,
    "result too deep": _nested,
}
NOT_BAD = frozenset({"cancels its task"})
"""The work was done and nothing awaited the cancellation: a success, like any task that ends before it is canceled."""


def badly(how: str, job: RunningJob[dict[str, Any]]) -> object:
    return {"fence": job.fence} if how == FINE else BAD_ENDS[how]()
