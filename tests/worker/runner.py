"""A real worker process: `python -m tests.worker.runner URL SETTINGS`, stopped by SIGTERM."""

import asyncio
import json
import logging
import os
import signal
import sys

import uvloop

from holdfast.domain.duration import to_timedelta
from holdfast.types import WorkerSettings
from tests.worker import jobs, transactional

_DURATIONS = ("lease", "poll", "shutdown")


async def work(url: str, given: dict[str, object]) -> int:
    values = {"concurrency": 4, "lease": "30s", "poll": "50ms", "shutdown": "10s"} | given
    for name in _DURATIONS:
        values[name] = to_timedelta(values[name])
    async with transactional.register(jobs.build(url)) as app:
        worker = app.worker(WorkerSettings(**values))  # type: ignore[arg-type]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        code = await worker.run()
    sys.stdout.write(f"tally {json.dumps(worker.tally)}\n")
    return code


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(work(sys.argv[1], json.loads(sys.argv[2])))
        sys.stdout.flush()
        if "os._exit" in sys.argv:
            # Like `holdfast worker`: a coroutine that swallows its cancellation keeps an event loop from closing.
            os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
