"""A real replica of an inline runner: `python -m tests.scheduling.inline_replica URL NAME FOLDER`.

Its function writes a line when it starts and waits until the test creates the file `gate`.
"""

import asyncio
import os
import sys
from pathlib import Path

from holdfast.domain.budget import Budget
from holdfast.scheduling.schedules import Occurrence
from holdfast.store.opening import opened
from tests.scheduling.schedule_steps import Replica


async def main(url: str, name: str, folder: Path) -> None:
    async def wait_for_the_gate(occurrence: Occurrence) -> dict[str, object]:
        with (folder / "journal").open("a") as journal:
            journal.write(f"{name} {occurrence.at} {os.getpid()}\n")
        while not (folder / "gate").exists():  # noqa: ASYNC110 - the signal comes from another process
            await asyncio.sleep(0.01)
        return {"by": name}

    async with opened(url) as store:
        runner = Replica(name, store.schedules, store.runs).inline(wait_for_the_gate)
        report = await runner.run(Budget(), to_end=True)
        await runner.close(0)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
