"""Runs one measurement in a process of its own, on the event loop that a worker has.

What is measured and what it is measured against are so under the same conditions, and the process that counts and
shows the figures takes no part.
"""

import asyncio
import gc
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from holdfast.domain.errors import HoldfastError
from holdfast.store.postgres.driver import translated

_PATIENCE_SECONDS = 600.0

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Task(Protocol[Result_co]):
    """Values only: it travels to the other process, and its result comes back."""

    async def run(self) -> Result_co: ...


class MeasurementFailed(HoldfastError):
    """A process of the benchmark ended, or does nothing any more."""


async def run_apart(task: Task[Result]) -> Result:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    # A file for the result, not a pipe: a megabyte through one came back cut off once.
    with tempfile.TemporaryFile() as answer:
        # A session of its own: Ctrl-C in the terminal is for us, who then end it.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__,
            stdin=asyncio.subprocess.PIPE, stdout=answer, stderr=asyncio.subprocess.PIPE,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                _, err = await process.communicate(pickle.dumps(task))
        except TimeoutError:
            raise MeasurementFailed(f"{type(task).__name__} was not done after {_PATIENCE_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise MeasurementFailed(f"{type(task).__name__} failed: {last[0]}")
        answer.seek(0)
        result: Result = pickle.load(answer)  # noqa: S301 - from the process that we started
        return result


async def run_all_apart(tasks: Sequence[Task[Result]]) -> list[Result]:
    """At the same time; if one fails, none goes on."""
    running = [asyncio.ensure_future(run_apart(task)) for task in tasks]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The one of `holdfast worker`."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _main() -> None:
    task: Task[object] = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
    # What is there by now stays; see holdfast worker, which does the same.
    gc.freeze()
    with asyncio.Runner(loop_factory=loop_factory()) as runner, translated():
        result = runner.run(task.run())
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    _main()
