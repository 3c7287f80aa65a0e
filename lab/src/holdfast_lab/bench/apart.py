"""Runs one measurement in a separate process, on the same kind of event loop as a worker.

Holdfast and its limit are thus measured under the same conditions, and the process that collects and shows the figures
does not take part.
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
    """Holds values only, because the task is sent to another process and its result comes back."""

    async def run(self) -> Result_co: ...


class MeasurementFailed(HoldfastError):
    """A benchmark process ended unexpectedly or makes no progress."""


async def run_apart(task: Task[Result]) -> Result:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    # A file for the result, not a pipe: one result of a megabyte came back truncated.
    with tempfile.TemporaryFile() as answer:
        # A separate session, so that Ctrl-C in the terminal reaches only this process, which then kills the other one.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__,
            stdin=asyncio.subprocess.PIPE, stdout=answer, stderr=asyncio.subprocess.PIPE,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                _, err = await process.communicate(pickle.dumps(task))
        except TimeoutError:
            raise MeasurementFailed(f"{type(task).__name__} did not finish within {_PATIENCE_SECONDS:.0f} s") from None
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
    """Run the tasks at the same time. If one fails, end them all."""
    running = [asyncio.ensure_future(run_apart(task)) for task in tasks]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop that `holdfast worker` uses."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _main() -> None:
    task: Task[object] = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
    # Exempt the objects made so far from garbage collection, as `holdfast worker` does.
    gc.freeze()
    with asyncio.Runner(loop_factory=loop_factory()) as runner, translated():
        result = runner.run(task.run())
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    _main()
