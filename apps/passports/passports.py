"""Passports: adding one, and its versions as files and labels."""

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import asyncpg

from apps.passports.codes import Conflict, NotFound
from apps.passports.database import fetch_one, sql
from apps.passports.jobs import COMPILE_PASSPORT, GENERATE_QR, SIGN_PASSPORT
from apps.passports.jobs_view import progress
from apps.passports.label import label_png
from apps.passports.verifying import file_bytes
from holdfast import Holdfast

if TYPE_CHECKING:
    from apps.passports.database import Connection, Pool
    from apps.passports.tools import Tools

_STEPS = ("COMPILED", "SIGNED", "LABELED")


async def add_passport(connection: "Connection", tenant: UUID, name: str) -> UUID:
    passport_id = uuid4()
    await connection.execute(sql("passports/add"), tenant, passport_id, name)
    return passport_id


async def passport_version(
    pool: "Pool", app: "Holdfast[Tools]", tenant: UUID, version_id: UUID, *, until: str = "COMPILED"
) -> asyncpg.Record:
    """Return the version. Raise NotFound or Conflict, with the state of its job, if it has not come that far."""
    row = await fetch_one(pool, "versions/get", tenant, version_id)
    if row is None:
        why = await progress(app, tenant, COMPILE_PASSPORT, version_id)
        raise NotFound(f"there is no passport version {version_id}; {why}")
    if _STEPS.index(row["status"]) < _STEPS.index(until):
        why = await progress(app, tenant, SIGN_PASSPORT if row["signature"] is None else GENERATE_QR, version_id)
        raise Conflict(f"the passport version {version_id} is {row['status']}, not {until}; {why}")
    return row


def passport_file(version: asyncpg.Record) -> bytes:
    """The signed passport for anyone to verify: canonical JSON with payload and signature."""
    return file_bytes(version["passport_version_id"], version["payload"], version["signature"], version["key_id"])


def label_of(version: asyncpg.Record) -> bytes:
    """The label of a labeled version to print, as a PNG with a quiet zone around the code."""
    first, second, *rest = str(version["passport_version_id"]).split("-")
    date = f"{version['issued_at']:%Y-%m-%d}"
    return label_png(version["qr_payload"], f"{first}-{second}-", "-".join(rest), date)
