"""Warns about kinds that no process has ever declared, because a typo can make their jobs wait forever."""

import difflib
from collections.abc import Iterable

from holdfast.domain.errors import HoldfastError
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import NewJob
from holdfast.logs.records import get_logger
from holdfast.store.kinds import KindStore

log = get_logger("holdfast.producer")

_CLOSE = 0.75
_MOST_KINDS = 10_000
"""A limit, because a producer that keeps inventing kinds would cause a query for each and use up memory."""


class UndeclaredKinds:
    """Asks the store once for each kind that has no handler here."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def has_new(self, jobs: Iterable[NewJob]) -> bool:
        # A loop, because every enqueue gets here and a generator takes three times as long.
        for job in jobs:  # noqa: SIM110
            if job.kind not in self._asked:
                return True
        return False

    async def warn_of(self, jobs: Iterable[NewJob], handlers: Handlers, store: KindStore) -> None:
        new = {job.kind for job in jobs} - self._asked
        if not new or len(self._asked) > _MOST_KINDS:
            return
        self._asked |= new
        unknown = {kind for kind in new if handlers.get(kind) is None}
        try:
            undeclared = await store.undeclared(unknown) if unknown else set()
        except HoldfastError:
            # The jobs are already enqueued. The next jobs of these kinds ask again.
            self._asked -= new
            return
        for kind in sorted(undeclared):
            log.warning(_warning(kind, handlers), kind=kind)


def _warning(kind: str, handlers: Handlers) -> str:
    close = difflib.get_close_matches(kind, [handler.kind for handler in handlers], n=1, cutoff=_CLOSE)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"no worker has ever declared this kind{meant}; its jobs wait for one that does"
