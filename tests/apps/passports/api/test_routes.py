"""Every route: with its tenant's token, with none, with a wrong one, and with another tenant's."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from tests.apps.passports.api.conftest import EVENTS, ISSUED_AT, Api, World, problem
from tests.apps.passports.test_idempotency import TABLES

pytestmark = pytest.mark.postgres

OPEN = {"/v1/health/live", "/v1/health/ready"}
OUTSIDE_THE_DESCRIPTION = {"/verify"}
NOTHING = "00000000-0000-4000-8000-000000000000"


def bodies(world: World) -> dict[tuple[str, str], Any]:
    """A body for each route that takes one. A new route without one here fails the tests below."""
    building = world.building
    return {
        ("POST", "/v1/documents"): {"name": "BOM"},
        ("POST", "/v1/documents/{document_id}/versions"): {"schema_version": 1, "attributes": {"a": 1}},
        ("POST", "/v1/snapshots/{snapshot_id}/documents"): {"document_version_ids": [world.ids["document_version_id"]]},
        ("POST", "/v1/snapshots/{snapshot_id}/seal"): building,
        ("POST", "/v1/rules"): {"name": "rules", "source": "require a: number"},
        ("PUT", "/v1/rules/{rules_id}"): {"source": "require a: number"},
        ("POST", "/v1/passports"): {"name": "Battery 2"},
        ("POST", "/v1/passport-versions"): {**building, "snapshot_id": world.ids["snapshot_id"], "build_id": "2"},
        ("POST", "/v1/webhook-endpoints"): {"url": "http://127.0.0.1:9/", "event_types": EVENTS},
    }


def routes(api: FastAPI) -> list[tuple[str, str]]:
    """The methods and paths of all routes for tenants."""
    paths = api.openapi()["paths"]
    return [(method.upper(), path) for path, item in paths.items() for method in item if path not in OPEN]


def every_route(router: Any) -> Iterator[APIRoute]:  # noqa: ANN401
    for route in router.routes:
        if hasattr(route, "original_router"):
            yield from every_route(route.original_router)
        elif isinstance(route, APIRoute):
            yield route


async def call(client: httpx.AsyncClient, api: Api, world: World, route: tuple[str, str]) -> httpx.Response:
    method, path = route
    known = bodies(world)
    operation = api.api.openapi()["paths"][path][method.lower()]
    assert ("requestBody" in operation) == (route in known), f"add a body for {route} to these tests"
    return await client.request(method, path.format(**world.ids), json=known.get(route))


async def everything(api: Api) -> dict[str, list[tuple[object, ...]]]:
    rows = {table: await api.bench.rows(f"SELECT each::text FROM {table} AS each ORDER BY 1") for table in TABLES}
    return {**rows, "jobs": [(job.id, job.state, job.attempt, job.priority) for job in await api.bench.jobs()]}


def test_only_the_verifier_is_outside_the_description(api: Api) -> None:
    found = list(every_route(api.api))
    assert {route.path for route in found if not route.include_in_schema} == OUTSIDE_THE_DESCRIPTION
    assert len([route for route in found if route.include_in_schema]) == len(routes(api.api)) + len(OPEN)


async def test_every_route_wants_the_token_of_a_tenant(api: Api, world: World) -> None:
    before = await everything(api)
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer"},
    ]
    for route in routes(api.api):
        for headers in wrong:
            api.nobody.headers.pop("Authorization", None)
            api.nobody.headers.update(headers)
            response = await call(api.nobody, api, world, route)
            assert (route, *(await problem(response))[:2]) == (route, 401, "UNAUTHORIZED")
            assert response.headers["www-authenticate"] == "Bearer"
    assert await everything(api) == before


async def test_no_route_reaches_across_the_border(api: Api, world: World) -> None:
    before = await everything(api)
    for route in routes(api.api):
        method, path = route
        if "{" in path or path == "/v1/passport-versions":
            response = await call(api.bob.http, api, world, route)
            assert (route, *(await problem(response))[:2]) == (route, 404, "NOT_FOUND")
        elif method == "GET":
            assert (route, (await call(api.bob.http, api, world, route)).json()) == (route, {"items": [], "next": None})
    assert await everything(api) == before


async def test_ids_in_bodies_and_queries_do_not_reach_across_the_border(api: Api, world: World) -> None:
    uploaded = await api.bob.upload()
    await api.work()
    own = {
        "passport_id": await api.bob.passport(),
        "rules_id": await api.bob.published(),
        "snapshot_id": await api.bob.snapshot(uploaded["document_version_id"]),
    }
    before = await everything(api)
    snapshot = f"/v1/snapshots/{own['snapshot_id']}"
    building = {**own, "build_id": "build-1", "issued_at": ISSUED_AT}
    for name in ("passport_id", "rules_id"):
        body = {key: value for key, value in {**building, name: world.ids[name]}.items() if key != "snapshot_id"}
        assert (await problem(await api.bob.http.post(f"{snapshot}/seal", json=body)))[:2] == (404, "NOT_FOUND")
    added = {"document_version_ids": [world.ids["document_version_id"]]}
    assert (await problem(await api.bob.http.post(f"{snapshot}/documents", json=added)))[:2] == (404, "NOT_FOUND")
    assert await everything(api) == before
    await api.bob.post(
        f"/snapshots/{own['snapshot_id']}/seal", {k: v for k, v in building.items() if k != "snapshot_id"}
    )
    before = await everything(api)
    for name in own:
        body = {**building, name: world.ids[name]}
        response = await api.bob.http.post("/v1/passport-versions", json=body)
        assert (name, *(await problem(response))[:2]) == (name, 404, "NOT_FOUND")
    for path in ("/jobs", "/documents", "/passports", "/webhook-endpoints"):
        for id in world.ids.values():
            if id not in EVENTS:
                shown = str((await api.bob.get(path, after=id))["items"])
                assert not [each for each in world.ids.values() if each not in EVENTS and each in shown]
    assert await everything(api) == before


async def test_unknown_and_malformed_ids_are_not_found(api: Api, world: World) -> None:
    for method, path in routes(api.api):
        if "{" not in path:
            continue
        for id in (NOTHING, "17", "%00", "a" * 500):
            unknown = World(dict.fromkeys(world.ids, id), world.building)
            response = await call(api.ann.http, api, unknown, (method, path))
            if "{rules_id}" not in path or method != "PUT":
                assert (path, *(await problem(response))[:2]) == (path, 404, "NOT_FOUND")
    assert (await problem(await api.ann.http.get("/v1/nothing")))[:2] == (404, "NOT_FOUND")
    assert (await problem(await api.ann.http.delete("/v1/documents")))[:2] == (405, "METHOD_NOT_ALLOWED")


async def test_every_list_is_paged(api: Api, world: World) -> None:
    for number in range(2):
        await api.ann.upload(world.ids["document_id"])
        await api.ann.passport()
        await api.ann.published()
        await api.ann.endpoint("http://127.0.0.1:9/", "FACTS_PARSED")
        await api.ann.post("/snapshots")
        await api.ann.document()
        body = {**world.building, "snapshot_id": world.ids["snapshot_id"], "build_id": str(number)}
        await api.ann.post("/passport-versions", body)
    await api.bench.work_off()
    lists = [path for method, path in routes(api.api) if method == "GET" and "limit" in _parameters(api.api, path)]
    assert len(lists) == 13
    for template in lists:
        path = template.format(**world.ids).removeprefix("/v1")
        whole = await api.ann.get(path, limit=200)
        assert (template, whole["next"], len(whole["items"]) > 2) == (template, None, True)
        items: list[object] = []
        after: dict[str, object] = {}
        while True:
            page = await api.ann.get(path, limit=2, **after)
            items += page["items"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert (template, items) == (template, whole["items"])
        for wrong in ({"limit": 0}, {"limit": 201}, {"limit": "many"}, {"after": "-"}):
            response = await api.ann.http.get(f"/v1{path}", params=wrong)
            assert (await problem(response))[:2] == (422, "VALIDATION_ERROR")


def _parameters(api: FastAPI, path: str) -> set[str]:
    return {parameter["name"] for parameter in api.openapi()["paths"][path]["get"].get("parameters", [])}
