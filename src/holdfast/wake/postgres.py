"""Wake-ups from PostgreSQL: LISTEN on a separate connection, and rows that show producers which workers sleep.

Call `asleep()` before each wait with free slots; while the rows exist it does nothing. If it returns None, the rows are
written at once and `wake(None)` follows: look again, because a producer that committed earlier did not see them. Call
`awake()` when there is no time to wait; the rows are removed if no `asleep()` follows for about a second. More than a
hundred rings a second also remove them, for a second, because each ring makes commits wait for each other.

A producer wakes one sleeper of each team, and a sleeper that cannot take the job wakes others. So call `looks()` before
each claim: the outcome of the claim answers the rings that came before it.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Collection, Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.retry import exponential
from holdfast.logs.records import get_logger
from holdfast.store.postgres.answers import answered
from holdfast.store.postgres.driver import Address, open_session
from holdfast.store.postgres.sql_files import statement
from holdfast.wake import Told, Wake
from holdfast.wake.link import Link

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.wake")

Answer = TypeVar("Answer")

_BACKOFF = exponential(base="100ms", max="2s")
_SLEEP = timedelta(seconds=15)
_RENEW_SECONDS = 5.0
_PING = timedelta(seconds=_RENEW_SECONDS)
"""A renewal counts as a ping."""
_MOST_RINGS_PER_SECOND = 100
"""For all sleepers together; more would cost producers more than they are worth."""
_COUNTED_RINGS = 50
_FEWEST_COUNTED_RINGS = 8
_QUIET_SECONDS = 1.0
_LATER_SECONDS = 0.5
"""How long a woken sleeper has before another one looks."""
_LINGER_SECONDS = 1.0
_FORGET_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_LAST_WORD_SECONDS = 1.0


def channel(holder: UUID) -> str:
    """Keep in sync with schema/functions/ring.sql and sql/pass_on.sql."""
    return f"holdfast_sleeper_{holder}"


def team_of(kinds: Iterable[str], shard: object) -> UUID:
    """Workers with the same handlers and the same shard are a team: any of them can take the job."""
    words = "\n".join([*sorted(kinds), repr(shard)])
    return UUID(bytes=hashlib.md5(words.encode(), usedforsecurity=False).digest())


def listener_url(store_url: str, listen_url: str | None) -> str | None:
    """Where to listen. None if the store is behind PgBouncer, where LISTEN does not work, and no direct URL is set."""
    if listen_url is not None:
        return listen_url
    if Address.parse(store_url).pooled:
        log.warning(
            "no wake-ups from PostgreSQL; polling continues; set HOLDFAST_LISTEN_URL to its address past PgBouncer"
        )
        return None
    return store_url


class Listener:
    """Calls `wake(queue)` when a producer rings for one of the queues, and `wake(None)` if a ring may have been missed.

    `run` returns only after `stop`, whatever happens to the database. It notices a closed connection at once, and a
    dead one when a ping is not answered within `patience`.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        queues: Collection[str],
        wake: Wake,
        *,
        holder: UUID | None = None,
        team: UUID | None = None,
        ping: timedelta = _PING,
        patience: timedelta = timedelta(seconds=2),
    ) -> None:
        Address.parse(url)
        self._url = url
        self._schema = schema
        self._queues = frozenset(queues)
        self._wake = wake
        self._holder = holder or uuid4()
        self._team = team or self._holder
        self._others = 0
        """How many others of the team were asleep when we last asked."""
        self._rings: dict[str, bool] = {}
        """Queues we were woken for since the last look, and whether by a producer rather than by another sleeper."""
        self._answered: dict[str, bool] = {}
        """The rings that the current look answers."""
        self._to_pass_on: set[str] = set()
        self._later: asyncio.TimerHandle | None = None
        self._ping_seconds = ping.total_seconds()
        self._patience = patience.total_seconds()
        self._link = Link("PostgreSQL", self._session, _BACKOFF)
        self._changed = asyncio.Event()
        self._busy_since: float | None = float("-inf")
        self._registered: float | None = None
        """When the rows were last written; None if there are none, or none that can be relied on."""
        self._known_since = 0.0
        """Since when the rows have existed without a break, if they exist."""
        self._is_relied_on = False
        """Whether a caller of `asleep()` sleeps for long because it expects to be told."""
        self._forgot = float("-inf")
        self._quiet_until = float("-inf")
        """Rings came too fast: until then there are no rows, and afterwards one `wake(None)` covers what was missed."""
        self._counted = 0
        self._counting_since = float("-inf")

    @property
    def is_listening(self) -> bool:
        return self._link.is_up

    def looks(self) -> None:
        for queue, is_first_hand in self._rings.items():
            self._answered[queue] = is_first_hand or self._answered.get(queue, False)
        self._rings.clear()
        self._cancel_later()

    def asleep(self, *, is_short: bool = False) -> Told | None:
        """Return how long producers have known that we sleep. None if they do not know yet: `wake(None)` follows once
        they do.

        `is_short`: we cannot take more jobs of some kind. The ring may be for a job of that kind, so others look too.
        """
        if is_short:
            self._pass_on(queue for queue, is_first_hand in self._answered.items() if is_first_hand)
        else:
            self._to_pass_on.clear()
        self._answered.clear()
        self._busy_since = None
        self._is_relied_on = self._registered is not None
        if not self._is_relied_on:
            self._changed.set()
            return None
        return Told(time.monotonic() - self._known_since, self._others)

    def awake(self, *, is_full: bool = True) -> None:
        """If not `is_full`, the next look comes at once and decides what happens to the rings."""
        if is_full and self._answered:
            if self._pass_on(self._answered):
                # Remove the rows at once, or other full workers would pass their rings on to us.
                self._busy_since = float("-inf")
            self._answered.clear()
        if self._busy_since is None:
            self._busy_since = time.monotonic()

    def _pass_on(self, queues: Iterable[str]) -> bool:
        """Pass the rings on, and return whether any other sleeper can receive them."""
        if self._others:
            self._to_pass_on.update(queues)
            self._changed.set()
        return self._others > 0

    async def run(self) -> None:
        await self._link.run()

    def stop(self) -> None:
        """`run` removes the rows and returns, in a few seconds at most."""
        self._link.stop()
        self._changed.set()

    async def _session(self) -> None:
        connection = await self._link.within(_CONNECT_SECONDS, open_session(self._url))
        try:
            connection.add_termination_listener(lambda _: self._changed.set())
            await self._answer(connection, connection.add_listener(channel(self._holder), self._heard))
            # This also shows that the table exists and is writable, before the log says that wake-ups are back.
            await self._forget_sleepers(connection)
            self._link.up()
            await self._serve(connection)
        finally:
            self._registered = None
            self._cancel_later()
            connection.terminate()
            if self._is_relied_on and not self._link.stopping.is_set():
                self._wake_all()

    async def _serve(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """In each round: bring the rows up to date, make sure the server answers, wait for a change."""
        greeted = False
        answered = time.monotonic()
        while not self._link.stopping.is_set():
            self._changed.clear()
            if connection.is_closed():
                raise StoreUnavailable("PostgreSQL closed the connection")
            now = time.monotonic()
            if self._to_pass_on:
                queues, self._to_pass_on = sorted(self._to_pass_on), set()
                passing = connection.execute(statement("pass_on", self._schema), queues, self._holder, self._team)
                await self._answer(connection, passing)
            wrote, is_fresh = await self._keep_rows(connection, now)
            if not greeted or is_fresh:
                self._wake_all()
                greeted = True
            if not wrote and now >= answered + self._ping_seconds:
                await self._answer(connection, connection.execute("SELECT 1"))
                wrote = True
            if wrote:
                answered = now
            now = time.monotonic()
            next_step = answered + self._ping_seconds
            await self._wait((min(next_step, self._quiet_until) if now < self._quiet_until else next_step) - now)
        if self._registered is not None:
            await self._answer(connection, self._remove_rows(connection), _LAST_WORD_SECONDS)

    def _wake_all(self) -> None:
        self._is_relied_on = False
        self._wake(None)

    async def _keep_rows(self, connection: "asyncpg.Connection[asyncpg.Record]", now: float) -> tuple[bool, bool]:
        """Write or remove the rows. Return whether anything was sent, and whether the rows are new."""
        is_busy = self._busy_since is not None and now >= self._busy_since + _LINGER_SECONDS
        if is_busy or now < self._quiet_until:
            if self._registered is None:
                return False, False
            # Reset this before removing the rows, so a concurrent `asleep()` does not rely on them.
            self._registered = None
            await self._answer(connection, self._remove_rows(connection))
            return True, False
        is_fresh = self._registered is None
        if self._registered is not None and now < self._registered + _RENEW_SECONDS:
            return False, False
        if now >= self._forgot + _FORGET_SECONDS:
            await self._forget_sleepers(connection)
        asleep = statement("asleep", self._schema)
        queues = sorted(self._queues)
        one_of_them = random.choice(queues)  # noqa: S311 - guards nothing
        writing = connection.fetchval(asleep, queues, self._holder, _SLEEP, self._team, one_of_them)
        self._others = await self._answer(connection, writing)
        self._registered = now
        if is_fresh:
            self._known_since = time.monotonic()
        return True, is_fresh

    def _remove_rows(self, connection: "asyncpg.Connection[asyncpg.Record]") -> Coroutine[Any, Any, str]:
        return connection.execute(statement("awake", self._schema), sorted(self._queues), self._holder)

    async def _forget_sleepers(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        await self._answer(connection, connection.execute(statement("forget_sleepers", self._schema)))
        self._forgot = time.monotonic()

    def _heard(self, connection: object, pid: int, channel: str, payload: object) -> None:  # noqa: ARG002
        how, _, queue = str(payload).partition(":")
        if queue not in self._queues:
            return
        if how == "later":
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(_LATER_SECONDS, self._ring, queue)
        else:
            self._count_ring()
            self._ring(queue, is_first_hand=how == "now")

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _ring(self, queue: str, *, is_first_hand: bool = True) -> None:
        self._rings[queue] = is_first_hand or self._rings.get(queue, False)
        self._wake(queue)

    def _count_ring(self) -> None:
        now = time.monotonic()
        # Each sleeper hears only its share of the rings.
        sleepers = self._others + 1
        most = max(_FEWEST_COUNTED_RINGS, _COUNTED_RINGS // sleepers)
        if now >= self._counting_since + most * sleepers / _MOST_RINGS_PER_SECOND:
            self._counting_since, self._counted = now, 0
        self._counted += 1
        if self._counted == most:
            # Every ring makes a commit wait for the one before it. At this rate, one a second is enough.
            self._quiet_until = now + _QUIET_SECONDS
            self._changed.set()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _answer(
        self,
        connection: "asyncpg.Connection[asyncpg.Record]",
        request: Coroutine[Any, Any, Answer],
        seconds: float | None = None,
    ) -> Answer:
        return await answered(connection, request, self._patience if seconds is None else seconds)
