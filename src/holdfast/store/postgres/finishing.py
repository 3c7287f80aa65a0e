"""Finishing: the outcomes of attempts, written by the lease that owns them; a lease that is lost changes nothing."""

from collections.abc import Sequence
from uuid import UUID

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
        plain = [number for number, finish in enumerate(finishes) if _is_plain(finish.transition)]
        missing = await self._finish_plain(finishes, plain) if plain else []
        if len(plain) < len(finishes):
            if plain:
                reach("finish.between")
            rest = [number for number, finish in enumerate(finishes) if not _is_plain(finish.transition)]
            missing += await self._finish_any(finishes, rest)
        return await self._fenced(finishes, missing)

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        return await self.finish([Finish(lease, Transition(Move.RELEASE)) for lease in leases])

    @property
    def finish_in(self) -> FinishInTransaction:
        """The statement with which a handler finishes its job in its own transaction."""
        function = f"{quoted(self.schema)}.finish_in_transaction"
        return FinishInTransaction(f"SELECT {function}($1::uuid, $2::uuid, $3::text)")

    async def _finish_plain(self, finishes: Sequence[Finish], numbers: Sequence[int]) -> list[int]:
        """Most jobs succeed without a result, and then two columns say it all. Returns which were not finished."""
        try:
            ((refused,),) = await self.fetch("finish_succeeded", *_names(finishes, numbers))
        except LeaseLocked:
            return await self._finish_any(finishes, numbers)
        return [numbers[place - 1] for place in refused or ()]

    async def _finish_any(self, finishes: Sequence[Finish], numbers: Sequence[int]) -> list[int]:
        """Which of these were not finished."""
        transitions = [finishes[number].transition for number in numbers]
        try:
            rows = await self.fetch(
                "finish",
                *_names(finishes, numbers),
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
        done = {row[0] - 1 for row in rows}
        return [number for place, number in enumerate(numbers) if place not in done]

    async def _fenced(self, finishes: Sequence[Finish], missing: Sequence[int]) -> list[Fenced]:
        answers = [Fenced.DONE] * len(finishes)
        if missing:
            rows = await self.fetch("why_not_held", *_names(finishes, missing))
            for number, row in zip(missing, rows, strict=True):
                answers[number] = Fenced(row["fenced"])
        return answers


def _names(finishes: Sequence[Finish], numbers: Sequence[int]) -> tuple[list[UUID], list[UUID]]:
    return lease_columns([finishes[number].lease for number in numbers])


def _is_plain(transition: Transition) -> bool:
    return transition is PLAIN_SUCCESS or transition == PLAIN_SUCCESS


def _error_text(transition: Transition) -> str | None:
    return None if transition.error is None else encode(transition.error.as_dict())
