"""Signatures of Standard Webhooks 1.0 (case S38)."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.webhooks import InvalidSignature, Policy, Secrets, new_secret, send, sign_standard, verify_standard
from tests.webhooks.receiver import receiving

# The example of the specification's own libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT = datetime.fromtimestamp(1614265330, UTC)
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": ID, "webhook-timestamp": "1614265330", "webhook-signature": SIGNATURE}


def test_the_example_of_the_specification() -> None:
    assert sign_standard(BODY, Secrets(SECRET), id=ID, at=AT) == HEADERS
    verify_standard(BODY, HEADERS, Secrets(SECRET), now=AT)


def test_both_secrets_sign_during_a_rotation() -> None:
    headers = sign_standard(BODY, Secrets(SECRET, OTHER), id=ID, at=AT)
    first, second = headers["webhook-signature"].split(" ")
    assert first == SIGNATURE
    assert second.startswith("v1,")
    for known in (Secrets(SECRET), Secrets(OTHER), Secrets(new_secret(), OTHER)):
        verify_standard(BODY, headers, known, now=AT)
    with pytest.raises(InvalidSignature, match="does not match"):
        verify_standard(BODY, headers, Secrets(new_secret()), now=AT)


async def test_a_sent_webhook_can_be_verified_now() -> None:
    async with receiving() as receiver:
        headers = sign_standard(BODY, Secrets(SECRET), id=ID)
        await send(receiver.url, BODY, headers, policy=Policy(allow_http=True, allow_private=True))
    [received] = receiver.received
    verify_standard(received.body, received.headers, Secrets(SECRET))


def test_signatures_of_other_versions_are_ignored() -> None:
    verify_standard(BODY, HEADERS | {"webhook-signature": f"v1a,abc= {SIGNATURE} v2,def="}, Secrets(SECRET), now=AT)
    with pytest.raises(InvalidSignature):
        verify_standard(BODY, HEADERS | {"webhook-signature": SIGNATURE.replace("v1", "v2")}, Secrets(SECRET), now=AT)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "msg_other"},
        {"webhook-timestamp": "1614265331"},
        {"webhook-timestamp": " 1614265330"},
        {"webhook-timestamp": "1614265330.0"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": SIGNATURE.replace("g0", "G0")},
        {"webhook-signature": "é"},
    ],
)
def test_a_changed_header_is_noticed(changed: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        verify_standard(BODY, HEADERS | changed, Secrets(SECRET), now=AT)


@pytest.mark.parametrize("body", [b"", BODY + b" ", b'{"test": 2432232315}'])
def test_a_changed_body_is_noticed(body: bytes) -> None:
    with pytest.raises(InvalidSignature):
        verify_standard(body, HEADERS, Secrets(SECRET), now=AT)


@pytest.mark.parametrize("name", HEADERS)
def test_a_missing_header_is_named(name: str) -> None:
    headers = {each: value for each, value in HEADERS.items() if each != name}
    with pytest.raises(InvalidSignature, match=f"{name} is missing"):
        verify_standard(BODY, headers, Secrets(SECRET), now=AT)


def test_a_replay_is_noticed_after_the_tolerance() -> None:
    for seconds in (-300, 0, 300):
        verify_standard(BODY, HEADERS, Secrets(SECRET), now=AT + timedelta(seconds=seconds))
    with pytest.raises(InvalidSignature, match="more than 5m ago"):
        verify_standard(BODY, HEADERS, Secrets(SECRET), now=AT + timedelta(seconds=301))
    with pytest.raises(InvalidSignature, match="more than 5m in the future"):
        verify_standard(BODY, HEADERS, Secrets(SECRET), now=AT - timedelta(seconds=301))
    verify_standard(BODY, HEADERS, Secrets(SECRET), now=AT + timedelta(seconds=301), tolerance="1h")


@pytest.mark.parametrize("secret", ["plain", "whsec_", "whsec_%%%", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_abc"])
def test_a_secret_that_is_not_whsec_and_base64_is_the_callers_mistake(secret: str) -> None:
    with pytest.raises(InvalidInput, match="whsec_ and base64") as raised:
        sign_standard(BODY, Secrets(secret), id=ID)
    assert secret == "whsec_" or secret not in str(raised.value)


@pytest.mark.parametrize("id", ["", "a.b", "a\r\nb"])
def test_an_id_that_would_be_ambiguous_is_the_callers_mistake(id: str) -> None:
    with pytest.raises(InvalidInput):
        sign_standard(BODY, Secrets(SECRET), id=id)
