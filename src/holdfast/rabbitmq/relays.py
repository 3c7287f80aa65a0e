"""The relays of an app: where each relay's events go, and the connections that they share. Neighbor: relay.py."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import Handler, Room, RunningJob, make_handler
from holdfast.domain.job import ATTEMPTS
from holdfast.domain.json_text import Json, decode
from holdfast.rabbitmq.broker import quietly
from holdfast.rabbitmq.connection import SharedConnection
from holdfast.rabbitmq.message import event_of, message_of
from holdfast.rabbitmq.relay import Relay, RelayTarget


@dataclass(frozen=True, slots=True)
class Relayed:
    """An event that a relay received while sending is off, in the form the broker would get."""

    exchange: str
    type: str
    event_id: UUID
    payload: Any
    headers: Mapping[str, object]


class Relays:
    """Relays by the name of their subscription. A relay connects with its first event."""

    def __init__(self) -> None:
        self._targets: dict[str, RelayTarget] = {}
        self._open: dict[str, Relay] = {}
        self._connections: dict[str, SharedConnection] = {}
        self._settings_url: str | None = None
        self._holds_back = False
        self.held_back: list[Relayed] = []

    def handler(self, name: str, queue: str, limit: int) -> Handler:
        """The handler of a new relay. Its attempts are for unforeseen errors; an outage uses up none."""
        handler = make_handler(
            name,
            self.handle,
            queue=queue,
            attempts=ATTEMPTS[-1],
            backoff="exponential base=1s max=1m jitter=1s",
            timeout="1m",
            limit=limit,
        )
        return replace(handler, room=partial(self._room_of, name))

    def add(self, name: str, target: RelayTarget) -> None:
        self._targets[name] = target

    def use(self, url: str | None) -> None:
        """Set the broker for relays that name none. Raise InvalidInput if such a relay is then without a broker."""
        self._settings_url = url
        for name in () if self._holds_back else self._targets:
            self._url_of(name)

    @contextmanager
    def holding_back(self) -> Iterator[None]:
        """For tests: no broker is needed, and `held_back` collects what would have been sent in this block."""
        self._holds_back, self.held_back = True, []
        try:
            yield
        finally:
            self._holds_back = False

    async def handle(self, job: RunningJob[Json]) -> None:
        """The handler of every relay's kind."""
        if self._holds_back:
            self.held_back.append(self._relayed(job))
            return
        relay = self._open.get(job.kind)
        if relay is None:
            url = self._url_of(job.kind)
            connection = self._connections.setdefault(url, SharedConnection(url))
            relay = self._open[job.kind] = Relay(self._targets[job.kind], connection)
        await relay.handle(job)

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        self._open = {}
        with quietly():
            for connection in connections.values():
                await connection.close()

    def _room_of(self, name: str) -> Room:
        if self._holds_back:
            return Room()
        relay = self._open.get(name)
        return Room(1) if relay is None else relay.room

    def _relayed(self, job: RunningJob[Json]) -> Relayed:
        message, event = message_of(job), event_of(job)
        return Relayed(self._targets[job.kind].exchange, event.type, event.id, decode(job.payload), message.headers)

    def _url_of(self, name: str) -> str:
        url = self._targets[name].url or self._settings_url
        if url is None:
            raise InvalidInput(f"relay {name!r}: name the broker with url= or HOLDFAST_RABBITMQ_URL")
        return url
