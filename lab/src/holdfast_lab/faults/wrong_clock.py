"""`python -m holdfast_lab.faults.wrong_clock worker …`: the command `holdfast` in a process whose clock is wrong.

Only the wall clock is wrong, which people and programs can set; the monotonic clock keeps running. The clock must be
patched before anything of the engine is imported, so this module imports none of it at the top.
"""

import datetime
import os
import runpy
import time
from typing import Any

SHIFT, JUMP_EVERY = "FAULTS_CLOCK_SHIFT", "FAULTS_CLOCK_JUMP_EVERY"
"""Seconds by which the clock is ahead; for a clock that jumps, how often it goes from there to as far behind."""

_RIGHT_TIME, _RIGHT_DATETIME = time.time, datetime.datetime


def shift_at(moment: float, shift: float, jump_every: float) -> float:
    """How far the clock is ahead at this moment of the monotonic clock."""
    return -shift if jump_every and int(moment / jump_every) % 2 else shift


def make_wrong(shift: float, jump_every: float) -> None:
    import uuid_utils.compat

    def wrong_time() -> float:
        return _RIGHT_TIME() + shift_at(time.monotonic(), shift, jump_every)

    right_uuid7 = uuid_utils.compat.uuid7

    def wrong_uuid7() -> object:
        return right_uuid7(nanoseconds=int(wrong_time() * 1e9))

    class Anything(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _RIGHT_DATETIME)

    class WrongDatetime(datetime.datetime, metaclass=Anything):
        """Makes only ordinary datetimes, so that no code ever sees an instance of this class."""

        def __new__(cls, *args: Any, **named: Any) -> Any:  # noqa: ANN401
            return _RIGHT_DATETIME(*args, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:  # noqa: ANN401
            return _RIGHT_DATETIME.fromtimestamp(wrong_time(), tz)

        @classmethod
        def utcnow(cls) -> Any:  # noqa: ANN401
            return cls.now(datetime.UTC).replace(tzinfo=None)

    patched: list[tuple[Any, str, object]] = [
        (time, "time", wrong_time),
        (time, "time_ns", lambda: int(wrong_time() * 1e9)),
        (datetime, "datetime", WrongDatetime),
        (uuid_utils.compat, "uuid7", wrong_uuid7),
    ]
    for owner, name, wrong in patched:
        setattr(owner, name, wrong)


if __name__ == "__main__":
    make_wrong(float(os.environ[SHIFT]), float(os.environ.get(JUMP_EVERY, "0")))
    runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
