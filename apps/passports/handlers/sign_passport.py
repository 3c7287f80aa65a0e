"""SIGN_PASSPORT: signs the receipt hash of a compiled version."""

from apps.passports.audit import PASSPORT_SIGNED, Event, record
from apps.passports.codes import SIGNING_KEY_MISSING, invalid
from apps.passports.database import fetch_one, sql, transaction
from apps.passports.jobs import GENERATE_QR, GenerateQr, SignPassport, new_job
from apps.passports.tools import Tools, tenant_of
from holdfast import Permanent, RunningJob


async def sign_passport(job: RunningJob[SignPassport, Tools]) -> None:
    tools, tenant, version_id = job.state, tenant_of(job), job.payload.passport_version_id
    found = await fetch_one(tools.pool, "versions/get", tenant, version_id)
    if found is None:
        raise invalid(f"there is no passport version {version_id}")
    key = tools.key
    if key is None:
        raise Permanent(SIGNING_KEY_MISSING, "BPC_SIGNING_KEY is not set")
    signature = key.sign(found["receipt_hash"])
    async with transaction(tools.pool) as connection:
        following = new_job(
            tools.app, GENERATE_QR, GenerateQr(version_id),
            tenant=tenant, key=str(version_id), correlation_id=job.correlation_id,
        )  # fmt: skip
        await tools.app.enqueue(following, conn=connection)
        if await connection.fetchval(sql("versions/sign"), tenant, version_id, signature, key.id) is not None:
            told = {"passport_version_id": str(version_id), "key_id": key.id}
            await record(connection, tools.app, tenant, Event(PASSPORT_SIGNED, "PassportVersion", version_id, {**told}))
        await job.finish_in(connection)
