"""Signatures in the headers of an application, and who can verify them during a rotation (case S38)."""

import hashlib
import hmac
from uuid import UUID

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.webhooks import InvalidSignature, Policy, Secrets, new_secret, send, sign, verify
from tests.webhooks.receiver import receiving

BODY = b'{"event_type": "PASSPORT_SIGNED"}'
ID = UUID("123e4567-e89b-12d3-a456-426614174000")
ROTATING = Secrets("old", "new")


def signed(secrets: Secrets, body: bytes = BODY) -> dict[str, str]:
    return sign(body, secrets, prefix="X-BPC", event_type="PASSPORT_SIGNED", delivery_id=ID)


def receivers_own_check(secret: str, body: bytes, header: str) -> bool:
    """What the customers of such an API are told to write."""
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, header.removeprefix("sha256="))


def test_the_headers_are_those_that_were_agreed_on() -> None:
    # From RFC 4231, test case 2.
    assert signed(Secrets("Jefe"), b"what do ya want for nothing?") == {
        "X-BPC-Signature": "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        "X-BPC-Event-Type": "PASSPORT_SIGNED",
        "X-BPC-Delivery-Id": "123e4567-e89b-12d3-a456-426614174000",
    }


async def test_a_receiver_with_either_secret_can_verify_during_a_rotation() -> None:
    async with receiving() as receiver:
        policy = Policy(allow_http=True, allow_private=True)
        for secrets in (Secrets("old"), ROTATING, Secrets("new")):
            await send(receiver.url, BODY, signed(secrets), policy=policy)
    before, during, after = receiver.received
    assert receivers_own_check("old", before.body, before.headers["x-bpc-signature"])
    assert receivers_own_check("old", during.body, during.headers["x-bpc-signature"])
    assert receivers_own_check("new", during.body, during.headers["x-bpc-signature-next"])
    assert receivers_own_check("new", after.body, after.headers["x-bpc-signature"])
    assert not receivers_own_check("old", after.body, after.headers["x-bpc-signature"])
    assert ["x-bpc-signature-next" in each.headers for each in receiver.received] == [False, True, False]
    for received, known in ((before, "old"), (during, "old"), (during, "new"), (after, "new")):
        verify(received.body, received.headers, Secrets(known), prefix="X-BPC")


@pytest.mark.parametrize("known", [Secrets("old"), Secrets("new"), Secrets("other", "new")])
def test_one_matching_secret_is_enough(known: Secrets) -> None:
    verify(BODY, signed(ROTATING), known, prefix="X-BPC")


def test_the_names_of_headers_may_have_any_case() -> None:
    headers = {name.upper(): value for name, value in signed(Secrets("old")).items()}
    verify(BODY, headers, Secrets("old"), prefix="x-bpc")


@pytest.mark.parametrize("position", range(len(BODY)))
def test_a_changed_byte_is_noticed(position: int) -> None:
    changed = bytes(byte ^ (place == position) for place, byte in enumerate(BODY))
    with pytest.raises(InvalidSignature):
        verify(changed, signed(ROTATING), Secrets("old"), prefix="X-BPC")


@pytest.mark.parametrize("body", [b"", BODY + b"\n", BODY[:-1], b" " + BODY])
def test_an_added_or_missing_byte_is_noticed(body: bytes) -> None:
    with pytest.raises(InvalidSignature):
        verify(body, signed(ROTATING), ROTATING, prefix="X-BPC")


def test_another_secret_is_noticed() -> None:
    with pytest.raises(InvalidSignature, match="does not match"):
        verify(BODY, signed(Secrets("old")), Secrets("new"), prefix="X-BPC")


@pytest.mark.parametrize("value", ["", "sha256=", "é", "sha256=" + "0" * 64, "sha1=" + "0" * 40, "sha256=" * 1000])
def test_a_forged_signature_is_noticed(value: str) -> None:
    headers = signed(Secrets("old")) | {"X-BPC-Signature": value}
    with pytest.raises(InvalidSignature):
        verify(BODY, headers, Secrets("old"), prefix="X-BPC")


def test_a_missing_signature_is_named() -> None:
    with pytest.raises(InvalidSignature, match="X-BPC-Signature is missing"):
        verify(BODY, {}, Secrets("old"), prefix="X-BPC")


@pytest.mark.parametrize("event_type", ["", "PAID\r\nX-Admin: 1", "gesch\u00e4ft"])
def test_what_does_not_fit_into_a_header_is_the_callers_mistake(event_type: str) -> None:
    with pytest.raises(InvalidInput):
        sign(BODY, Secrets("old"), prefix="X-BPC", event_type=event_type, delivery_id=ID)


def test_secrets_do_not_show_themselves() -> None:
    assert (repr(Secrets("old")), repr(ROTATING)) == ("Secrets(…)", "Secrets(…, next=…)")


@pytest.mark.parametrize(("current", "next"), [("", None), ("old", ""), (b"old", None)])
def test_an_empty_secret_is_the_callers_mistake(current: str, next: str | None) -> None:
    with pytest.raises(InvalidInput, match="not empty"):
        Secrets(current, next)


def test_new_secrets_differ() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
