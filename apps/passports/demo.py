"""A demo of the whole application: an API, two workers, one of which is killed, and a customer's server for webhooks.

Everything runs on a new PostgreSQL in a temporary folder; one label and its passport are kept.
"""

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from apps.passports.demo_processes import (
    LEASE_SECONDS,
    Failed,
    Process,
    demo_environment,
    said,
    started,
    started_api,
    until,
)
from apps.passports.reading import Unreadable, read_qr
from apps.passports.settings import Settings
from apps.passports.tools import trusted_keys
from apps.passports.verdicts import passport_report, webhook_report

_WIDTH = 88
_TENANTS = ("Nordic Cells AS", "Volta Pack GmbH")
_PASSPORTS_EACH = 6
_EVENTS = ("PASSPORT_COMPILED", "PASSPORT_SIGNED", "QR_GENERATED")
_RULES = """\
require capacity_kwh: number
require mass_kg: number
optional model: text
let kwh_per_kg = capacity_kwh / mass_kg
check "stores energy": capacity_kwh > 0
check "weighs more than its parts": components.mass_kg < mass_kg and components.count > 0
"""
_DECLARED = "require components.count: number\nrequire components.mass_kg: number\n"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """A passport version on its way."""

    tenant: "Tenant"
    name: str
    version_id: str


@dataclass(frozen=True, slots=True)
class Received:
    """A webhook that the customer's server wrote down."""

    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_accepted(self) -> bool:
        return self.status < httpx.codes.MULTIPLE_CHOICES

    @property
    def version_id(self) -> str:
        return str(json.loads(self.body)["aggregate_id"])


@dataclass(slots=True)
class Tenant:
    """A client of the API, and the secret of its webhook endpoint."""

    name: str
    client: httpx.AsyncClient
    secret: str = field(default="", repr=False)

    async def post(self, path: str, body: object = None) -> Json:
        return _json(await self.client.post(path, json=body))

    async def get(self, path: str, **parameters: str) -> Json:
        return _json(await self.client.get(path, params=parameters))

    async def file(self, path: str) -> bytes:
        return (await self.client.get(path)).raise_for_status().content


@dataclass(slots=True)
class Stage:
    """The setting of the demo, and the messages along the way."""

    console: Console
    folder: Path
    environment: dict[str, str]
    began: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/]  {text}")

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def received(self) -> list[Received]:
        lines = self.log("webhooks").read_text().splitlines() if self.log("webhooks").exists() else []
        told = [json.loads(line) for line in lines]
        return [
            Received(each["path"], each["status"], each["headers"], base64.b64decode(each["body"])) for each in told
        ]


def run_demo(*, serve: bool = False) -> int:
    console = Console(highlight=False)
    console.width = min(_WIDTH, console.width)
    try:
        return asyncio.run(_run(console, serve=serve))
    except (Failed, Unreadable, httpx.HTTPError) as error:
        console.print(str(error) or type(error).__name__, style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 0 if serve else 130


async def _run(console: Console, *, serve: bool) -> int:
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="passports-", ignore_cleanup_errors=True)))
        stage = Stage(console, folder, demo_environment(folder))
        stage.tell("starting an API on a new PostgreSQL, and a webhook receiver")
        url = await exits.enter_async_context(started_api(stage.environment, stage.log("api")))
        hooks = await exits.enter_async_context(
            started(
                stage.environment,
                stage.log("receiver"),
                "apps.passports.demo_receiver",
                str(stage.log("webhooks")),
                talks=True,
            )
        )
        hook_url = f"http://127.0.0.1:{await said(hooks, stage.log('receiver'))}"
        stage.tell("starting two workers, and adding two tenants")
        workers = [
            await exits.enter_async_context(
                started(stage.environment, stage.log(f"worker{n}"), "apps.passports", "worker")
            )
            for n in (1, 2)
        ]
        tenants = await asyncio.gather(*(_tenant(stage, exits, name, url, hook_url) for name in _TENANTS))
        is_fine = await _show(stage, tenants, workers)
        if serve:
            console.print(f"The verifier page is at [bold]{url}/verify[/]. Press Ctrl-C to stop.", soft_wrap=True)
            await asyncio.Event().wait()
        return 0 if is_fine else 1


async def _show(stage: Stage, tenants: list[Tenant], workers: list[Process]) -> bool:
    made = [each for tenant in await asyncio.gather(*map(_sealed, tenants)) for each in tenant]
    stage.tell(f"sealed {len(made)} snapshots; each becomes a signed and labeled passport")
    await until(lambda: _some_are_labeled(made), "no passport was labeled")
    await until(lambda: _some_are_being_sent(tenants), "no webhook was sent")
    workers[0].kill()
    usual = Settings.model_fields["bpc_jobs_lease_seconds"].default
    stage.tell("the first passport has its label; [red]kill -9[/] for one of the workers")
    stage.tell(f"its jobs wait until their leases run out: {LEASE_SECONDS} s here, {usual} s by default")
    await until(lambda: _all_are_labeled(made), "not all passports were labeled")
    stage.tell("every passport has its label")
    await until(lambda: _all_are_delivered(tenants, len(made)), "not all webhooks were delivered")
    received = stage.received()
    accepted = [each.headers["X-BPC-Delivery-Id"] for each in received if each.is_accepted]
    refused, again = len(received) - len(accepted), len(accepted) - len(set(accepted))
    stage.tell(f"every webhook is delivered, {refused} after a refusal and {again} twice")
    table, is_fine = await _table(stage, made, received)
    stage.console.print(table)
    kept = Path(tempfile.mkdtemp(prefix="passport-"))
    for name, file in (("label.png", "label.png"), ("passport.json", "file")):
        (kept / name).write_bytes(await made[0].tenant.file(f"/passport-versions/{made[0].version_id}/{file}"))
    told = "every passport and every webhook is genuine" if is_fine else "[red]something does not fit[/]"
    stage.tell(f"verified: {told}")
    stage.console.print(f"\nOne of the labels: [bold]{kept / 'label.png'}[/]", soft_wrap=True)
    stage.console.print(f"Its passport:      [bold]{kept / 'passport.json'}[/]", soft_wrap=True)
    return is_fine


async def _tenant(stage: Stage, exits: AsyncExitStack, name: str, url: str, hook_url: str) -> Tenant:
    log = stage.log(f"tenant {name}")
    async with started(stage.environment, log, "apps.passports", "tenant", "add", name, talks=True) as process:
        await said(process, log)
        token = (await said(process, log)).removeprefix("token: ")
    client = httpx.AsyncClient(base_url=f"{url}/v1", headers={"Authorization": f"Bearer {token}"}, timeout=30)
    tenant = Tenant(name, await exits.enter_async_context(client))
    endpoint = {"url": f"{hook_url}/{name.split()[0].lower()}", "event_types": _EVENTS}
    tenant.secret = (await tenant.post("/webhook-endpoints", endpoint))["secret"]
    return tenant


async def _sealed(tenant: Tenant) -> list[Made]:
    """Upload a document per battery, publish rules, and seal a snapshot per passport."""
    rules_id = (await tenant.post("/rules", {"name": "Traction batteries", "source": _DECLARED + _RULES}))["rules_id"]
    await tenant.post(f"/rules/{rules_id}/publish")
    uploads = [await _uploaded(tenant, number) for number in range(1, _PASSPORTS_EACH + 1)]
    made = []
    for number, version_id in enumerate(uploads, 1):
        await until(lambda id=version_id: _is_parsed(tenant, id), "a document was not parsed")  # type: ignore[misc]
        snapshot_id = (await tenant.post("/snapshots"))["snapshot_id"]
        await tenant.post(f"/snapshots/{snapshot_id}/documents", {"document_version_ids": [version_id]})
        passport_id = (await tenant.post("/passports", {"name": f"Battery {number}"}))["passport_id"]
        build = {"rules_id": rules_id, "build_id": f"demo-{number}", "issued_at": "2026-11-20T12:00:00Z"}
        sealed = await tenant.post(f"/snapshots/{snapshot_id}/seal", {"passport_id": passport_id, **build})
        made.append(Made(tenant, f"Battery {number}", sealed["passport_version_id"]))
    return made


async def _uploaded(tenant: Tenant, number: int) -> str:
    document_id = (await tenant.post("/documents", {"name": f"Bill of materials {number}"}))["document_id"]
    content = {
        "schema_version": 1,
        "attributes": {"model": f"BX-{number}", "capacity_kwh": 40 + 7.5 * number, "mass_kg": 300 + 20 * number},
        "components": [
            {"part": f"CELL-{number}", "material": "LFP", "quantity": 80, "mass_kg": 2.5, "recycled_share": 0.16},
            {"part": f"CASE-{number}", "material": "aluminum", "mass_kg": 38.5},
        ],
    }
    return str((await tenant.post(f"/documents/{document_id}/versions", content))["document_version_id"])


async def _is_parsed(tenant: Tenant, version_id: str) -> bool:
    return bool((await tenant.get(f"/document-versions/{version_id}"))["status"] == "PARSED")


async def _some_are_labeled(made: list[Made]) -> bool:
    return any([await _is_labeled(each) for each in made])


async def _all_are_labeled(made: list[Made]) -> bool:
    return all([await _is_labeled(each) for each in made])


async def _some_are_being_sent(tenants: list[Tenant]) -> bool:
    found = [await tenant.get("/jobs", status="RUNNING", type="DELIVER_WEBHOOK") for tenant in tenants]
    return any(each["items"] for each in found)


async def _is_labeled(made: Made) -> bool:
    response = await made.tenant.client.get(f"/passport-versions/{made.version_id}")
    # It does not exist until it is compiled.
    return response.is_success and response.json()["status"] == "LABELED"


async def _all_are_delivered(tenants: list[Tenant], passports: int) -> bool:
    found = [await tenant.get("/webhook-deliveries", status="DELIVERED", limit="200") for tenant in tenants]
    return sum(len(each["items"]) for each in found) == passports * len(_EVENTS)


async def _table(stage: Stage, made: list[Made], received: list[Received]) -> tuple[Table, bool]:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("tenant", "passport", "version", "signed", "QR", "webhooks", "attempts"):
        table.add_column(heading, justify="right" if heading == "attempts" else "left", no_wrap=True)
    trusted, is_fine = trusted_keys(_settings(stage)), True
    for each in made:
        path = f"/passport-versions/{each.version_id}"
        content, label = await each.tenant.file(f"{path}/file"), await each.tenant.file(f"{path}/label.png")
        report = passport_report(content, read_qr(label), trusted)
        hooks = [hook for hook in received if hook.version_id == each.version_id]
        genuine = [hook for hook in hooks if webhook_report(hook.body, hook.headers, each.tenant.secret).is_ok]
        delivered = {hook.headers["X-BPC-Delivery-Id"] for hook in genuine if hook.is_accepted}
        fits = report.is_ok and len(genuine) == len(hooks) and len(delivered) == len(_EVENTS)
        is_fine = is_fine and fits
        marks = ("genuine" if report.is_ok else report.verdict, "reads back" if report.is_ok else "does not fit")
        table.add_row(
            each.tenant.name, each.name, each.version_id[:8], *marks, f"{len(delivered)} of {len(_EVENTS)}",
            str(len(hooks)), style="" if fits else "red",
        )  # fmt: skip
    return table, is_fine


def _settings(stage: Stage) -> Settings:
    return Settings.load(bpc_signing_key=stage.environment["BPC_SIGNING_KEY"])


def _json(response: httpx.Response) -> Json:
    answer: Json = response.json()
    if not response.is_success:
        raise Failed(f"{response.request.url.path} was answered with {response.status_code}: {answer.get('detail')}")
    return answer
