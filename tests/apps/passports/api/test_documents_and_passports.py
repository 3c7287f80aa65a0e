"""From a document to a label, through the API."""

import io
import json
from uuid import UUID

import pytest
from PIL import Image

from apps.passports.merkle import leaf_hash, root
from apps.passports.reading import read_qr
from apps.passports.tools import trusted_keys
from apps.passports.verifying import verify_passport
from tests.apps.passports.api.conftest import ISSUED_AT, Api, World, problem
from tests.apps.passports.bench import DOCUMENT, RULES

pytestmark = pytest.mark.postgres


async def test_an_uploaded_document_is_parsed_into_facts(api: Api) -> None:
    document_id = await api.ann.document()
    first = await api.ann.upload(document_id)
    csv = await api.ann.http.post(
        f"/v1/documents/{document_id}/versions",
        content="part,mass_kg\nCELL-2,3.5\n",
        headers={"Content-Type": "text/csv; charset=utf-8"},
    )
    assert (first["version"], csv.json()["version"]) == (1, 2)
    assert (await api.ann.get(f"/jobs/{first['job_id']}"))["status"] == "QUEUED"
    await api.work()
    assert (await api.ann.get(f"/jobs/{first['job_id']}"))["status"] == "SUCCEEDED"
    versions = (await api.ann.get(f"/documents/{document_id}/versions"))["items"]
    assert [(each["version"], each["media_type"], each["status"]) for each in versions] == [
        (1, "application/json", "PARSED"),
        (2, "text/csv", "PARSED"),
    ]
    assert await api.ann.get(f"/document-versions/{first['document_version_id']}") == versions[0]
    assert len(versions[0]["content_hash"]) == 64
    facts = (await api.ann.get(f"/document-versions/{csv.json()['document_version_id']}/facts"))["items"]
    assert [(fact["fact_type"], fact["fact_key"], fact["payload"]) for fact in facts] == [
        ("component", "CELL-2", {"part": "CELL-2", "quantity": 1, "mass_kg": 3.5})
    ]
    every = (await api.ann.get("/facts"))["items"]
    assert len(every) == len(DOCUMENT["attributes"]) + 3  # type: ignore[arg-type]
    assert (await api.ann.get("/facts", fact_type="component", fact_key="CELL-2"))["items"] == facts


async def test_a_sealed_snapshot_becomes_a_passport_that_the_verifier_accepts(api: Api, world: World) -> None:
    version = await api.ann.get(f"/passport-versions/{world.ids['passport_version_id']}")
    assert (version["status"], version["key_id"], version["build_id"]) == ("LABELED", "dev-key-1", "build-1")
    assert version["issued_at"] == ISSUED_AT
    assert version["payload"]["issued_at"] == "2026-11-20T12:00:00.000000Z"
    path = f"/v1/passport-versions/{world.ids['passport_version_id']}"
    file, qr, label = [await api.ann.http.get(f"{path}/{name}") for name in ("file", "qr.png", "label.png")]
    assert [each.headers["content-type"] for each in (file, qr, label)] == [
        "application/json",
        "image/png",
        "image/png",
    ]
    assert read_qr(label.content) == version["qr_payload"]
    assert verify_passport(file.content, version["qr_payload"], trusted_keys(api.bench.settings)) == []
    with Image.open(io.BytesIO(qr.content)) as image:
        assert image.size == (570, 570)
    listed = (await api.ann.get(f"/passports/{world.ids['passport_id']}/versions"))["items"]
    assert [each["passport_version_id"] for each in listed] == [world.ids["passport_version_id"]]


async def test_the_proof_of_a_version_belongs_to_its_facts(api: Api, world: World) -> None:
    from apps.passports.base32 import to_base32
    from apps.passports.canonical import canonical

    version = await api.ann.get(f"/passport-versions/{world.ids['passport_version_id']}")
    facts = [canonical(fact) for fact in version["payload"]["facts"]]
    assert version["proof"] == {
        "root_hash": to_base32(root(facts)),
        "leaf_hashes": [to_base32(leaf_hash(fact)) for fact in facts],
    }
    assert f"|pr={version['proof']['root_hash']}|" in version["qr_payload"]


async def test_what_is_not_made_yet_is_a_conflict(api: Api) -> None:
    uploaded = await api.ann.upload()
    snapshot_id = (await api.ann.post("/snapshots"))["snapshot_id"]
    building = {
        "passport_id": await api.ann.passport(),
        "rules_id": await api.ann.published(),
        "build_id": "1",
        "issued_at": ISSUED_AT,
    }

    async def refused(path: str, body: object) -> tuple[int, str, str]:
        return await problem(await api.ann.http.post(f"/v1{path}", json=body))

    sealing = f"/snapshots/{snapshot_id}/seal"
    adding, added = f"/snapshots/{snapshot_id}/documents", {"document_version_ids": [uploaded["document_version_id"]]}
    assert f"is not parsed: its job {uploaded['job_id']} is QUEUED" in (await refused(adding, added))[2]
    assert (await refused("/passport-versions", {**building, "snapshot_id": snapshot_id}))[0] == 409
    empty = (await api.ann.post("/snapshots"))["snapshot_id"]
    assert "has no documents" in (await refused(f"/snapshots/{empty}/seal", building))[2]
    await api.work()
    await api.ann.post(adding, added)
    api.bench.tools.key, key = None, api.bench.tools.key
    sealed = await api.ann.post(sealing, building)
    path = f"/v1/passport-versions/{sealed['passport_version_id']}"
    status, _, detail = await problem(await api.ann.http.get(path))
    assert (status, f"its job {sealed['job_id']} is QUEUED" in detail) == (404, True)
    assert (await refused(sealing, building))[:2] == (409, "CONFLICT")
    assert (await refused(adding, added))[:2] == (409, "CONFLICT")
    await api.work()
    for name in ("file", "qr.png", "label.png"):
        status, _, detail = await problem(await api.ann.http.get(f"{path}/{name}"))
        assert (status, "is COMPILED, not" in detail, "FAILED: SIGNING_KEY_MISSING: " in detail) == (409, True, True)
    (failed,) = (await api.ann.get("/dead-letters"))["items"]
    assert (failed["status"], failed["last_error"]["code"]) == ("FAILED", "SIGNING_KEY_MISSING")
    api.bench.tools.key = key
    await api.ann.post(f"/dead-letters/{failed['job_id']}/requeue")
    await api.work()
    assert (await api.ann.http.get(f"{path}/label.png")).status_code == 200


async def test_a_broken_document_says_so_and_cannot_spoil_a_snapshot(api: Api) -> None:
    uploaded = await api.ann.upload(content={"schema_version": 2})
    path = f"/document-versions/{uploaded['document_version_id']}"
    assert (await api.ann.get(path))["status"] == "UPLOADED"
    await api.work()
    version = await api.ann.get(path)
    assert (version["status"], version["job_id"]) == ("FAILED", uploaded["job_id"])
    assert version["last_error"]["code"] == "VALIDATION_ERROR"
    assert (await api.ann.get(f"/documents/{version['document_id']}/versions"))["items"] == [version]
    job = await api.ann.get(f"/jobs/{uploaded['job_id']}")
    assert job["subject_id"] == uploaded["document_version_id"]
    snapshot_id = (await api.ann.post("/snapshots"))["snapshot_id"]
    added = {"document_version_ids": [uploaded["document_version_id"]]}
    refused = await api.ann.http.post(f"/v1/snapshots/{snapshot_id}/documents", json=added)
    assert f"its job {uploaded['job_id']} is FAILED: VALIDATION_ERROR: schema_version" in (await problem(refused))[2]
    assert (await api.ann.get(f"/snapshots/{snapshot_id}"))["document_version_ids"] == []


async def test_a_sealed_snapshot_can_be_compiled_again(api: Api, world: World) -> None:
    body = {**world.building, "snapshot_id": world.ids["snapshot_id"], "build_id": "build-2", "priority": 0}
    again = await api.ann.post("/passport-versions", body)
    assert (await api.ann.get(f"/jobs/{again['job_id']}"))["priority"] == 0
    await api.work()
    assert (await api.ann.get(f"/passport-versions/{again['passport_version_id']}"))["status"] == "LABELED"


async def test_a_draft_of_rules_can_be_changed_until_it_is_published(api: Api) -> None:
    rules = await api.ann.post("/rules", {"name": "rules", "source": "check 17"})
    path = f"/v1/rules/{rules['rules_id']}"
    assert await problem(await api.ann.http.post(f"{path}/publish")) == (
        422,
        "RULE_SYNTAX_ERROR",
        (await problem(await api.ann.http.post(f"{path}/publish")))[2],
    )
    for source, code, place in (
        ('require a: number\ncheck "x": a ?', "RULE_SYNTAX_ERROR", "line 2, column 14: "),
        ('require a: number\ncheck "x": a and true', "RULE_TYPE_ERROR", "line 2, column 12: "),
    ):
        await api.ann.put(path.removeprefix("/v1"), {"source": source})
        status, told, detail = await problem(await api.ann.http.post(f"{path}/publish"))
        assert (status, told) == (422, code)
        assert detail.startswith(place), detail
    assert (await api.ann.put(path.removeprefix("/v1"), {"source": RULES}))["status"] == "DRAFT"
    published = await api.ann.post(f"{path.removeprefix('/v1')}/publish")
    assert (published["status"], published["source"]) == ("PUBLISHED", RULES)
    assert (await problem(await api.ann.http.post(f"{path}/publish")))[:2] == (409, "CONFLICT")
    assert (await problem(await api.ann.http.put(path, json={"source": "x"})))[:2] == (409, "CONFLICT")


async def test_the_audit_trail_is_listed_in_its_order(api: Api, world: World) -> None:
    events = (await api.ann.get("/audit-events", limit=200))["items"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["event_type"] == "DOCUMENT_UPLOADED"
    assert all(UUID(event["event_id"]) for event in events)
    assert json.loads(json.dumps(events[0]["payload"]))["document_version_id"] == world.ids["document_version_id"]
