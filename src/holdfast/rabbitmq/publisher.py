"""Publishes wake-ups in the background: a producer hands over an ID and carries on, no matter what the broker does."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from datetime import timedelta
from uuid import UUID

from holdfast.rabbitmq.subscriber import Trigger


class Publisher:
    """One task that publishes. A wake-up only means "look", so one stands for all that have arrived since.

    A wake-up that the broker did not take is retried until the broker takes it or the publisher is closed.
    """

    def __init__(self, trigger: Trigger, *, patience: timedelta = timedelta(seconds=2)) -> None:
        """Call this on the event loop that will publish."""
        self._trigger = trigger
        self._patience = patience.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._newest: UUID | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def hand_over(self, job_ids: Sequence[UUID]) -> None:
        """Never waits. May be called from any thread; ids that arrive after `close` are ignored."""
        if job_ids and not self._loop.is_closed():
            if asyncio.get_running_loop() is self._loop:
                self._take(job_ids[0])
            else:
                self._loop.call_soon_threadsafe(self._take, job_ids[0])

    async def close(self) -> None:
        """Close after one last try if something is left to publish. Takes little more than `patience`."""
        self._closing.set()
        try:
            if self._task is not None:
                await asyncio.wait([self._task], timeout=self._patience)
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            await self._trigger.close()

    def _take(self, job_id: UUID) -> None:
        if self._closing.is_set():
            return
        self._newest = job_id
        if self._task is None or self._task.done():
            # In a new context, because its log lines are not about the job whose handler happened to enqueue first.
            self._task = self._loop.create_task(self._publish_all(), name="holdfast-publisher", context=Context())

    async def _publish_all(self) -> None:
        while self._newest is not None:
            newest, self._newest = self._newest, None
            is_last = self._closing.is_set()
            if await self._trigger.publish([newest], at_once=is_last):
                continue
            if is_last:
                return
            self._newest = self._newest or newest
            await self._pause(self._trigger.rest)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
