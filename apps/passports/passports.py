"""Passports: adding one, and its versions as files and labels."""

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import asyncpg

from apps.passports.codes import Conflict, NotFound
from apps.passports.database import fetch_one, sql
from apps.passports.label import label_png
from apps.passports.verifying import file_bytes

if TYPE_CHECKING:
    from apps.passports.database import Connection, Pool


async def add_passport(connection: "Connection", tenant: UUID, name: str) -> UUID:
    passport_id = uuid4()
    await connection.execute(sql("passports/add"), tenant, passport_id, name)
    return passport_id


async def passport_version(pool: "Pool", tenant: UUID, version_id: UUID) -> asyncpg.Record:
    row = await fetch_one(pool, "versions/get", tenant, version_id)
    if row is None:
        raise NotFound(f"there is no passport version {version_id}")
    return row


def passport_file(version: asyncpg.Record) -> bytes:
    """The passport for anyone to verify: canonical JSON with payload and signature."""
    if version["signature"] is None:
        raise Conflict(f"the passport version {version['passport_version_id']} is not signed yet")
    return file_bytes(version["passport_version_id"], version["payload"], version["signature"], version["key_id"])


def label_of(version: asyncpg.Record) -> bytes:
    """The label to print, as a PNG with a quiet zone around the code."""
    text: str | None = version["qr_payload"]
    if text is None:
        raise Conflict(f"the passport version {version['passport_version_id']} has no QR code yet")
    first, second, *rest = str(version["passport_version_id"]).split("-")
    return label_png(text, f"{first}-{second}-", "-".join(rest), f"{version['issued_at']:%Y-%m-%d}")
