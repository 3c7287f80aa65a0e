"""Bad input: values, exceptions and names that no user intends. Each must be refused in a line, run, or fail clearly.

Neighbors: ../inputs.py makes the input; sequences.py and zones.py cover other quiet ways to go wrong.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from itertools import cycle, islice
from random import Random
from secrets import token_hex
from typing import Any
from uuid import UUID, uuid4

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import RunningJob
from holdfast.domain.job import Job, JobState, NewJob
from holdfast.domain.json_text import LARGEST_RESULT, Json, encode
from holdfast.store.contract import ClaimRequest, JobFilter, KindClaim
from holdfast.store.postgres.driver import open_connection
from holdfast_lab.faults import inputs
from holdfast_lab.faults.case import case
from holdfast_lab.faults.cases.place import Lab, drained, schema_of_its_own, working

TAKE = "take"
"""The kind with hostile payloads. For all other kinds, the handlers are hostile."""
_KINDS = ("give", "give.thread", "raise", "raise.thread", "report")
_LONGEST_LINE = 1_000
_OUR_CODES = ("ERROR", "CANCELED", "INVALID_RESULT", "VALIDATION_ERROR")
_LARGEST_ERROR = 64 * 1024
_BATCHES = (1, 1, 3, 40)
_LEAST_SECONDS = 60.0
_SECONDS_EACH = 0.1
_LIKE_ONE_ANOTHER = (
    "a", "A", "a ", " a", "á", "a\u0301", "\uff41", "\u0430", "a.b", "a%", "a_", "a'", 'a"', "a\\", "*", "--",
)  # fmt: skip
_ODD_SCHEMAS = (
    "Mixed Case {}",
    "SELECT{}",
    "a-b{}",
    "holdfast {}",
    "_ -{}",
    "x" * 55 + "{}",
    "trailing {} ",
    "Ends-{}-",
)


@case(
    "R30",
    "absurd payloads, results, errors and progress",
    small={"values": 500},
    large={"values": 5_000},
)
async def hostile_values(lab: Lab) -> None:
    """Half of the values are payloads; the others are returned, raised or reported by handlers.

    The values of `inputs.ALWAYS` are used in each of these ways as well.
    """
    total = int(lab.size["values"])
    seeds = inputs.seeds(lab.random)
    refused = 0
    async with schema_of_its_own(lab, f"{lab.schema}_values") as schema:
        app, told = _hostile_app(lab.url, schema)
        async with app, working(lab, app):
            jobs, refused = _payload_jobs(lab, app, seeds, total // 2)
            jobs += [app.job(kind, {"seed": next(seeds)}) for kind in _kinds(lab.random, total - total // 2)]
            refused += _refuse_all(lab, app)
            jobs += [app.job(kind, {"always": name}) for kind in _KINDS for name in inputs.ALWAYS]
            await _enqueue(lab, app, jobs)
            jobs += await _enqueue_as_others(lab, app, schema, seeds, total // 20)
            lab.progress(f"{refused} payloads refused, {len(jobs)} jobs enqueued")
            if await drained(lab, app, _LEAST_SECONDS + _SECONDS_EACH * total):
                ends = Counter[str]()
                for job in jobs:
                    ends[await _end(lab, app, job, told)] += 1
                for end, number in ends.items():
                    lab.note(end, number, "jobs")
            if (await app.wait((await app.enqueue("plain")).id, "30s")).state is not JobState.SUCCEEDED:
                lab.violation("worker ended", "a plain job after all the others did not succeed")
    lab.note("refused", refused, "payloads")


class _Told:
    """The payloads that handlers got, and what they gave, as JSON, unless that is invalid or too large for a result."""

    def __init__(self) -> None:
        self.payloads: dict[UUID, object] = {}
        self.given: dict[UUID, str] = {}

    def give(self, job: RunningJob[Any]) -> Any:  # noqa: ANN401
        value = _value(job)
        text = _json(value)
        if text is not None and len(text) <= LARGEST_RESULT:
            self.given[job.id] = text
        return value


def _json(value: object) -> str | None:
    """Encode with Python's own module, which shares no code with Holdfast, and with `encode` only where that fails."""
    try:
        return json.dumps(value, allow_nan=False)
    except Exception:  # noqa: BLE001 - values bring their own code
        try:
            return encode(value)
        except InvalidInput:
            return None


def _hostile_app(url: str, schema: str) -> tuple[Holdfast, _Told]:
    app, told = Holdfast(url, schema=schema), _Told()

    @app.handler(TAKE, attempts=1)
    async def take(job: RunningJob[Any]) -> None:
        told.payloads[job.id] = job.payload

    @app.handler("plain")
    async def plain(job: RunningJob[Any]) -> None:
        """Do nothing."""

    @app.handler("give", attempts=1)
    async def give(job: RunningJob[Any]) -> object:
        return told.give(job)

    @app.handler("give.thread", attempts=1)
    def give_in_thread(job: RunningJob[Any]) -> object:
        return told.give(job)

    @app.handler("raise", attempts=1)
    async def fail(job: RunningJob[Any]) -> None:
        raise _exception(job)

    @app.handler("raise.thread", attempts=1)
    def fail_in_thread(job: RunningJob[Any]) -> None:
        raise _exception(job)

    @app.handler("report", attempts=1)
    async def report(job: RunningJob[Any]) -> None:
        job.progress(told.give(job))

    return app, told


def _value(job: RunningJob[Any]) -> Any:  # noqa: ANN401
    if "always" in job.payload:
        return inputs.ALWAYS[job.payload["always"]]()
    return inputs.value(Random(job.payload["seed"]))  # noqa: S311 - not used for security


def _exception(job: RunningJob[Any]) -> BaseException:
    if "always" in job.payload:
        return ValueError(_value(job))
    return inputs.exception(Random(job.payload["seed"]))  # noqa: S311 - not used for security


def _kinds(random: Random, number: int) -> Iterator[str]:
    for _ in range(number):
        yield random.choice(_KINDS)


def _payload_jobs(lab: Lab, app: Holdfast, seeds: Iterator[int], number: int) -> tuple[list[NewJob], int]:
    jobs = []
    for _ in range(number):
        seed = next(seeds)
        random = Random(seed)  # noqa: S311 - not used for security
        payload, headers = inputs.value(random), None if random.random() < 0.7 else inputs.headers(random)
        job = accepted(lab, f"seed {seed}", partial(app.job, TAKE, payload, headers=headers))
        if job is not None:
            jobs.append(job)
    return jobs, number - len(jobs)


def _refuse_all(lab: Lab, app: Holdfast) -> int:
    """Try the values of `inputs.ALWAYS` as payloads. None of them is valid."""
    for name, make in inputs.ALWAYS.items():
        if accepted(lab, name, partial(app.job, TAKE, make())) is not None:
            lab.violation("not refused", f"a payload: {name}")
    return len(inputs.ALWAYS)


def accepted(lab: Lab, what: str, build: Callable[[], NewJob]) -> NewJob | None:
    """Return the job, or None if it was refused correctly: by InvalidInput, in one printable line."""
    try:
        return build()
    except InvalidInput as refused:
        line = str(refused)
        if not line.isprintable() or not 0 < len(line) <= _LONGEST_LINE:
            lab.violation("unclear refusal", f"{what}: refused in {len(line):,} characters: {line[:200]!r}")
    except Exception as error:  # noqa: BLE001 - the case looks for exactly this
        lab.violation("unclear refusal", f"{what}: {type(error).__name__} instead of InvalidInput")
    return None


async def _enqueue(lab: Lab, app: Holdfast, jobs: list[NewJob]) -> None:
    """Enqueue in batches of several sizes, because stores treat them differently. Every built job must be accepted."""
    waiting = list(jobs)
    while waiting:
        size = lab.random.choice(_BATCHES)
        batch, waiting = waiting[:size], waiting[size:]
        try:
            await app.enqueue_many(batch)
        except InvalidInput as error:
            lab.violation("refused too late", f"a batch of {len(batch)} was built and then refused: {error}")
            jobs[:] = [job for job in jobs if job not in batch]


async def _enqueue_as_others(lab: Lab, app: Holdfast, schema: str, seeds: Iterator[int], number: int) -> list[NewJob]:
    """Enqueue through the SQL function, as other languages do, with JSON that Python would not have made."""
    jobs = []
    connection = await open_connection(lab.url)
    try:
        for _ in range(number):
            random = Random(next(seeds))  # noqa: S311 - not used for security
            payload, headers = Json(inputs.json_of_others(random)), Json(inputs.json_of_others(random))
            job = NewJob(kind=TAKE, payload=payload, headers=headers if random.random() < 0.5 else None)
            await app.enqueue(job, conn=connection)
            jobs.append(job)
    finally:
        await connection.close()
    lab.progress(f"{len(jobs)} jobs of other producers in {schema}")
    return jobs


async def _end(lab: Lab, app: Holdfast, new: NewJob, told: _Told) -> str:
    """Return how the job ended, after checking that this end is possible."""
    job = await app.jobs.get(new.id)
    if job is None:
        lab.violation("lost", f"job {new.id} was enqueued but does not exist", new.id)
        return "lost"
    problem = _problem(job, new, told)
    if problem is not None:
        lab.violation("unclear end", f"job {job.id}, {job.kind} {new.payload[:80]}: {problem}", job.id)
    error = job.last_error
    return job.state if error is None else f"{job.state} {error.code if error.code in _OUR_CODES else 'with a code'}"


def _problem(job: Job, new: NewJob, told: _Told) -> str | None:
    try:
        json.dumps(job.as_dict(), allow_nan=False)
    except Exception as error:  # noqa: BLE001 - the case looks for exactly this
        return f"cannot be shown: {type(error).__name__}: {error}"
    code = "" if job.last_error is None else job.last_error.code
    if any(len(json.dumps(error).encode()) > _LARGEST_ERROR for error in job.errors):
        return "its error is too large"
    match job.state, job.kind.partition(".")[0]:
        case JobState.SUCCEEDED, "take":
            if repr(told.payloads.get(job.id)) != repr(json.loads(new.payload)):
                return f"its handler got {told.payloads.get(job.id)!r}, not {new.payload}"
        case JobState.FAILED, "take" if code == "VALIDATION_ERROR" and job.id not in told.payloads:
            return None
        case JobState.SUCCEEDED, "give":
            return _difference("result", job.result, told.given.get(job.id))
        case JobState.SUCCEEDED, "report":
            # Progress is written now and then, so a short job may have none.
            return None if job.progress is None else _difference("progress", job.progress, told.given.get(job.id))
        case JobState.FAILED, "give" if code == "INVALID_RESULT":
            return None
        case JobState.DEAD, "report" if "InvalidInput" in str(job.errors):
            return None
        case ((JobState.FAILED | JobState.DEAD | JobState.CANCELED), "raise") if len(job.errors) == 1:
            return None
        case _:
            return f"ended {job.state} with {code or 'no code'} after {len(job.errors)} errors"
    return None


def _difference(what: str, kept: object, given: str | None) -> str | None:
    if given is None:
        return f"its {what} is {str(kept)[:200]}, but its handler gave an invalid one"
    if repr(kept) != repr(json.loads(given)):
        return f"its {what} is {str(kept)[:200]}, but its handler gave {given[:200]}"
    return None


@case(
    "R33",
    "hostile, empty and overlong names of queues, tenants, kinds, keys and schemas",
    small={"names": 200, "schemas": 8},
    large={"names": 2_000, "schemas": 40},
)
async def hostile_names(lab: Lab) -> None:
    """Every accepted name must come back unchanged and belong to that job only."""
    number = int(lab.size["names"])
    async with schema_of_its_own(lab, f"{lab.schema}_names") as schema, Holdfast(lab.url, schema=schema) as app:
        jobs = _named_jobs(lab, app, number)
        lab.note("names refused", number - len(jobs))
        await _enqueue(lab, app, jobs)
        await _check_kept(lab, app, jobs)
        await _check_apart(lab, app)
    await _check_schemas(lab, int(lab.size["schemas"]))


def _named_jobs(lab: Lab, app: Holdfast, number: int) -> list[NewJob]:
    jobs, keys = [], set[tuple[str, str, str | None]]()
    for seed in (lab.random.getrandbits(32) for _ in range(number)):
        random = Random(seed)  # noqa: S311 - not used for security
        field = random.choice(("kind", "queue", "tenant", "key", "correlation_id"))
        hostile = inputs.name(random)
        named: dict[str, Any] = {"kind": "names"} | {field: hostile}
        job = accepted(lab, f"seed {seed}, {field}", partial(app.job, **named))
        # A second job with the same key would correctly be the first one.
        if job is not None and (job.key is None or (job.tenant, job.kind, job.key) not in keys):
            keys.add((job.tenant, job.kind, job.key))
            jobs.append(job)
    return jobs


async def _check_kept(lab: Lab, app: Holdfast, jobs: list[NewJob]) -> None:
    for new in jobs:
        job = await app.jobs.get(new.id)
        names = ("kind", "queue", "tenant", "key", "correlation_id")
        if job is None or any(getattr(job, name) != getattr(new, name) for name in names):
            lab.violation("confused", f"{new} came back as {job}", new.id)
    for field in ("queue", "kind", "tenant"):
        by_name: dict[str, set[UUID]] = {}
        for new in jobs:
            by_name.setdefault(getattr(new, field), set()).add(new.id)
        for name, ids in by_name.items():
            if not name:
                continue
            found = {job.id for job in await app.jobs.list(_filter(field, name), len(jobs) + 1)}
            if found != ids:
                lab.violation("confused", f"{field} {name!r} has {len(found)} jobs instead of {len(ids)}")


def _filter(field: str, name: str) -> JobFilter:
    match field:
        case "queue":
            return JobFilter(queue=name)
        case "kind":
            return JobFilter(kind=name)
        case _:
            return JobFilter(tenant=name)


async def _check_apart(lab: Lab, app: Holdfast) -> None:
    """Names that look alike, match one another as patterns, or are equal in some collation."""
    jobs = [app.job(name, queue=name, tenant=name, key=name) for name in _LIKE_ONE_ANOTHER]
    jobs += [app.job("alike", tenant=tenant, key=key) for tenant in _LIKE_ONE_ANOTHER for key in _LIKE_ONE_ANOTHER]
    first = await app.enqueue_many(jobs)
    again = await app.enqueue_many([app.job(job.kind, queue=job.queue, tenant=job.tenant, key=job.key) for job in jobs])
    for job, made, met in zip(jobs, first, again, strict=True):
        if not made.is_new or met.is_new or met.id != job.id:
            lab.violation("confused", f"key {job.key!r} of {job.tenant!r} and {job.kind!r} met another job", job.id)
    for job in jobs[: len(_LIKE_ONE_ANOTHER)]:
        wanted = ClaimRequest(uuid4(), 10, (job.queue,), {job.kind: KindClaim(timedelta(minutes=1), 10)})
        await app.opened.store.look([job.queue], [job.kind])
        claimed = [each.id for each in await app.opened.store.claim(wanted) if each.tenant == each.kind]
        if claimed != [job.id]:
            lab.violation("confused", f"a claim from {job.queue!r} gave {len(claimed)} jobs instead of one", job.id)


async def _check_schemas(lab: Lab, number: int) -> None:
    refused = 0
    for seed in (lab.random.getrandbits(32) for _ in range(20 * number)):
        hostile = inputs.schema(Random(seed))  # noqa: S311 - not used for security
        if hostile is None:
            continue
        try:
            Holdfast(lab.url, schema=hostile)
        except InvalidInput as error:
            refused += 1
            if not str(error).isprintable() or len(str(error)) > _LONGEST_LINE:
                lab.violation("unclear refusal", f"schema of seed {seed}: {str(error)[:200]!r}")
        except Exception as error:  # noqa: BLE001 - the case looks for exactly this
            lab.violation("unclear refusal", f"schema of seed {seed}: {type(error).__name__}")
    lab.note("schemas refused", refused)
    async with AsyncExitStack() as places:
        apps = []
        for name in islice(cycle(lab.random.sample(_ODD_SCHEMAS, len(_ODD_SCHEMAS))), number):
            # Made unique, because it is dropped afterwards, and the server may have other schemas.
            own = name.format(token_hex(4))
            schema = await places.enter_async_context(schema_of_its_own(lab, own))
            apps.append(await places.enter_async_context(Holdfast(lab.url, schema=schema)))
        ids = [(await app.enqueue("same", key="same")).id for app in apps]
        for app, id in zip(apps, ids, strict=True):
            found = [job.id for job in await app.jobs.list(JobFilter(), 10)]
            if found != [id]:
                lab.violation("confused", f"schema {app.settings.db_schema!r} has {len(found)} jobs instead of one")
