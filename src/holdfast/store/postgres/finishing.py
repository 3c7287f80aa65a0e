"""Finishing: the outcomes of attempts, written by the lease that owns them; a lease that is lost changes nothing."""

from collections.abc import Iterable, Sequence

from holdfast.domain.crash_points import reach
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.job import Lease
from holdfast.domain.json_text import encode
from holdfast.domain.lifecycle import KEPT_ERRORS, PLAIN_SUCCESS, Move, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres.claiming import Claiming
from holdfast.store.postgres.driver import LeaseLocked
from holdfast.store.postgres.leasing import lease_columns
from holdfast.store.postgres.sql_files import quoted


class Finishing(Claiming):
    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        if not finishes:
            return []
        plain = [finish for finish in finishes if _is_plain(finish.transition)]
        rest = finishes if not plain else [finish for finish in finishes if not _is_plain(finish.transition)]
        done: set[int] = set()
        if plain:
            done.update(await self._finish_plain([finish.lease for finish in plain]))
        if rest:
            if plain:
                reach("finish.between")
            done.update(await self._finish_any(rest))
        return await self._fenced([finish.lease for finish in finishes], done)

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        return await self.finish([Finish(lease, Transition(Move.RELEASE)) for lease in leases])

    @property
    def finish_in(self) -> FinishInTransaction:
        """The statement with which a handler finishes its job in its own transaction."""
        function = f"{quoted(self.schema)}.finish_in_transaction"
        return FinishInTransaction(f"SELECT {function}($1::uuid, $2::bigint, $3::uuid, $4::text)")

    async def _finish_plain(self, leases: Sequence[Lease]) -> Iterable[int]:
        """Most jobs succeed without a result, and then three columns say it all. Returns the fences that did it."""
        ids, fences, holders = lease_columns(leases)
        try:
            ((refused,),) = await self.fetch("finish_succeeded", ids, fences, holders)
        except LeaseLocked:
            return await self._finish_any([Finish(lease, PLAIN_SUCCESS) for lease in leases])
        return fences if not refused else set(fences).difference(refused)

    async def _finish_any(self, finishes: Sequence[Finish]) -> Iterable[int]:
        """The fences of those that were finished."""
        transitions = [finish.transition for finish in finishes]
        try:
            rows = await self.fetch(
                "finish",
                *lease_columns([finish.lease for finish in finishes]),
                [transition.move.value for transition in transitions],
                [transition.state.value for transition in transitions],
                [transition.delay for transition in transitions],
                [transition.at for transition in transitions],
                [_error_text(transition) for transition in transitions],
                [transition.result for transition in transitions],
                KEPT_ERRORS,
            )
        finally:
            if any(transition.move is Move.RELEASE for transition in transitions):
                # Not before: a claim beside it would look where they are not back yet, and remember that.
                self.forget_floors()
        return [row["fence"] for row in rows]

    async def _fenced(self, leases: Sequence[Lease], done: set[int]) -> list[Fenced]:
        missing = [lease for lease in leases if lease.fence not in done]
        if not missing:
            return [Fenced.DONE] * len(leases)
        rows = await self.fetch("why_not_held", *lease_columns(missing))
        reasons = dict(zip(missing, (Fenced(row["fenced"]) for row in rows), strict=True))
        return [reasons.get(lease, Fenced.DONE) for lease in leases]


def _is_plain(transition: Transition) -> bool:
    return transition is PLAIN_SUCCESS or transition == PLAIN_SUCCESS


def _error_text(transition: Transition) -> str | None:
    return None if transition.error is None else encode(transition.error.as_dict())
