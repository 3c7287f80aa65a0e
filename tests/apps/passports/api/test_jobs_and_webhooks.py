"""Jobs, dead letters, webhook endpoints and deliveries, through the API."""

import hashlib
import hmac

import pytest

from tests.apps.passports.api.conftest import EVENTS, Api, World, opened_api, problem
from tests.apps.passports.bench import worker_settings
from tests.apps.passports.receiver import Receiver, answer
from tests.databases import Database

pytestmark = pytest.mark.postgres

FIELDS = {
    "job_id", "tenant_id", "type", "subject_id", "status", "priority", "attempts", "max_attempts", "lease_owner",
    "lease_expires_at", "started_at", "scheduled_at", "last_error", "created_at", "finished_at",
}  # fmt: skip


def is_signed(secret: str, body: bytes, header: str) -> bool:
    """As printed in the documentation for customers."""
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, header.removeprefix("sha256="))


async def test_a_dead_letter_is_shown_and_requeued_with_all_its_attempts(api: Api, world: World) -> None:
    path = f"/jobs/{world.ids['job_id']}"
    job = await api.ann.get(path)
    assert job.keys() == FIELDS
    assert (job["type"], job["status"], job["attempts"], job["max_attempts"]) == (
        "DELIVER_WEBHOOK",
        "DEAD_LETTER",
        5,
        5,
    )
    assert (job["priority"], job["tenant_id"], job["lease_owner"]) == (3, str(api.ann.tenant), None)
    assert job["last_error"].keys() == {"code", "type", "message"}
    assert job["last_error"]["code"] == "HttpException"
    assert await api.ann.post(f"/dead-letters/{world.ids['job_id']}/requeue") == {"job_id": world.ids["job_id"]}
    job = await api.ann.get(path)
    assert (job["status"], job["attempts"]) == ("QUEUED", 0)
    for id in (world.ids["job_id"], (await api.ann.get("/jobs", status="SUCCEEDED"))["items"][0]["job_id"]):
        response = await api.ann.http.post(f"/v1/dead-letters/{id}/requeue")
        assert (await problem(response))[:2] == (409, "CONFLICT")


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "Authorization"])
async def test_a_token_in_the_address_is_ignored(api: Api, name: str) -> None:
    """Addresses end up in logs."""
    token = api.ann.http.headers["Authorization"]
    for value in (token, token.removeprefix("Bearer ")):
        response = await api.nobody.get("/v1/jobs", params={name: value})
        assert (await problem(response))[:2] == (401, "UNAUTHORIZED")


async def test_jobs_are_filtered_by_status_and_type(api: Api, world: World) -> None:
    assert world.ids
    parsed = (await api.ann.get("/jobs", type="PARSE_FACTS", status="SUCCEEDED"))["items"]
    assert [job["type"] for job in parsed] == ["PARSE_FACTS"]
    dead = (await api.ann.get("/jobs", status="DEAD_LETTER"))["items"]
    assert len(dead) == len(EVENTS)
    assert (await api.ann.get("/dead-letters"))["items"] == dead
    assert (await api.ann.get("/jobs", type="NOTHING"))["items"] == []
    assert (await problem(await api.ann.http.get("/v1/jobs?status=READY")))[0] == 422


async def test_the_priority_of_a_job_can_be_given(api: Api, world: World) -> None:
    uploaded = await api.ann.upload(priority="0")
    assert (await api.ann.get(f"/jobs/{uploaded['job_id']}"))["priority"] == 0
    usual = await api.ann.upload()
    assert (await api.ann.get(f"/jobs/{usual['job_id']}"))["priority"] == 2
    again = await api.ann.http.post(f"/v1/webhook-deliveries/{world.ids['webhook_delivery_id']}/redeliver?priority=1")
    assert (await api.ann.get(f"/jobs/{again.json()['job_id']}"))["priority"] == 1
    version_id = uploaded["document_version_id"]
    await api.work()
    building = {**world.building, "build_id": "urgent", "priority": 0}
    sealed = await api.ann.post(f"/snapshots/{await api.ann.snapshot(version_id)}/seal", building)
    assert (await api.ann.get(f"/jobs/{sealed['job_id']}"))["priority"] == 0
    for wrong in ("4", "-1", "high"):
        response = await api.ann.http.post(
            f"/v1/documents/{world.ids['document_id']}/versions?priority={wrong}", json={"schema_version": 1}
        )
        assert (await problem(response))[:2] == (422, "VALIDATION_ERROR")


async def test_a_delivery_is_shown_and_sent_again_under_the_same_id(api: Api, receiver: Receiver) -> None:
    receiver.answers = [answer(500, b"broken"), answer(200, b"fine")]
    endpoint = await api.ann.endpoint(receiver.url, "DOCUMENT_UPLOADED")
    await api.ann.upload()
    await api.bench.work_off()
    (summary,) = (await api.ann.get("/webhook-deliveries"))["items"]
    path = f"/webhook-deliveries/{summary['webhook_delivery_id']}"
    delivery = await api.ann.get(path)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("DELIVERED", 200, "fine")
    assert delivery["webhook_endpoint_id"] == endpoint["webhook_endpoint_id"]
    await api.ann.post(f"{path}/redeliver")
    assert (await api.ann.get(path))["status"] == "PENDING"
    assert len((await api.ann.get("/webhook-deliveries", status="PENDING"))["items"]) == 1
    await api.bench.work_off()
    assert (await api.ann.get(path))["status"] == "DELIVERED"
    ids = [each.headers["X-BPC-Delivery-Id"] for each in receiver.received]
    assert ids == [summary["webhook_delivery_id"]] * 3
    assert all(is_signed(endpoint["secret"], each.body, each.headers["X-BPC-Signature"]) for each in receiver.received)


async def test_a_rotation_keeps_the_old_secret_until_it_is_finished(api: Api, receiver: Receiver) -> None:
    old = await api.ann.endpoint(receiver.url, "DOCUMENT_UPLOADED")
    path = f"/webhook-endpoints/{old['webhook_endpoint_id']}"
    assert (await problem(await api.ann.http.post(f"/v1{path}/finish-rotation")))[:2] == (409, "CONFLICT")
    new = (await api.ann.post(f"{path}/rotate"))["secret"]
    assert (await problem(await api.ann.http.post(f"/v1{path}/rotate")))[:2] == (409, "CONFLICT")
    shown = await api.ann.get(path)
    assert (shown["is_rotating"], "secret" in shown, new == old["secret"]) == (True, False, False)
    await api.ann.upload()
    await api.work()
    during = receiver.received.pop()
    assert is_signed(old["secret"], during.body, during.headers["X-BPC-Signature"])
    assert is_signed(new, during.body, during.headers["X-BPC-Signature-Next"])
    assert (await api.ann.post(f"{path}/finish-rotation"))["is_rotating"] is False
    await api.ann.upload()
    await api.work()
    after = receiver.received.pop()
    assert is_signed(new, after.body, after.headers["X-BPC-Signature"])
    assert "X-BPC-Signature-Next" not in after.headers


async def test_secrets_are_shown_only_when_they_are_made(api: Api) -> None:
    endpoint = await api.ann.endpoint()
    path = f"/webhook-endpoints/{endpoint['webhook_endpoint_id']}"
    new = (await api.ann.post(f"{path}/rotate"))["secret"]
    shown = str(
        [await api.ann.get(path), await api.ann.get("/webhook-endpoints"), await api.ann.post(f"{path}/disable")]
    )
    assert endpoint["secret"] not in shown
    assert new not in shown


async def test_a_disabled_endpoint_gets_nothing_more(api: Api, receiver: Receiver) -> None:
    endpoint = await api.ann.endpoint(receiver.url, "DOCUMENT_UPLOADED")
    path = f"/webhook-endpoints/{endpoint['webhook_endpoint_id']}"
    await api.ann.upload()
    disabled = await api.ann.post(f"{path}/disable")
    assert disabled["disabled_at"] == (await api.ann.post(f"{path}/disable"))["disabled_at"] != None  # noqa: E711
    await api.ann.upload()
    await api.bench.work_off()
    (delivery,) = (await api.ann.get("/webhook-deliveries"))["items"]
    assert (delivery["status"], receiver.received) == ("FAILED", [])
    assert "the webhook endpoint is disabled" in delivery["error_message"]
    response = await api.ann.http.post(f"/v1/webhook-deliveries/{delivery['webhook_delivery_id']}/redeliver")
    assert (await problem(response))[:2] == (409, "CONFLICT")


async def test_an_endpoint_subscribes_to_events(api: Api) -> None:
    endpoint = await api.ann.endpoint("http://127.0.0.1:9/", "FACTS_PARSED", "FACTS_PARSED")
    path = f"/webhook-endpoints/{endpoint['webhook_endpoint_id']}"
    assert endpoint["event_types"] == ["FACTS_PARSED"]
    for _ in range(2):
        there = await api.ann.put(f"{path}/subscriptions/QR_GENERATED")
        assert there["event_types"] == ["FACTS_PARSED", "QR_GENERATED"]
    gone = await api.ann.http.delete(f"/v1{path}/subscriptions/FACTS_PARSED")
    assert gone.json()["event_types"] == ["QR_GENERATED"]
    assert (await problem(await api.ann.http.delete(f"/v1{path}/subscriptions/FACTS_PARSED")))[0] == 404
    assert (await problem(await api.ann.http.put(f"/v1{path}/subscriptions/WEBHOOK_FAILED")))[0] == 404


async def test_https_and_a_public_address_are_required_outside_development(database: Database) -> None:
    async with opened_api(worker_settings(database.url, bpc_development=False)) as api:
        for url in (
            "http://example.com/", "https://127.0.0.1/", "https://localhost/", "https://10.0.0.1/",
            "https://[::ffff:127.0.0.1]/", "https://user:password@example.com/", "ftp://example.com", "example.com",
            "https://2130706433/", "https://example.com:99999/", "https://exa mple.com/", "https://",
        ):  # fmt: skip
            response = await api.ann.http.post("/v1/webhook-endpoints", json={"url": url})
            assert (url, *(await problem(response))[:2]) == (url, 422, "WebhookAddressRefused")
        assert (await api.ann.get("/webhook-endpoints"))["items"] == []
        assert (await api.ann.endpoint("https://hooks.example.com/bpc"))["url"] == "https://hooks.example.com/bpc"
