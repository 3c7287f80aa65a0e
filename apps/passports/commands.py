"""Commands for people: add a tenant or replace its token, requeue a dead letter, verify a passport or a webhook."""

import base64
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

from apps.passports.codes import NotFound
from apps.passports.reading import Unreadable, read_qr
from apps.passports.settings import Misconfigured, Settings
from apps.passports.tenants import NewTenant, add_tenant, replace_token
from apps.passports.tools import Tools, signing_key, trusted_keys
from apps.passports.verdicts import NEXT_SIGNATURE, SIGNATURE, Report, passport_report, unreadable_photo, webhook_report
from apps.passports.worker import build_app

_QR_PREFIX = "BPC1|"


class Failed(Exception):
    """The command could not do what was asked; the message is one line that says why."""


async def add_named_tenant(settings: Settings, name: str) -> int:
    if not name.strip() or not name.isprintable():
        raise Misconfigured("tenant add: give the tenant a name of printable characters")
    async with _opened(settings) as tools:
        tenant = await add_tenant(tools.pool, name.strip())
    return _shown(tenant)


async def replace_tenant_token(settings: Settings, tenant_id: str) -> int:
    id = _id(tenant_id, "tenant token", "a tenant; `tenant add` printed it")
    async with _opened(settings) as tools:
        try:
            token = await replace_token(tools.pool, id)
        except NotFound as error:
            raise Failed(str(error)) from None
    return _shown(NewTenant(id, token))


async def requeue(settings: Settings, job_id: str) -> int:
    """Run a dead letter of any tenant again."""
    id = _id(job_id, "requeue", "a job; GET /v1/dead-letters lists them")
    async with build_app(settings) as app:
        job = await app.jobs.get(id)
        if job is None:
            raise Failed(f"there is no job {id}; GET /v1/dead-letters lists those of a tenant")
        if not job.state.is_dead_letter:
            raise Failed(f"the job {id} is {job.state}; only FAILED and DEAD_LETTER jobs are requeued")
        (answer,) = await app.retry([id])
    if answer != "ready":
        raise Failed(f"the job {id} is {answer}; try again")
    sys.stdout.write(f"requeued {id} with all its attempts\n")
    return 0


def show_public_key(settings: Settings) -> int:
    key = signing_key(settings)
    if key is None:
        raise Misconfigured("BPC_SIGNING_KEY is not set")
    sys.stdout.write(f"{key.id}:{base64.b64encode(key.public).decode()}\n")
    return 0


def verify_passport_file(settings: Settings, path: str, qr: str, *, as_json: bool) -> int:
    content = _read(path)
    try:
        text = (
            qr if qr.startswith(_QR_PREFIX) else read_qr(_read(qr, f"; the text of a QR code begins with {_QR_PREFIX}"))
        )
    except Unreadable as error:
        return _told(unreadable_photo(str(error)), as_json=as_json)
    return _told(passport_report(content, text, trusted_keys(settings)), as_json=as_json)


def verify_webhook_file(
    path: str, signature: str, next_signature: str | None, secret_path: str, *, as_json: bool
) -> int:
    secret = _read(secret_path).decode(errors="replace").strip()
    if not secret:
        raise Misconfigured(f"{secret_path} is empty; write the secret of the webhook endpoint into it")
    headers = {SIGNATURE: signature, **({} if next_signature is None else {NEXT_SIGNATURE: next_signature})}
    return _told(webhook_report(_read(path), headers, secret), as_json=as_json)


def _id(text: str, command: str, what: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Misconfigured(f"{command}: {text!r} is not the ID of {what}") from None


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Tools]:
    tools = Tools(settings)
    app = build_app(settings, tools)
    async with app, tools.opened(app):
        yield tools


def _shown(tenant: NewTenant) -> int:
    sys.stdout.write(f"tenant_id: {tenant.tenant_id}\ntoken: {tenant.token}\n")
    sys.stderr.write("Keep the token; it is not stored and cannot be shown again.\n")
    return 0


def _read(path: str, hint: str = "") -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Misconfigured(f"{path}: cannot be read: {why}{hint}") from None


def _told(report: Report, *, as_json: bool) -> int:
    """Print the report and return the exit code: 0 if everything fits, else 1."""
    write: Callable[[str], object] = sys.stdout.write
    if as_json:
        write(
            json.dumps(
                {"ok": report.is_ok, "verdict": report.verdict, "checks": [asdict(each) for each in report.checks]}
            )
            + "\n"
        )
    else:
        write(f"{report.verdict}\n")
        for check in report.checks:
            write(f"  {check.result:12} {check.title}: {check.message}\n")
    return 0 if report.is_ok else 1
