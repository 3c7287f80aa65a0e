"""Checks of the PostgreSQL server: durability, capacity, and what keeps vacuum from removing dead rows."""

from collections.abc import AsyncIterator

from holdfast.doctor.findings import Finding, Level, Limits, plural
from holdfast.domain.duration import rough
from holdfast.domain.errors import HoldfastError
from holdfast.store.postgres.examine import Examiner, Pin
from holdfast.store.postgres.migrate import UNREADABLE_ENCODING

_OLDEST_VERSION = 14
_MONITOR = "GRANT pg_read_all_stats TO"


async def check_answer(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    trip = await examiner.round_trip()
    took = f"answers in {trip.took.total_seconds() * 1000:.1f} ms"
    if trip.took > limits.slow_answer:
        yield Finding("store", Level.WARNING, took, "every claim waits for it: run workers closer to the database")
    else:
        yield Finding("store", Level.OK, took)
    difference = abs(trip.ahead)
    if difference > max(limits.clock_difference, trip.took):
        where = "ahead of" if trip.ahead.total_seconds() > 0 else "behind"
        yield Finding(
            "time",
            Level.WARNING,
            f"the server's clock is {rough(difference)} {where} this machine's",
            "jobs follow the server's clock; sync both clocks with NTP so that logs and run_at agree",
        )
    else:
        yield Finding("time", Level.OK, "the server's clock and this machine's agree")


async def check_pooler(examiner: Examiner, _: Limits) -> AsyncIterator[Finding]:
    if not await examiner.is_pooled():
        yield Finding("pooler", Level.OK, "none in front of the server")
        return
    if examiner.direct_url is None:
        yield Finding(
            "pooler",
            Level.WARNING,
            "PgBouncer is in front of the server: workers only poll, and lease renewals wait for its connections",
            "set HOLDFAST_LISTEN_URL to the server's own address",
        )
        return
    try:
        await examiner.try_direct()
    except HoldfastError as error:
        yield Finding("pooler", Level.WARNING, f"cannot bypass PgBouncer: {error}", "correct HOLDFAST_LISTEN_URL")
    else:
        yield Finding("pooler", Level.OK, "PgBouncer is in front of the server, and HOLDFAST_LISTEN_URL bypasses it")


async def check_server(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    server = await examiner.server()
    version = f"PostgreSQL {server.version}"
    if server.version_number < _OLDEST_VERSION * 10_000:
        yield Finding(
            "server", Level.PROBLEM, f"{version} is too old", f"Holdfast needs PostgreSQL {_OLDEST_VERSION} or later"
        )
    elif server.is_standby:
        yield Finding(
            "server", Level.PROBLEM, f"{version} is a standby: it takes no jobs", "set HOLDFAST_STORE to the primary"
        )
    else:
        yield Finding("server", Level.OK, version)
    if server.encoding == UNREADABLE_ENCODING:
        yield Finding(
            "encoding",
            Level.PROBLEM,
            f"the database's encoding is {server.encoding}: one job with bytes that are not UTF-8 blocks its queue",
            "move to a database made with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )
    if server.unsafe:
        off = " and ".join([", ".join(server.unsafe[:-1]), server.unsafe[-1]] if server.unsafe[1:] else server.unsafe)
        yield Finding(
            "durability",
            Level.WARNING if limits.allows_unsafe else Level.PROBLEM,
            f"{off} {'are' if server.unsafe[1:] else 'is'} off: committed jobs can be lost in a crash",
            f"turn {'them' if server.unsafe[1:] else 'it'} on (embedded: leave out durability=off); if losing jobs is "
            "acceptable, add --allow-unsafe",
        )
    else:
        yield Finding("durability", Level.OK, "committed jobs survive a crash")
    share = server.connections / max(1, server.most_connections)
    used = f"{server.connections} of {server.most_connections} connections are in use"
    if share > limits.connections_share:
        yield Finding(
            "connections",
            Level.WARNING,
            used,
            "raise max_connections, add PgBouncer, or run fewer processes",
        )
    else:
        yield Finding("connections", Level.OK, used)
    if server.notify_share > limits.notify_share:
        yield Finding(
            "notify queue",
            Level.PROBLEM if server.notify_share > 0.5 else Level.WARNING,
            f"the notification queue is {server.notify_share:.0%} full; once it is half full, workers only poll",
            "a session listens in a transaction that does not end: see the vacuum horizon check",
        )
    if not server.autovacuum:
        yield Finding(
            "autovacuum", Level.PROBLEM, "autovacuum is off: claims get slower and slower", "turn autovacuum on"
        )


async def check_horizon(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    pins = await examiner.pins(limits.pin, limits.pin_transactions, limits.shown)
    for pin in pins:
        long = pin.lasting is not None and pin.lasting > limits.long_pin
        level = Level.PROBLEM if long or (pin.transactions or 0) > 10 * limits.pin_transactions else Level.WARNING
        yield Finding("vacuum horizon", level, f"{_pin(pin)} keeps dead rows from being removed", _against(pin))
    hidden = await examiner.hidden_sessions()
    if hidden.sessions:
        yield Finding(
            "vacuum horizon",
            Level.UNKNOWN,
            f"could not see {plural(hidden.sessions, 'session')} of other roles",
            f'{_MONITOR} "{hidden.role}"',
        )
    elif not pins:
        yield Finding("vacuum horizon", Level.OK, "no old transaction keeps dead rows from being removed")


def _pin(pin: Pin) -> str:
    who = [
        f"pid {pin.pid}" if pin.pid is not None else "",
        pin.name or "",
        pin.role or "",
        pin.application or "",
        pin.state or "",
    ]
    described = ", ".join(part for part in who if part)
    if pin.lasting is not None:
        return f"a {pin.what} of {rough(pin.lasting)} ({described})"
    return f"a {pin.what} ({described}), {pin.transactions or 0:,} transactions behind,"


def _against(pin: Pin) -> str:
    match pin.what:
        case "prepared transaction":
            return f"end it: COMMIT PREPARED or ROLLBACK PREPARED '{pin.name}'"
        case "replication slot":
            return f"let its standby catch up, or SELECT pg_drop_replication_slot('{pin.name}')"
        case "standby":
            return "end the long query on that standby, or turn its hot_standby_feedback off"
        case _:
            return f"end it in its program, or SELECT pg_terminate_backend({pin.pid})"


async def check_dead_rows(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    for table in await examiner.dead_rows(limits.dead_rows, limits.dead_rows_per_live):
        ago = "never" if table.vacuumed is None else f"{rough(table.vacuumed)} ago"
        yield Finding(
            "dead rows",
            Level.WARNING,
            f"{table.name} has {table.dead:,} dead rows for {table.live:,} live ones; last autovacuum {ago}",
            f"if nothing holds back the vacuum horizon, run VACUUM on the table {table.name}",
        )
