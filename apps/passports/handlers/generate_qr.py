"""GENERATE_QR: stores the QR code of a signed version, as text and as an image."""

import asyncio

from apps.passports.audit import QR_GENERATED, Event, record
from apps.passports.codes import QR_ENCODE_FAILED, invalid
from apps.passports.database import fetch_one, sql, transaction
from apps.passports.jobs import GenerateQr
from apps.passports.qr import QrEncodeFailed, QrText, qr_png
from apps.passports.tools import Tools, tenant_of
from holdfast import Permanent, RunningJob


async def generate_qr(job: RunningJob[GenerateQr, Tools]) -> None:
    tools, tenant, version_id = job.state, tenant_of(job), job.payload.passport_version_id
    found = await fetch_one(tools.pool, "versions/get", tenant, version_id)
    if found is None:
        raise invalid(f"there is no passport version {version_id}")
    if found["signature"] is None:
        raise invalid(f"the passport version {version_id} is not signed")
    text = str(QrText(version_id, found["payload_hash"], found["proof_root_hash"], found["receipt_hash"]))
    try:
        png = await asyncio.to_thread(qr_png, text)
    except QrEncodeFailed as error:
        raise Permanent(QR_ENCODE_FAILED, str(error)) from error
    async with transaction(tools.pool) as connection:
        if await connection.fetchval(sql("versions/label"), tenant, version_id, text, png) is not None:
            told = {"passport_version_id": str(version_id), "qr_payload": text}
            await record(connection, tools.app, tenant, Event(QR_GENERATED, "PassportVersion", version_id, {**told}))
        await job.finish_in(connection)
