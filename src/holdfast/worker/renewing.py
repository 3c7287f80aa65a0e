"""Sends renewals. If the store refuses one, finds it by halves, so that no other lease is lost because of it.

The same goes for progress, which travels with renewals: leases are renewed even if it cannot be stored.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import AccessRefused, ConnectionLost, DuplicateJob, HoldfastError, Unstorable
from holdfast.domain.lease_clock import lease_now
from holdfast.logs.records import get_logger
from holdfast.store.contract import Renewal, Renewer
from holdfast.worker.held import HeldJob

if TYPE_CHECKING:
    from holdfast.worker.lease_keeper import KeeperRules, Stop

log = get_logger("holdfast.lease_keeper")

_REFUSALS = (Unstorable, DuplicateJob)
"""Errors that a single lease may cause."""


class Renewing:
    """Each request has the given seconds to be answered."""

    def __init__(self, rules: "KeeperRules", interrupt: "Callable[[list[Stop]], None]") -> None:
        self._rules = rules
        self._interrupt = interrupt
        self._leaves_progress = False
        """Whether to renew without progress first, because a request with progress failed."""

    async def renew(self, renewer: Renewer, renewals: dict[HeldJob, Renewal], seconds: float) -> None:
        """Renew leases and write their progress. No lease may be lost because its progress, that of another job, or
        another lease is refused."""
        if not self._leaves_progress:
            self._leaves_progress = any(renewal.progress is not None for renewal in renewals.values())
            try:
                await self._send(renewer, renewals, seconds)
            except ConnectionLost:
                raise
            except HoldfastError as error:
                if not self._leaves_progress and not isinstance(error, _REFUSALS):
                    raise
            else:
                self._leaves_progress = False
                return
        bare = {held: replace(renewal, progress=None) for held, renewal in renewals.items()}
        noted = {held: renewal for held, renewal in renewals.items() if renewal.progress is not None}
        await self._renew_each(renewer, [bare], seconds)
        await self._write_each(renewer, noted, seconds)
        self._leaves_progress = False

    async def try_again(self, renewer: Renewer, refused: Mapping[HeldJob, Renewal], seconds: float) -> None:
        """Renew each of these leases alone."""
        await self._renew_each(renewer, [{held: renewal} for held, renewal in refused.items()], seconds)

    async def _renew_each(self, renewer: Renewer, batches: list[dict[HeldJob, Renewal]], seconds: float) -> None:
        """Renew these batches, and split each one that is refused. What there is no time for is left to the next turn,
        which leaves out everything that was answered in this one."""
        end = lease_now() + seconds
        while batches and lease_now() < end:
            batch = batches.pop()
            try:
                await self._send(renewer, batch, seconds)
            except _REFUSALS as error:
                if len(batch) > 1:
                    batches += _halves(batch)
                    continue
                self._leave_out(next(iter(batch)), _reason(error))

    def _leave_out(self, held: HeldJob, why: str) -> None:
        if self._rules.refused(held, lease_now()):
            log.error("the store refuses to renew a lease, trying again", **held.named, why=why)

    async def _write_each(self, renewer: Renewer, noted: dict[HeldJob, Renewal], seconds: float) -> None:
        """Write progress. A report that cannot be written is dropped, because a newer one makes it useless."""
        end = lease_now() + seconds
        batches = [noted] if noted else []
        while batches and lease_now() < end:
            batch = batches.pop()
            try:
                await self._send(renewer, batch, seconds)
            except ConnectionLost:
                raise
            except HoldfastError as error:
                if len(batch) > 1 and not isinstance(error, AccessRefused):
                    batches += _halves(batch)
                    continue
                for held, renewal in batch.items():
                    if self._rules.drop_progress(held, renewal.progress, lease_now()):
                        log.warning("progress report cannot be stored, dropping it", **held.named, why=_reason(error))

    async def _send(self, renewer: Renewer, renewals: dict[HeldJob, Renewal], seconds: float) -> None:
        reach("renew.before")
        sent_at = lease_now()
        try:
            async with asyncio.timeout(seconds):
                answers = await renewer.renew(list(renewals.values()))
        except TimeoutError:
            raise ConnectionLost("the renewal was not answered in time") from None
        reach("renew.after")
        self._interrupt(self._rules.learn(sent_at, renewals, answers))


def _halves(batch: dict[HeldJob, Renewal]) -> list[dict[HeldJob, Renewal]]:
    each = list(batch.items())
    return [dict(each[len(each) // 2 :]), dict(each[: len(each) // 2])]


def _reason(error: HoldfastError) -> str:
    """Unlike its message, the reason of a refusal quotes no value."""
    return error.reason if isinstance(error, Unstorable) else str(error)
