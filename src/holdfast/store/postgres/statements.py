"""The verbs as statements that a caller runs in its own transaction, on any driver's connection.

Neighbors: domain/statement.py executes them; enqueuing.py, events.py and changing.py have the same verbs for the store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from holdfast.domain.connections import Rows, text_of
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.event import NewEvent
from holdfast.domain.job import NewJob
from holdfast.domain.statement import Statement
from holdfast.store.contract import Canceling, Deleting, Retrying
from holdfast.store.events import EventJob
from holdfast.store.postgres.enqueuing import Bulk
from holdfast.store.postgres.events import event_jobs, publish_parameters
from holdfast.store.postgres.sql_files import statement

Word = TypeVar("Word")


@dataclass(frozen=True, slots=True)
class PostgresStatements:
    schema: str

    def enqueue(self, jobs: Sequence[NewJob]) -> Statement[list[Enqueued]]:
        bulk = Bulk(jobs)
        return Statement.in_text(statement(bulk.verb, self.schema), bulk.parameters, bulk.read, "app.statement(job)")

    def publish(self, event: NewEvent) -> Statement[list[EventJob]]:
        return Statement.in_text(statement("publish", self.schema), publish_parameters(event), event_jobs)

    def cancel(self, ids: Sequence[UUID]) -> Statement[list[Canceling]]:
        return self._change("cancel_in_text", ids, Canceling)

    def retry(self, ids: Sequence[UUID]) -> Statement[list[Retrying]]:
        return self._change("retry_in_text", ids, Retrying)

    def delete(self, ids: Sequence[UUID]) -> Statement[list[Deleting]]:
        return self._change("delete_in_text", ids, Deleting)

    def _change(self, verb: str, ids: Sequence[UUID], word: Callable[[str], Word]) -> Statement[list[Word]]:
        def read(rows: Rows) -> list[Word]:
            answers = {text_of(id): text_of(answer) for id, answer in rows}
            return [word(answers[str(id)]) for id in ids]

        return Statement.in_text(statement(verb, self.schema), (list(ids),), read)
