"""Passports and their versions: as data, as a file to verify, as a QR code and as a label."""

import asyncio
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response

from apps.passports import passports, snapshots
from apps.passports.api.errors import documented
from apps.passports.api.models import (
    Compiling,
    EnqueuedVersion,
    Named,
    Page,
    Passport,
    PassportVersion,
    PassportVersionSummary,
)
from apps.passports.api.service import ThePage, TheService, TheTenant
from apps.passports.canonical import read_json
from apps.passports.codes import Conflict
from apps.passports.compiling import Build, leaves
from apps.passports.database import transaction
from apps.passports.merkle import leaf_hash

router = APIRouter(tags=["passports"])

_PNG = "image/png"


def _file(media_type: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: {}}, "description": "The file."}, **documented(409)}


@router.post("/passports", status_code=201, summary="Add a passport", responses=documented(413, 415))
async def add_passport(new: Named, service: TheService, tenant: TheTenant) -> Passport:
    async with transaction(service.pool) as connection:
        passport_id = await passports.add_passport(connection, tenant, new.name)
    return await passport(passport_id, service, tenant)


@router.get("/passports", summary="List passports, the newest first")
async def list_passports(service: TheService, tenant: TheTenant, page: ThePage) -> Page[Passport]:
    return await service.page(Passport, "passport_id", "passports/list", tenant, page)


@router.get("/passports/{passport_id}", summary="Read a passport")
async def passport(passport_id: UUID, service: TheService, tenant: TheTenant) -> Passport:
    return Passport.model_validate(dict(await service.existing("passports/get", tenant, passport_id, "passport")))


@router.get("/passports/{passport_id}/versions", summary="List the versions of a passport, the newest first")
async def list_versions(
    passport_id: UUID, service: TheService, tenant: TheTenant, page: ThePage
) -> Page[PassportVersionSummary]:
    await passport(passport_id, service, tenant)
    return await service.page(PassportVersionSummary, "passport_version_id", "versions/list", tenant, page, passport_id)


@router.get("/passport-versions/{passport_version_id}", summary="Read a version: payload, hashes, proof and signature")
async def version(passport_version_id: UUID, service: TheService, tenant: TheTenant) -> PassportVersion:
    row = dict(await passports.passport_version(service.pool, service.app, tenant, passport_version_id))
    return await asyncio.to_thread(_version, row)


def _version(row: dict[str, Any]) -> PassportVersion:
    payload = read_json(row["payload"])
    hashes = [leaf_hash(leaf) for leaf in leaves(payload)] if isinstance(payload, dict) else []
    proof = {"root_hash": row.pop("proof_root_hash"), "leaf_hashes": hashes}
    del row["qr_png"]
    return PassportVersion.model_validate({**row, "payload": payload, "proof": proof})


@router.get(
    "/passport-versions/{passport_version_id}/file",
    summary="The passport for anyone to verify",
    responses=_file("application/json"),
    response_class=Response,
)
async def file(passport_version_id: UUID, service: TheService, tenant: TheTenant) -> Response:
    """Every byte counts: the verifier accepts only exactly this file."""
    row = await passports.passport_version(service.pool, service.app, tenant, passport_version_id, until="SIGNED")
    return _download(passports.passport_file(row), "application/json", f"passport-{passport_version_id}.json")


@router.get(
    "/passport-versions/{passport_version_id}/qr.png",
    summary="The QR code, without a quiet zone",
    responses=_file(_PNG),
    response_class=Response,
)
async def qr_code(passport_version_id: UUID, service: TheService, tenant: TheTenant) -> Response:
    row = await passports.passport_version(service.pool, service.app, tenant, passport_version_id, until="LABELED")
    return _download(row["qr_png"], _PNG, f"qr-{passport_version_id}.png")


@router.get(
    "/passport-versions/{passport_version_id}/label.png",
    summary="The label to print at 300 DPI",
    responses=_file(_PNG),
    response_class=Response,
)
async def label(passport_version_id: UUID, service: TheService, tenant: TheTenant) -> Response:
    row = await passports.passport_version(service.pool, service.app, tenant, passport_version_id, until="LABELED")
    return _download(await asyncio.to_thread(passports.label_of, row), _PNG, f"label-{passport_version_id}.png")


@router.post(
    "/passport-versions",
    status_code=202,
    summary="Compile a sealed snapshot again: with other rules, or as another build",
    responses=documented(409, 413, 415),
)
async def compile_again(given: Compiling, service: TheService, tenant: TheTenant) -> EnqueuedVersion:
    build = Build(given.passport_id, given.snapshot_id, given.rules_id, given.build_id, given.issued_at)
    snapshot = await service.existing("snapshots/get", tenant, given.snapshot_id, "snapshot")
    if snapshot["status"] != "SEALED":
        raise Conflict(f"the snapshot {given.snapshot_id} is not sealed")
    async with transaction(service.pool) as connection:
        job_id = await snapshots.compile_again(connection, service.app, tenant, build, priority=given.priority)
    await service.app.ring([job_id])
    return EnqueuedVersion(passport_version_id=build.version_id(tenant), job_id=job_id)


def _download(content: bytes, media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'inline; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=media_type, headers=headers)
