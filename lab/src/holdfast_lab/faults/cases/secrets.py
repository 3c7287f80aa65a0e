"""What must be reported, and what must not: a server that can lose jobs, and secrets."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from holdfast.store.postgres.sql_files import quoted
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab, Launch
from holdfast_lab.faults.programs import free_port
from holdfast_lab.faults.record import What
from holdfast_lab.faults.secret_app import FAILING, RUNNER, SECRET, SUCCEEDS, TYPED

_APP = "holdfast_lab.faults.secret_app:app"
_DRAINED_SECONDS = 20.0
_PAGE_SECONDS = 10.0
LEAK = "secret leaked"
UNSAFE = "unsafe server not told"


@case(
    "R26",
    "the server runs without fsync, or with synchronous_commit off",
    small={},
    large={},
    needs=[Need.OWN_SERVER],
)
async def unsafe_servers(lab: Lab) -> None:
    """`doctor` must fail and name the setting, or only warn if told that the setting is intended."""
    place = ["--store", lab.url, "--schema", lab.schema]
    await _expect(lab, place, "", code=0, level="ok")
    database = quoted(lab.url.partition("@/")[2].partition("?")[0])
    await lab.server.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    await _expect(lab, place, "synchronous_commit", code=1, level="problem")
    await _expect(lab, [*place, "--allow-unsafe"], "synchronous_commit", code=0, level="warning")
    unsafe = ["--store", f"embedded:{lab.folder / 'unsafe'}?durability=off"]
    await lab.command("migrate", *unsafe)
    await _expect(lab, unsafe, "fsync", code=1, level="problem")
    await _expect(lab, [*unsafe, "--allow-unsafe"], "fsync", code=0, level="warning")


async def _expect(lab: Lab, arguments: list[str], setting: str, *, code: int, level: str) -> None:
    said = await lab.command("doctor", "--json", *arguments)
    what = f"{setting or 'a safe server'}{', allowed' if '--allow-unsafe' in arguments else ''}"
    try:
        (finding,) = (each for each in json.loads(said.output)["findings"] if each["check"] == "durability")
    except ValueError:
        lab.violation(UNSAFE, f"{what}: doctor prints {said.output!r}")
        return
    if (said.code, finding["level"]) != (code, level) or setting not in finding["line"]:
        lab.violation(UNSAFE, f"{what}: doctor ends with {said.code} and reports {finding}")


@dataclass(frozen=True, slots=True)
class Canaries:
    """Secrets, each of which is in one place only."""

    password: str
    broker_password: str
    payload: str
    header: str
    runner: str

    def found_in(self, text: str, *, allowed: frozenset[str] = frozenset()) -> list[str]:
        """Return the names of the secrets in this text that must not be there."""
        names = {name: getattr(self, name) for name in self.__slots__}
        return [name for name, canary in names.items() if name not in allowed and canary in text]


_OF_A_JOB = frozenset({"payload", "header"})
"""Anyone who may look at a job may see these, and its error messages, in which handlers put the payload."""
_OF_A_RUN = frozenset({"runner"})


@case("S42", "all output is searched for secrets from payload, header, address and errors", small={}, large={})
async def secrets(lab: Lab) -> None:
    """A job's secrets may appear only in output about that job, and the passwords nowhere. Neither may be in a log."""
    canaries = Canaries(*(f"canary{number}{lab.random.getrandbits(64):016x}" for number in range(5)))
    # A user's server may ask for the right password, so this password is only used on the laboratory's own.
    store = lab.url.replace("postgresql://postgres@", f"postgresql://postgres:{canaries.password}@", 1)
    port = free_port()
    launch = Launch(arguments=["--log-level", "debug"], given={SECRET: canaries.runner})
    pages = ""
    async with lab.workers(
        1,
        _APP,
        url=store,
        launch=launch,
        health_port=port,
        log_attempts="all",
        rabbitmq_url=f"amqp://user:{canaries.broker_password}@127.0.0.1:1/",
    ) as crew:
        ids = await _enqueue(lab, canaries)
        for _ in range(2):
            pages += await _page(port, "/ready") + await _page(port, "/live")
            await lab.kill_connections(100)
            lab.faulted()
            pages += await _page(port, "/ready")
            await asyncio.sleep(0.5)
        await lab.drained(lab.lease + _DRAINED_SECONDS)
        await _until_the_runner_failed(lab)
    logs = "\n".join(each.output() for each in crew.processes)
    if "dead letter" not in logs or "attempt succeeded" not in logs or "run did not succeed" not in logs:
        lab.violation(TARGET, "the worker's log does not mention what failed, so the search proves nothing")
    lab.check("bytes of logs", len(logs), at_least=1000)
    _leaks(lab, canaries, "the worker's log", logs)
    _leaks(lab, canaries, "the health port", pages)
    await _commands(lab, canaries, store, ids)


async def _enqueue(lab: Lab, canaries: Canaries) -> Mapping[str, UUID]:
    ids = {}
    for kind in (SUCCEEDS, *FAILING, TYPED):
        headers: dict[str, object] = {"authorization": f"Bearer {canaries.header}"}
        id = await lab.enqueue(kind, {"card": canaries.payload}, headers=headers)
        if id is not None:
            ids[kind] = id
    lab.record.note_each(What.UNUSABLE, (ids[kind] for kind in (TYPED, "secret.result") if kind in ids))
    return ids


async def _until_the_runner_failed(lab: Lab) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PAGE_SECONDS):
            while not any(row["code"] for row in await lab.fetch("read_runs", RUNNER)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def _commands(lab: Lab, canaries: Canaries, store: str, ids: Mapping[str, UUID]) -> None:
    here = ("--store", store, "--schema", lab.schema)
    refused = f"postgresql://user:{canaries.password}@127.0.0.1:1/nowhere"
    unreadable = f"postgresql://user:{canaries.password}/x@127.0.0.1:port/nowhere"
    no_database = urlunsplit(urlsplit(store)._replace(path="/holdfast_faults_nowhere"))
    for arguments, allowed in (
        (("doctor", "--deep", *here), frozenset[str]()),
        (("jobs", "list", *here), _OF_A_JOB),
        (("runs", "list", *here), _OF_A_RUN),
        (("jobs", "show", str(ids["secret.raises"]), *here), _OF_A_JOB),
        (("doctor", "--store", refused), frozenset[str]()),
        (("tick", "--app", _APP, "--store", refused, "--log-level", "debug", "--debug"), frozenset[str]()),
        (("jobs", "list", "--store", unreadable), frozenset[str]()),
        (("migrate", "--store", no_database, "--debug"), frozenset[str]()),
    ):
        said = await lab.command(*arguments)
        command = f"`holdfast {' '.join(arguments[:2])}`"
        _leaks(lab, canaries, command, said.output, allowed)
        # An empty output, or a usage message, does not prove that the command keeps secrets.
        if not said.output.strip() or "Usage:" in said.output:
            lab.violation(TARGET, f"{command} ends with {said.code} and prints {said.output[:300]!r}")
        if arguments[1] == "show" and canaries.payload not in said.output:
            lab.violation(TARGET, f"{command} does not show the payload, so the search for secrets proves nothing")


def _leaks(lab: Lab, canaries: Canaries, where: str, text: str, allowed: frozenset[str] = frozenset()) -> None:
    for name in canaries.found_in(text, allowed=allowed):
        canary: str = getattr(canaries, name)
        line = next((line for line in text.splitlines() if canary in line), "").strip()
        lab.violation(LEAK, f"{where} reveals the {name.replace('_', ' ')}: {line[:300]}")


async def _page(port: int, path: str) -> str:
    async with asyncio.timeout(_PAGE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        page = (await reader.read()).decode()
        writer.close()
        return page
