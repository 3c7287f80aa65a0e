"""Processes of a side (side.py). They take one step per input line and answer with numbers."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from bench.targets.against.checkouts import Side
from bench.targets.workers import Stuck, last_words

_PATIENCE_SECONDS = 600.0
_STOP_SECONDS = 60.0


class Program:
    def __init__(self, side: Side, process: asyncio.subprocess.Process, log: Path) -> None:
        self._side = side
        self._process = process
        self._log = log

    async def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def hear(self, seconds: float = _PATIENCE_SECONDS) -> list[float]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise Stuck(f"{self._side.name} said nothing for {seconds:.0f} s") from None
        if not line:
            raise Stuck(f"{self._side.name} ended by itself{last_words(self._log)}")
        answer: list[float] = json.loads(line)
        return answer

    async def step(self, line: str, seconds: float = _PATIENCE_SECONDS) -> list[float]:
        await self.tell(line)
        return await self.hear(seconds)

    async def end(self) -> None:
        """End in an orderly way: a producer at the end of its input, a worker by a signal."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            raise Stuck(f"{self._side.name} did not stop within {_STOP_SECONDS:.0f} s") from None
        if code:
            raise Stuck(f"{self._side.name} ended with {code}{last_words(self._log)}")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def started(side: Side, log: Path, *words: str) -> AsyncIterator[Program]:
    """Start a program and wait until it is ready. It ends with the block."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *side.command(*words),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output,
            env=side.environment(), cwd=log.parent, start_new_session=True,
        )  # fmt: skip
    try:
        program = Program(side, process, log)
        await program.hear()
        yield program
        await program.end()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def started_worker(side: Side, log: Path, *words: str) -> AsyncIterator[Program]:
    """Start a worker, which a signal stops at the end of the block. It waits for `tell` before it works."""
    async with started(side, log, *words) as program:
        yield program
        program.stop()


async def done(side: Side, log: Path, *words: str) -> None:
    """Run a program and wait for it to end."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *side.command(*words), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            env=side.environment(), cwd=log.parent, start_new_session=True,
        )  # fmt: skip
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        raise Stuck(f"{side.name}: {words[0]} ended with {code}{last_words(log)}")
