"""Finishes jobs: writes the outcomes of attempts for the leases that own them. A lost lease changes nothing."""

from collections.abc import Sequence
from uuid import UUID

from holdfast.domain.crash_points import reach
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.lifecycle import PLAIN_SUCCESS, Move, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres.claiming import Claiming
from holdfast.store.postgres.driver import LeaseLocked
from holdfast.store.postgres.leasing import finish_columns, lease_columns
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

    @property
    def finish_in(self) -> FinishInTransaction:
        """The statements with which a handler finishes its job in its own transaction."""
        schema = quoted(self.schema)
        ending = "$3::text, $4::text, $5::interval, $6::timestamptz, $7::text, $8::integer"
        return FinishInTransaction(
            f"SELECT {schema}.finish_in_transaction($1::uuid, $2::uuid, $3::text)",
            f"SELECT {schema}.end_in_transaction($1::uuid, $2::uuid, {ending})",
        )

    async def _finish_plain(self, finishes: Sequence[Finish], numbers: Sequence[int]) -> list[int]:
        """Finish successes without a result, the most common case, which need only two columns. Returns the unfinished
        numbers."""
        try:
            ((refused,),) = await self.fetch("finish_succeeded", *_names(finishes, numbers))
        except LeaseLocked:
            return await self._finish_any(finishes, numbers)
        return [numbers[place - 1] for place in refused or ()]

    async def _finish_any(self, finishes: Sequence[Finish], numbers: Sequence[int]) -> list[int]:
        """Return the numbers that were not finished."""
        transitions = [finishes[number].transition for number in numbers]
        try:
            leases = [finishes[number].lease for number in numbers]
            rows = await self.fetch("finish", *finish_columns(leases, transitions))
        finally:
            if any(transition.move is Move.RELEASE for transition in transitions):
                # Not earlier: a concurrent claim would look before the jobs are back, and remember that.
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
