"""`python -m holdfast_lab.faults.recorder SOCKET FILE`: writes down the notes it receives until its input ends."""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TextIO


async def keep(path: Path, output: TextIO) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A process that is still connected at the end is dead or about to be.
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            while line := await reader.readline():
                value = {"at": round(time.monotonic(), 6), **json.loads(line)}
                output.write(json.dumps(value) + "\n")
                writer.write(b".")
            writer.close()

    async with await asyncio.start_unix_server(serve, path):
        print("ready", flush=True)  # noqa: T201 - the laboratory waits for this line
        # The laboratory holds the other end, which also closes when the laboratory is killed.
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    path, file = Path(sys.argv[1]), Path(sys.argv[2])
    with file.open("a", buffering=1) as output:
        asyncio.run(keep(path, output))


if __name__ == "__main__":
    main()
