"""Bad input is reported as JSON, and no input makes the API fail."""

import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as some

from tests.apps.invoicing.conftest import Api
from tests.apps.invoicing.steps import LINE
from tests.databases import Database, refusing

JSON = {"Content-Type": "application/json"}
WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"customerId": "17"}, "customerId"),
    ({"currency": "euro"}, "currency"),
    ({"dueDays": 366}, "dueDays"),
    ({"dueDays": 10**30}, "dueDays"),
    ({"template": "../secrets"}, "template"),
    ({"note": "NUL \0"}, "note"),
    ({"note": "half \ud800"}, "note"),
    ({"lines": []}, "lines"),
    ({"lines": [LINE | {"quantity": "0"}]}, "lines.0.quantity"),
    ({"lines": [LINE, LINE | {"quantity": 1.5}]}, "lines.1.quantity"),
    ({"lines": [LINE | {"unitPrice": "1e3"}]}, "lines.0.unitPrice"),
    ({"lines": [LINE | {"unitPrice": "NaN"}]}, "lines.0.unitPrice"),
    ({"lines": [LINE | {"unitPrice": "1.005"}]}, "lines.0.unitPrice"),
    ({"lines": [LINE | {"taxRate": "100.01"}]}, "lines.0.taxRate"),
    ({"lines": [LINE | {"taxRate": True}]}, "lines.0.taxRate"),
    ({"status": "PAID"}, "status"),
]


async def refused(api: Api, method: str, path: str, **options: Any) -> tuple[int, str, str]:  # noqa: ANN401
    response = await api.client.http.request(method, path, **options)
    body = response.json()
    assert sorted(body) == ["error", "message"]
    return response.status_code, body["error"], body["message"]


async def test_unknown_objects_are_not_found(api: Api) -> None:
    nobody = uuid4()
    for path, code in (
        (f"/customers/{nobody}", "CUSTOMER_NOT_FOUND"),
        (f"/invoices/{nobody}", "INVOICE_NOT_FOUND"),
        (f"/enrolments/{nobody}", "ENROLMENT_NOT_FOUND"),
        (f"/deliveries/{nobody}", "DELIVERY_NOT_FOUND"),
        (f"/invoices/{nobody}/deliveries", "INVOICE_NOT_FOUND"),
        ("/invoices/not-an-id", "INVOICE_NOT_FOUND"),
        ("/nothing", "NOT_FOUND"),
    ):
        assert (await refused(api, "GET", path))[:2] == (404, code)
    assert (await refused(api, "DELETE", "/invoices"))[:2] == (405, "METHOD_NOT_ALLOWED")


async def test_an_invalid_field_is_named(api: Api) -> None:
    for change, where in WRONG_FIELDS:
        body = {"customerId": str(uuid4()), "currency": "EUR", "lines": [LINE], **change}
        # Python's own encoder accepts what others refuse, such as half of a surrogate pair.
        status, code, message = await refused(api, "POST", "/invoices", content=json.dumps(body), headers=JSON)
        assert (change, status, code) == (change, 422, "INVALID_REQUEST")
        assert message.startswith(f"{where}: ")


async def test_messages_about_fields_are_clear(api: Api) -> None:
    invoice = {"customerId": str(uuid4()), "currency": "EUR", "lines": [LINE]}
    customer = {"name": "Ann", "email": "ann@example.com"}
    decimal = 'write a decimal of at most {} digits and {} places as text, such as "12.5"'
    for path, body, message in (
        ("/invoices", {"lines": [LINE | {"quantity": "-1"}]}, "lines.0.quantity: must not be below zero"),
        ("/invoices", {"lines": [LINE | {"quantity": -1}]}, "lines.0.quantity: must not be below zero"),
        ("/invoices", {"lines": [LINE | {"taxRate": "-0.5"}]}, "lines.0.taxRate: must not be below zero"),
        ("/invoices", {"lines": [LINE | {"taxRate": "-x"}]}, f"lines.0.taxRate: {decimal.format(3, 2)}"),
        ("/invoices", {"lines": [LINE | {"quantity": "-1.5555"}]}, f"lines.0.quantity: {decimal.format(9, 3)}"),
        ("/invoices", {"lines": [17]}, "lines.0: send a JSON object"),
        ("/invoices", {"dueDays": "7"}, "dueDays: Input should be a valid integer"),
        ("/invoices", {"dueDays": True}, "dueDays: Input should be a valid integer"),
        ("/invoices", {"currency": "euro"}, "currency: write three capital letters, such as EUR"),
        ("/invoices", {"note": "a bell \a"}, "note: has characters that cannot be printed"),
        ("/customers", {"email": "ann"}, "email: write an address such as ann@example.com"),
        ("/customers", {"email": "ann@example.com\n"}, "email: write an address such as ann@example.com"),
        ("/customers", {"email": "Ann <ann@example.com>"}, "email: write an address such as ann@example.com"),
    ):
        whole = (invoice if path == "/invoices" else customer) | body
        assert await refused(api, "POST", path, json=whole) == (422, "INVALID_REQUEST", message)
    assert (await api.client.get("/openapi.json"))["components"]["schemas"]["NewCustomer"]["properties"]["email"][
        "pattern"
    ].startswith("^")


async def test_a_field_whose_name_is_not_valid_text(api: Api) -> None:
    body = json.dumps({"half \ud800": 1})
    assert (await refused(api, "POST", "/customers", content=body, headers=JSON))[:2] == (422, "INVALID_REQUEST")


async def test_amounts_out_of_range(api: Api) -> None:
    for lines, code in (
        ([LINE | {"quantity": "999999999", "unitPrice": "999999999999.99"}], "AMOUNT_TOO_LARGE"),
        ([LINE | {"quantity": "1", "unitPrice": "999999999999.99", "taxRate": "1"}], "AMOUNT_TOO_LARGE"),
        ([LINE | {"quantity": "1", "unitPrice": "-0.01"}], "TOTAL_BELOW_ZERO"),
    ):
        body = {"customerId": str(uuid4()), "currency": "EUR", "lines": lines}
        assert (await refused(api, "POST", "/invoices", json=body))[:2] == (422, code)
    enrolment = {"customerId": str(uuid4()), "className": "Violin", "student": "Bo", "currency": "EUR"} | {
        "monthlyPrice": "999999999999.99", "taxRate": "7", "firstMonth": "2199-03",
    }  # fmt: skip
    assert (await refused(api, "POST", "/enrolments", json=enrolment))[:2] == (422, "AMOUNT_TOO_LARGE")
    enrolment["monthlyPrice"] = "80"
    assert (await refused(api, "POST", "/enrolments", json=enrolment))[:2] == (422, "CUSTOMER_NOT_FOUND")
    body = {"customerId": str(uuid4()), "currency": "EUR", "lines": [LINE]}
    assert (await refused(api, "POST", "/invoices", json=body))[:2] == (422, "CUSTOMER_NOT_FOUND")


async def test_a_body_that_is_not_an_object(api: Api) -> None:
    for content in (b"", b"{", b"[]", b"null", b"\xff", b"1" * 5000, b"[" * 5000, b'{"name": NaN}', b'"text"'):
        for headers in (JSON, {}):
            answer = await refused(api, "POST", "/customers", content=content, headers=headers)
            assert (content, *answer[:2]) == (content, 422, "INVALID_REQUEST")


async def test_a_body_that_is_not_an_object_is_told_what_is_expected(api: Api) -> None:
    wanted = 422, "INVALID_REQUEST", "body: send a JSON object"
    untyped = *wanted[:2], f"{wanted[2]}, with Content-Type: application/json"
    for content in (b"", b"[]", b"null", b"17", b'"text"'):
        assert await refused(api, "POST", "/customers", content=content, headers=JSON) == wanted
    right = json.dumps({"name": "Ann", "email": "ann@example.com"})
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        assert await refused(api, "POST", "/customers", content=right, headers=headers) == untyped
    assert await refused(api, "POST", "/customers") == untyped
    invoice = await api.client.draft()
    assert await refused(api, "POST", f"/invoices/{invoice}/issue", content=b"[]", headers=JSON) == wanted
    assert await refused(api, "POST", f"/invoices/{invoice}/issue", content=b'{"sendEmail": true}') == untyped
    unreadable = 422, "INVALID_REQUEST", "body: cannot be read as JSON"
    for content in (b"{", b"\xff"):
        assert await refused(api, "POST", "/customers", content=content, headers=JSON) == unreadable


async def test_an_unreachable_database_is_a_503_until_it_returns(api: Api, database: Database) -> None:
    customer = await api.client.customer()
    with refusing(database.url):
        for path in (f"/customers/{customer}", "/healthz"):
            assert (await refused(api, "GET", path))[:2] == (503, "UNAVAILABLE")
    assert (await api.client.get("/healthz"))["status"] == "ok"
    await api.client.get(f"/customers/{customer}")


async def test_an_unexpected_error_is_a_500_without_a_traceback(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("apps.invoicing.api.invoices.read", broken)
    assert await refused(api, "GET", f"/invoices/{uuid4()}") == (
        500,
        "INTERNAL",
        "something went wrong on the server; your request is not the cause",
    )


SCALARS = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats()
    | some.text()
    | some.sampled_from(["EUR", "12.50", "0", "-1", "ann@example.com", "2199-03", "1" * 5000, "\x00", "\ud800"])
    | some.uuids().map(str)
)
VALUES = some.recursive(SCALARS, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner))
NAMES = (
    "name email address customerId currency lines description quantity unitPrice taxRate dueDays note template",
    "sendEmail recipient className student monthlyPrice firstMonth lastMonth",
)
FIELDS = some.sampled_from(" ".join(NAMES).split())
BODIES = some.dictionaries(FIELDS, VALUES | some.lists(some.dictionaries(FIELDS, VALUES), max_size=2))
PATHS = ("/customers", "/invoices", "/enrolments", "/invoices/{}/issue", "/invoices/{}/email", "/enrolments/{}/end")


@pytest.fixture
async def known(api: Api) -> dict[str, Any]:
    """Valid bodies for the examples to break."""
    customer = await api.client.customer()
    invoice = {"customerId": customer, "currency": "EUR", "lines": [LINE], "dueDays": 14, "note": ""}
    enrolment = await api.client.enrolment(first="2199-03")
    return {
        "/customers": {"name": "Ann", "email": "ann@example.com", "address": ""},
        "/invoices": invoice,
        "/enrolments": {name: enrolment[name] for name in enrolment if name not in ("id", "billedUpTo")},
        "/invoices/{}/issue": {"sendEmail": True},
        "/invoices/{}/email": {"recipient": "bo@example.com"},
        "/enrolments/{}/end": {"lastMonth": "2199-04"},
        "invoice": (await api.client.issued(customer=customer))["id"],
        "enrolment": enrolment["id"],
    }


@pytest.mark.long
@examples(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=some.sampled_from(PATHS), spoilt=BODIES | VALUES, is_added=some.booleans())
async def test_no_body_causes_a_5xx(api: Api, known: dict[str, Any], path: str, spoilt: Any, is_added: bool) -> None:  # noqa: ANN401
    body = known[path] | spoilt if is_added and isinstance(spoilt, dict) else spoilt
    target = path.format(known["invoice" if "invoices" in path else "enrolment"])
    response = await api.client.http.post(target, content=json.dumps(body), headers=JSON)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert sorted(response.json()) == ["error", "message"]
