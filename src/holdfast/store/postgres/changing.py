"""The verbs that people use on jobs: cancel, retry and delete."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from holdfast.store.contract import Canceling, Deleting, Retrying
from holdfast.store.postgres.connected import ConnectedStore

_LOCKED_TRIES = 20
_LOCKED_SECONDS = 0.05


class Changing(ConnectedStore):
    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        answers = await self._until_unlocked("cancel", ids)
        return [Canceling(answers[id]) for id in ids]

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        answers = await self._until_unlocked("retry", ids)
        return [Retrying(answers[id]) for id in ids]

    async def delete(self, ids: Sequence[UUID]) -> list[Deleting]:
        answers = await self._until_unlocked("delete_jobs", ids)
        return [Deleting(answers[id]) for id in ids]

    async def _until_unlocked(self, verb: str, ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Retry for locked rows, which these verbs skip. A claim's lock is brief; a finishing transaction's may
        last."""
        answers: dict[UUID, str] = {}
        wanted = list(ids)
        for _ in range(_LOCKED_TRIES):
            answers.update({row[0]: row[1] for row in await self.fetch(verb, wanted)})
            wanted = [id for id in wanted if answers[id] == "locked"]
            if not wanted:
                break
            await asyncio.sleep(_LOCKED_SECONDS)
        return answers
