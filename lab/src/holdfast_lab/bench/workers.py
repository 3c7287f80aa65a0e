"""Real `holdfast worker` processes with default settings, on the benchmark's store."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen

from holdfast_lab.bench.apart import MeasurementFailed
from holdfast_lab.bench.place import Place

StartWorker = Callable[[Sequence[str], Path], "Popen[bytes]"]

_TURN_SECONDS = 0.02
_PATIENCE_SECONDS = 60.0


@asynccontextmanager
async def started_workers(
    place: Place, start_worker: StartWorker, count: int, *options: str
) -> AsyncIterator["Workers"]:
    """Run workers for a block. When the block ends, they stop and have written everything they did."""
    arguments = ["--app", "holdfast_lab.bench.app:app", "--store", place.url, "--schema", place.schema]
    log = place.folder / "workers.log"
    processes = [start_worker([*arguments, *options], log) for _ in range(count)]
    try:
        yield Workers(place, processes, log)
        for process in processes:
            process.terminate()
        await asyncio.gather(*(asyncio.to_thread(process.wait, _PATIENCE_SECONDS) for process in processes))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                await asyncio.to_thread(process.wait)


class Workers:
    def __init__(self, place: Place, processes: "Sequence[Popen[bytes]]", log: Path) -> None:
        self._place = place
        self._processes = processes
        self._log = log

    async def until_asleep(self) -> None:
        """Wait until all workers have looked, found nothing due, and sleep."""

        async def is_awake() -> bool:
            sleepers: int = await self._place.value("sleepers")
            return sleepers < len(self._processes)

        await self._while(is_awake)

    async def until_finished(self, jobs: int) -> None:
        """Wait until this many jobs have finished since the store was empty."""

        async def is_unfinished() -> bool:
            finished: int = await self._place.value("finished")
            return finished < jobs

        await self._while(is_unfinished)

    async def _while(self, condition: Callable[[], Awaitable[bool]]) -> None:
        last, changed = -1, time.monotonic()
        while await condition():
            finished = await self._place.value("finished")
            if finished != last:
                last, changed = finished, time.monotonic()
            if any(process.poll() is not None for process in self._processes):
                raise MeasurementFailed(f"a worker ended by itself{self._last_words()}")
            if time.monotonic() - changed > _PATIENCE_SECONDS:
                raise MeasurementFailed(f"no job finished for {_PATIENCE_SECONDS:.0f} s{self._last_words()}")
            await asyncio.sleep(_TURN_SECONDS)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return f"; its last line: {lines[-1]}" if lines else ""
